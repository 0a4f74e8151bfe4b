"""The audit finds the books of guilds in order, and a stolen point at once."""

import pytest

from tests.economy.rig import BEN, CARA, GUILD, Play, Rig
from tidegate.core.request import Request
from tidegate.engine.audit import Audit
from tidegate.flows import FLOWS
from tidegate.systems.guild import POINT, payment


async def traffic(rig: Rig) -> None:
    """Transfers at every end and in every state that can be rested in."""
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
def test_the_audit_finds_nothing_wrong_with_guilds(play: Play, full: bool) -> None:
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


def test_a_point_out_of_nowhere_is_found(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        await traffic(rig)
        rig.run("UPDATE ledger_accounts SET available = available + 1 WHERE book = 'member:3'")
        audit = Audit(rig.store, None, FLOWS, rig.alerts.append)
        report = await audit.run(full=True)
        assert not report.ok
        assert report.halted
        await audit.close()

    play(scene)
