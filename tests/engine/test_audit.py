"""The audit on real PostgreSQL and the real core: it reports no violation if nothing is wrong."""

import asyncio
import itertools
import random
from typing import Any

import msgspec
import pytest

import tidegate.engine.audit
from tests.crash.scenes import ASSET, UNIT, endow, parts, request_of
from tests.engine.audited import BASE, Play, World
from tidegate.core.account import Account
from tidegate.core.answers import Unreachable
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.core.wire import AccountStatus as CoreStatus
from tidegate.engine.audit import MAX_FAILURES, Audit
from tidegate.engine.gate import CORE
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import LEDGER, ExternalTransfer
from tidegate.flows import FLOWS
from tidegate.systems.ledger import FUNDING, LedgerStatus

pytestmark = pytest.mark.slow

_cids = itertools.count()


def test_after_mixed_traffic_the_report_is_clean(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        for full in (True, False):
            report = await world.audit.run(full=full)
            assert msgspec.json.decode(msgspec.json.encode(report)) == {
                "ok": True,
                "halted": False,
                "assets": {
                    "USDT": {
                        "funding": "2940.000000",
                        "spot": "1560.000000",
                        "held": "0.000000",
                        "in_flight": "0.000000",
                        "external": "4500.000000",
                        "gap": "0",
                    }
                },
                "violations": [],
            }

    play_audited(scene)


def test_suspense_is_reported_if_it_is_not_zero(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        await world.gate.deposit(
            ExternalTransfer("FUNDING", "USDT", "5", "into-disabled"), BASE + 2
        )
        report = await world.audit.run()
        assert report.ok
        assert report.assets["USDT"].suspense == "5.000000"
        assert report.assets["USDT"].gap == "0"

    play_audited(scene)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_an_operation_whose_answer_was_lost_is_no_violation(
    play_audited: Play, direction: str
) -> None:
    async def scene(world: World) -> None:
        await endow(world.gate, BASE)
        assert (await world.audit.run(full=False)).ok
        world.core.loses_answers = True
        part = next(p for p in parts(BASE) if p.direction == direction)
        receipt = await world.gate.engine.transfer(request_of(part, 1), 0.3)
        assert isinstance(receipt, Receipt)
        assert receipt.transfer.lane == CORE
        for full in (True, False):
            report = await world.audit.run(full=full)
            assert report.ok, report.violations
            # The core has already done its operation. So with "in" the money has arrived.
            in_flight = {"in": "0.000000", "out": f"{part.amount}.000000"}[direction]
            assert report.assets["USDT"].in_flight == in_flight
            assert report.assets["USDT"].gap == "0"
        world.core.loses_answers = False
        assert (await world.gate.engine.wait(receipt.transfer, 20)).state == "COMMITTED"
        report = await world.audit.run(full=False)
        assert report.assets["USDT"].in_flight == "0.000000"
        assert world.audit.read["transfers"] == 1

    play_audited(scene)


def test_money_in_flight_is_counted(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await endow(world.gate, BASE)
        world.core.unreachable = True
        receipt = await world.gate.engine.transfer(request_of(parts(BASE)[0], 1), 0.1)
        assert isinstance(receipt, Receipt)
        for full in (True, False):
            report = await world.audit.run(full=full)
            assert report.ok, report.violations
            assert report.assets["USDT"].in_flight == "100.000000"
            assert report.assets["USDT"].gap == "0"

    play_audited(scene)


async def _refuse_connection() -> Any:
    raise ConnectionRefusedError("connection refused")


def test_an_incremental_audit_reads_only_what_is_new(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        await world.audit.run(full=False)
        await world.audit.run(full=False)
        assert world.audit.read["transfers"] == 0
        assert world.audit.read["keys"] == 0
        receipt = await world.gate.engine.transfer(request_of(parts(BASE)[0], 50), 20)
        assert isinstance(receipt, Receipt)
        await world.audit.run(full=False)
        assert dict(world.audit.read) == {
            "transfers": 1,
            "history": 2,
            "operations": 1,
            "keys": 2,
            "owners": 1,
        }
        await world.audit.run()
        assert world.audit.read["transfers"] == 6 + 6 + 1

    play_audited(scene)


def test_a_lost_stream_of_operations_is_opened_again(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        assert (await world.audit.run(full=False)).ok
        events = world.audit._events
        assert events is not None
        assert events._stream is not None
        await events._stream.aclose()
        receipt = await world.gate.engine.transfer(request_of(parts(BASE)[0], 60), 20)
        assert isinstance(receipt, Receipt)
        for _ in range(2):
            report = await world.audit.run(full=False)
            assert report.ok, report.violations

    play_audited(scene)


def test_a_store_without_a_core_is_audited_by_the_answers_in_its_history(
    play_audited: Play,
) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        without_core = Audit(world.gate.store, None, FLOWS, world.alerts.append)
        report = await without_core.run()
        assert report.ok, report.violations
        assert report.assets["USDT"].other == "1560.000000"

    play_audited(scene)


class Load:
    """Owners that transfer money, some of them frozen, until enough audits have run."""

    owners = range(1, 21)

    def __init__(self, world: World) -> None:
        self.world, self.dice = world, random.Random(3)
        self.count, self.audits = 0, 0

    async def endow(self) -> None:
        gate = self.world.gate
        for owner in self.owners:
            for account in ("FUNDING", "SPOT", "FUTURE"):
                await gate.deposit(ExternalTransfer(account, "USDT", "100", f"d{account}"), owner)
        await self.world.core.set_status(1, "SPOT", ASSET, CoreStatus.DISABLED)
        assert await gate.ledger.set_status(
            gate.store, Account(2, FUNDING, ASSET), LedgerStatus.DISABLED
        )

    def request(self) -> Request:
        owner = self.dice.choice(self.owners)
        books = (Party(LEDGER, FUNDING, owner), Party(CORE, "SPOT", owner))
        pair = self.dice.sample((*books, Party(CORE, "FUTURE", owner)), 2)
        amount = self.dice.choice((1, UNIT, 1_000 * UNIT))
        wanted = dict(zip(("source", "target"), pair, strict=True))
        return Request(owner, "internal_transfer", wanted, ASSET, amount, f"l{next(_cids)}")

    async def transfer(self) -> None:
        receipt = await self.world.gate.engine.transfer(self.request(), 30)
        assert isinstance(receipt, Receipt)
        assert receipt.transfer.lane is None

    async def run(self) -> None:
        while self.count < 2_000 or self.audits < 20:
            await asyncio.gather(*(self.transfer() for _ in range(50)))
            self.count += 50


@pytest.mark.slow
@pytest.mark.parametrize("slow_s", [0.0, 0.01])
def test_no_audit_beside_load_finds_a_violation(
    play_audited: Play, slow_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many pages, so that transfers move on between them.
    monkeypatch.setattr(tidegate.engine.audit, "MAX_OWNERS", 3)
    monkeypatch.setattr(tidegate.engine.audit, "PAGE", 300)

    async def scene(world: World) -> None:
        load = Load(world)
        await load.endow()
        world.core.slow_s = slow_s  # So that much happens between two reads.
        load_task = asyncio.ensure_future(load.run())
        while not load_task.done():
            # `run_pass` and not `run`, which would hide a problem that a second pass does not find.
            found = await world.audit.run_pass(full=load.audits % 5 == 4)
            assert found.problems == []
            load.audits += 1
            await asyncio.sleep(0.02)
        await load_task
        report = await world.audit.run()
        assert report.ok, report.violations
        assert not report.halted
        assert report.assets["USDT"].gap == "0"
        assert report.assets["USDT"].in_flight == "0.000000"
        assert world.audit.read["transfers"] >= 2_000
        states = await world.gate.store.run("SELECT DISTINCT state FROM transfers", {})
        assert {row[0] for row in states} >= {"COMMITTED", "FAILED", "ROLLED_BACK"}

    play_audited(scene)


def test_audits_continue_while_the_core_is_unreachable_and_one_alert_is_sent(
    play_audited: Play,
) -> None:
    async def scene(world: World) -> None:
        world.core._connect = _refuse_connection
        await world.core.close()
        for _ in range(MAX_FAILURES + 5):
            with pytest.raises(Unreachable):
                await world.audit.run_next()
        assert len([a for a in world.alerts if "audits in a row have failed" in a.cause]) == 1
        assert not await world.gate.store.halted()

    play_audited(scene)
