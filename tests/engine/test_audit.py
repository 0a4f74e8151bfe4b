"""The audit, on real PostgreSQL and the core's own code: what is well is told to be well."""

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
from tidegate.engine.audit import MISSES, Audit
from tidegate.engine.gate import CORE
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import LEDGER, ExternalTransfer
from tidegate.flows import FLOWS
from tidegate.systems.ledger import FUNDING, LedgerStatus

pytestmark = pytest.mark.slow

_cids = itertools.count()


def test_after_mixed_traffic_all_is_well_and_the_report_is_as_printed(play_audited: Play) -> None:
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


def test_suspense_is_shown_when_there_is_any(play_audited: Play) -> None:
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


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_leg_that_was_done_and_not_heard_is_no_violation(play_audited: Play, way: str) -> None:
    async def scene(world: World) -> None:
        await endow(world.gate, BASE)
        assert (await world.audit.run(full=False)).ok
        world.core.deaf = True
        part = next(p for p in parts(BASE) if p.way == way)
        said = await world.gate.engine.transfer(request_of(part, 1), 0.3)
        assert isinstance(said, Receipt)
        assert said.transfer.lane == CORE
        for full in (True, False):
            report = await world.audit.run(full=full)
            assert report.ok, report.violations
            # The core has it already, or has given it already: on the way in it has arrived.
            in_flight = {"in": "0.000000", "out": f"{part.amount}.000000"}[way]
            assert report.assets["USDT"].in_flight == in_flight
            assert report.assets["USDT"].gap == "0"
        world.core.deaf = False
        assert (await world.gate.engine.wait(said.transfer, 20)).state == "COMMITTED"
        report = await world.audit.run(full=False)
        assert report.assets["USDT"].in_flight == "0.000000"
        assert world.audit.read["transfers"] == 1

    play_audited(scene)


def test_money_on_its_way_is_counted(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await endow(world.gate, BASE)
        world.core.mute = True
        said = await world.gate.engine.transfer(request_of(parts(BASE)[0], 1), 0.1)
        assert isinstance(said, Receipt)
        for full in (True, False):
            report = await world.audit.run(full=full)
            assert report.ok, report.violations
            assert report.assets["USDT"].in_flight == "100.000000"
            assert report.assets["USDT"].gap == "0"

    play_audited(scene)


async def _nowhere() -> Any:
    raise ConnectionRefusedError("nobody is there")


def test_an_incremental_audit_reads_only_what_is_new(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        await world.audit.run(full=False)
        await world.audit.run(full=False)
        assert world.audit.read["transfers"] == 0
        assert world.audit.read["keys"] == 0
        said = await world.gate.engine.transfer(request_of(parts(BASE)[0], 50), 20)
        assert isinstance(said, Receipt)
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


def test_a_stream_of_operations_that_was_lost_is_taken_up_again(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        assert (await world.audit.run(full=False)).ok
        ear = world.audit._ear
        assert ear is not None
        assert ear._stream is not None
        await ear._stream.aclose()
        said = await world.gate.engine.transfer(request_of(parts(BASE)[0], 60), 20)
        assert isinstance(said, Receipt)
        for _ in range(2):
            report = await world.audit.run(full=False)
            assert report.ok, report.violations

    play_audited(scene)


def test_a_store_without_a_core_is_audited_by_the_answers_it_was_given(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        alone = Audit(world.gate.store, None, FLOWS, world.alerts.append)
        report = await alone.run()
        assert report.ok, report.violations
        assert report.assets["USDT"].other == "1560.000000"

    play_audited(scene)


class Load:
    """Owners who move money about, some of whom may not, as long as somebody looks."""

    owners = range(1, 21)

    def __init__(self, world: World) -> None:
        self.world, self.dice = world, random.Random(3)
        self.count, self.looks = 0, 0

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

    async def one(self) -> None:
        said = await self.world.gate.engine.transfer(self.request(), 30)
        assert isinstance(said, Receipt)
        assert said.transfer.lane is None

    async def run(self) -> None:
        while self.count < 2_000 or self.looks < 20:
            await asyncio.gather(*(self.one() for _ in range(50)))
            self.count += 50


@pytest.mark.slow
@pytest.mark.parametrize("slow_s", [0.0, 0.01])
def test_beside_load_no_audit_sees_anything_wrong(
    play_audited: Play, slow_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many pages, between which the world goes on.
    monkeypatch.setattr(tidegate.engine.audit, "MAX_OWNERS", 3)
    monkeypatch.setattr(tidegate.engine.audit, "PAGE", 300)

    async def scene(world: World) -> None:
        load = Load(world)
        await load.endow()
        world.core.slow_s = slow_s  # So that much happens between any two things that it reads.
        loading = asyncio.ensure_future(load.run())
        while not loading.done():
            # `look` and not `run`, which would look again before it says anything.
            look = await world.audit.look(full=load.looks % 5 == 4)
            assert look.problems == []
            load.looks += 1
            await asyncio.sleep(0.02)
        await loading
        report = await world.audit.run()
        assert report.ok, report.violations
        assert not report.halted
        assert report.assets["USDT"].gap == "0"
        assert report.assets["USDT"].in_flight == "0.000000"
        assert world.audit.read["transfers"] >= 2_000
        states = await world.gate.store.run("SELECT DISTINCT state FROM transfers", {})
        assert {row[0] for row in states} >= {"COMMITTED", "FAILED", "ROLLED_BACK"}

    play_audited(scene)


def test_it_goes_on_when_the_core_cannot_be_reached_and_says_so_once(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        world.core._connect = _nowhere
        await world.core.close()
        for _ in range(MISSES + 5):
            with pytest.raises(Unreachable):
                await world.audit.run_next()
        assert len([a for a in world.alerts if "could not be made" in a.cause]) == 1
        assert not await world.gate.store.halted()

    play_audited(scene)
