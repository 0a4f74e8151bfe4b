"""Floors of ids: also with a floor ahead of the clock, transfers, audits and alerts work."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.crash.scenes import endow, parts, request_of
from tests.engine.audited import BASE, Play, World
from tests.engine.rig import OWNER, Rig, made, request
from tests.engine.rig import Play as EnginePlay
from tests.engine.test_alert_watch import watch_alerts
from tests.moves import moves_of
from tidegate.core.answers import Alarm, Unreachable
from tidegate.core.ids import HORIZON_S, NO_FLOOR, SKEW_S, first_id, time_ms
from tidegate.core.ports import KeyLookup, RequestKey
from tidegate.core.refusals import Refusal
from tidegate.core.request import transfer_of
from tidegate.core.transfer import Move
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.pending_request import Receipt
from tidegate.engine.resolution import confirm, propose
from tidegate.engine.retirement import Retirement
from tidegate.flows import FLOWS
from tidegate.store import operator_reads, resolutions
from tidegate.store.floors import PostgresFloors
from tidegate.store.memory_store import MemoryStore
from tidegate.store.postgres import PostgresStore
from tidegate.store.resolutions import Proposal
from tidegate.trading_core.core import Core

pytestmark = pytest.mark.slow

DAY_MS = 24 * 3600 * 1000


def in_a_day() -> UUID:
    return first_id(int(time.time() * 1000) + DAY_MS)


def test_transfers_and_audits_work_with_a_floor_a_day_ahead(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        floor = await PostgresFloors(world.gate.store).raise_to(in_a_day())
        await world.traffic()
        [(lowest,)] = await world.gate.store.run("SELECT id FROM transfers ORDER BY 1 LIMIT 1", {})
        assert lowest > floor
        for full in (True, False):
            assert (await world.audit.run(full=full)).ok

    play_audited(scene)


def test_a_floor_that_rises_while_a_request_is_written_refuses_it(
    play_postgres: EnginePlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id is below the floor, so systems may have forgotten it. No money moves."""

    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        store, look = rig.store, rig.store.look
        balance = await rig.funding()

        async def look_and_raise(keys: Sequence[tuple[int, str]]) -> KeyLookup:
            found = await look(keys)
            await PostgresFloors(store).raise_to(in_a_day())
            return found

        async with rig.engine() as engine:
            monkeypatch.setattr(store, "look", look_and_raise)
            assert await engine.submit(request("in", 5)) is Refusal.TOO_LATE
            monkeypatch.setattr(store, "look", look)
            receipt = await engine.submit(request("in", 5))
            assert isinstance(receipt, Receipt), "new ids are above the floor"
            await rig.ended([receipt.transfer])
        assert await rig.funding() == balance - 5
        assert rig.alerts == []

    play_postgres(scene)


