"""The audit accepts correct books of guilds, and finds a stolen point at once."""

import pytest

from tests.economy.rig import BEN, CARA, GUILD, Play, Rig
from tidegate.core.request import Request
from tidegate.engine.audit import Audit
from tidegate.flows import FLOWS
from tidegate.systems.guild import POINT, payment


async def traffic(rig: Rig) -> None:
    """Make transfers in every end and in every state in which a transfer can rest."""
    rig.run("UPDATE ledger_accounts SET status = 'DISABLED' WHERE book = 'member:2'")
    async with rig.engine() as engine:
        await rig.until(rig.insert(20), "rejected")
        rig.run("UPDATE ledger_accounts SET status = 'ACTIVE' WHERE book = 'member:2'")
        await rig.until(rig.insert(100, target=CARA), "completed")
        await rig.until(rig.insert(1, initiator=99), "rejected")
        await rig.when(rig.insert(900), lambda r: "daily_limit" in r["checks"])
        for amount in (30, 700):
            parties = {r: p for r, p in payment(GUILD, BEN, CARA).items() if r != "checks"}
            await engine.transfer(Request(GUILD, "member_transfer", parties, POINT, amount))
    await rig.approve(rig.insert(5, initiator=CARA))


@pytest.mark.parametrize("full", [True, False])
def test_the_audit_finds_no_violation_in_correct_books(play: Play, full: bool) -> None:
    async def scene(rig: Rig) -> None:
        audit = Audit(rig.store, None, FLOWS, rig.alerts.append)
        assert (await audit.run(full=True)).ok
        await traffic(rig)
        report = await audit.run(full=full)
        assert (report.ok, report.violations) == (True, [])
        assert report.assets["POINT"].gap == "0"
        async with rig.engine():
            pass
        assert (await audit.run(full=full)).ok
        await audit.close()

    play(scene)


@pytest.mark.parametrize("full", [True, False])
def test_a_payment_to_the_wrong_member_is_found(play: Play, full: bool) -> None:
    """All books of a guild have one owner, so its sums do not show which member was paid."""

    async def scene(rig: Rig) -> None:
        audit = Audit(rig.store, None, FLOWS, rig.alerts.append)
        assert (await audit.run(full=True)).ok
        async with rig.engine():
            id_ = rig.insert(100, target=BEN)
            await rig.until(id_, "completed")
        ben, cara = f"member:{BEN}", f"member:{CARA}"
        rig.run(
            "UPDATE ledger_operations SET book = %s, balance_after = 100"
            " WHERE transfer_id = %s AND verb = 'credit'",
            cara,
            id_,
        )
        rig.run("UPDATE ledger_accounts SET available = available - 100 WHERE book = %s", ben)
        rig.run(
            "INSERT INTO ledger_accounts (owner, book, asset_id, available)"
            " SELECT owner, %s, asset_id, 100 FROM ledger_accounts WHERE book = %s",
            cara,
            ben,
        )
        report = await audit.run(full=full)
        await audit.close()
        assert report.halted
        assert len(report.violations) == 1, report.violations
        assert "does not match its transfer" in report.violations[0]

    play(scene)


def test_a_point_without_an_operation_is_found(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        await traffic(rig)
        rig.run("UPDATE ledger_accounts SET available = available + 1 WHERE book = 'member:3'")
        audit = Audit(rig.store, None, FLOWS, rig.alerts.append)
        report = await audit.run(full=True)
        assert not report.ok
        assert report.halted
        await audit.close()

    play(scene)