def test_an_incremental_audit_reads_new_transfers_once_with_any_id(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await endow(world.gate, BASE)
        assert (await world.audit.run(full=False)).ok
        await PostgresFloors(world.gate.store).raise_to(in_a_day())
        for number, part in enumerate(parts(BASE)):
            await world.gate.engine.transfer(request_of(part, number), 20)
        assert (await world.audit.run(full=False)).ok
        assert world.audit.read["transfers"] == len(parts(BASE))
        assert (await world.audit.run(full=False)).ok
        assert world.audit.read["transfers"] == 0

    play_audited(scene)


def test_an_incremental_audit_finds_a_new_transfer_with_an_old_id(
    play_audited: Play,
) -> None:
    async def scene(world: World) -> None:
        await endow(world.gate, BASE)
        assert (await world.audit.run(full=False)).ok
        store, flow = world.gate.store, FLOWS["internal_transfer"]
        old = first_id(int(time.time() * 1000) - 2 * 3600 * 1000)
        transfer = transfer_of(request_of(parts(BASE)[0], 1), flow, old)
        async with store.transaction() as tx:
            await store.reserve(tx, [RequestKey(transfer.owner, "part-1", b"x", old)])
            await store.write(tx, moves_of([Move(None, transfer)]), [False])
        async with asyncio.timeout(20):
            while not await store.ended([old]):  # noqa: ASYNC110  No event to await.
                await asyncio.sleep(0.05)
        await world.corrupt("UPDATE transfers SET state = 'FAILED' WHERE id = %s", old)
        await world.expect_violation("the history leads to state COMMITTED", full=False)

    play_audited(scene)


@pytest.mark.parametrize(
    ("direction", "kind", "state"),
    [("in", "rejected", "ROLLED_BACK"), ("out", "rejected", "FAILED"), ("in", "done", "COMMITTED")],
)
def test_two_operators_resolve_a_transfer_below_the_floor_of_the_core(
    play_audited: Play, monkeypatch: pytest.MonkeyPatch, direction: str, kind: str, state: str
) -> None:
    """As left by an older core, which accepted any floor."""
    monkeypatch.setattr(Core, "_latest_floor", lambda _: 2**128 - 1)

    async def scene(world: World) -> None:
        await endow(world.gate, BASE)
        world.core.unreachable = True
        part = next(part for part in parts(BASE) if part.direction == direction)
        receipt = await world.gate.engine.transfer(request_of(part, 1), 0)
        assert isinstance(receipt, Receipt)
        above = first_id(time_ms(receipt.transfer.id) + 1000)
        await world.core.retire(above)
        world.core.unreachable = False
        store = world.gate.store
        [(stuck,)] = await _until(
            store, "SELECT transfer_id FROM attempts WHERE reason = 'RETIRED'"
        )
        transfer = await operator_reads.one(store, stuck)
        assert transfer is not None
        proposal = Proposal(stuck, transfer.version, kind, "by hand", {"ticket": "OPS-1"}, "olga")
        number = await propose(world.gate, transfer, proposal)
        assert isinstance(number, int)
        resolution = await resolutions.find(store, number)
        assert resolution is not None
        assert not (await confirm(world.gate, resolution, "olga")).startswith(kind)
        assert (await confirm(world.gate, resolution, "anna")).startswith(kind)
        [(ended,)] = await _until(
            store, f"SELECT state FROM transfers WHERE id = '{stuck}' AND lane IS NULL"
        )
        assert ended == state
        # New ids are above the floor once the core has reported its floor.
        await world.core.close()
        await world.core.totals()
        more = await world.gate.engine.transfer(request_of(part, 2), 20)
        assert isinstance(more, Receipt)
        assert more.transfer.id > above
        assert more.transfer.state == "COMMITTED"
        # A resolution moves no money in the core. The sums show whether it was true.
        assert (await world.audit.run()).ok == (kind == "rejected")

    play_audited(scene)


async def _until(store: PostgresStore, statement: str) -> list[tuple[Any, ...]]:
    async with asyncio.timeout(30):
        while not (rows := await store.run(statement, {})):  # noqa: ASYNC110  No event to await.
            await asyncio.sleep(0.05)
    return rows


def test_the_alert_about_a_busy_owner_counts_by_creation_time(
    play_postgres: EnginePlay, database: str
) -> None:
    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        await PostgresFloors(rig.store).raise_to(in_a_day())
        watch, alerts = watch_alerts(rig)
        async with rig.engine() as engine:
            transfers = [await made(engine, request("in", 1)) for _ in range(31)]
            await watch.check()
            assert [alert.code for alert in alerts] == [AlertCode.OWNER_BUSY]
            await rig.ended(transfers)
            await asyncio.to_thread(_created_earlier, database)
            await watch.check()
        # Their ids are still ahead of the clock.
        assert [alert.cleared for alert in alerts] == [False, True]
        assert str(OWNER) in alerts[0].cause

    play_postgres(scene)


def _created_earlier(database: str) -> None:
    with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
        connection.execute("UPDATE transfers SET created_at = now() - interval '61 seconds'")


class RecordingCore:
    """A core that records the floors that it receives. It has its own clock."""

    def __init__(self) -> None:
        self.floor, self.latest = NO_FLOOR, first_id(2**47)
        self.floors: list[UUID] = []

    async def retire(self, floor: UUID) -> UUID:
        self.floors.append(floor)
        if floor <= self.latest:
            self.floor = max(self.floor, floor)
        return self.floor


def test_a_floor_is_stored_before_it_is_sent_and_sent_a_round_later() -> None:
    async def scene() -> None:
        now_s = 2_000_000_000.0
        store, core = MemoryStore(lambda: now_s), RecordingCore()
        retirement = Retirement(store, core.retire, lambda: now_s, lambda _: None)
        assert await retirement.round() is None
        stored = store.tables.floor
        assert (time_ms(stored), core.floors) == (int(now_s - HORIZON_S) * 1000, [])
        now_s += 600
        assert await retirement.round() == stored
        assert time_ms(store.tables.floor) - time_ms(stored) == 600_000

    asyncio.run(scene())


def test_a_repeated_round_sends_no_floor_too_soon() -> None:
    async def scene() -> None:
        now_s = 2_000_000_000.0
        store, core = MemoryStore(lambda: now_s), RecordingCore()

        async def retire(floor: UUID) -> UUID:
            if not core.floors:
                core.floors.append(floor)
                raise Unreachable("the core is unreachable")
            return await core.retire(floor)

        retirement = Retirement(store, retire, lambda: now_s, lambda _: None)
        await retirement.round()
        old = store.tables.floor
        now_s += 600
        with pytest.raises(Unreachable):
            await retirement.round()
        assert store.tables.floor > old
        await retirement.round()
        assert core.floors == [old, old]

    asyncio.run(scene())


def test_a_clock_that_is_ahead_raises_the_floor_by_at_most_the_skew() -> None:
    async def scene() -> None:
        now_s, ahead_s = 2_000_000_000.0, 7 * 24 * 3600.0
        store, core = MemoryStore(lambda: now_s + ahead_s), RecordingCore()
        retirement = Retirement(store, core.retire, lambda: now_s, lambda _: None)
        for _ in range(3):
            await retirement.round()
        latest = first_id(int((now_s - HORIZON_S + SKEW_S) * 1000))
        assert max(store.tables.floor, *core.floors) == latest

    asyncio.run(scene())


def test_an_alert_is_sent_when_the_core_refuses_a_floor() -> None:
    async def scene() -> None:
        alerts: list[Alert] = []
        store, core = MemoryStore(lambda: 2e9), RecordingCore()
        core.latest = NO_FLOOR
        retirement = Retirement(store, core.retire, lambda: 2e9, alerts.append)
        for _ in range(2):
            await retirement.round()
        [alert] = alerts
        assert (alert.alarm, alert.code) == (Alarm.PAGE, AlertCode.FLOOR_REFUSED)

    asyncio.run(scene())
