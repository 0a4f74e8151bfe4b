"""The database's clock is set back or forward: no row waits, no money moves twice."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias
from uuid import UUID

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.engine.rig import LEASE_S, OWNER, Execute, Outside, Refusing, Rig, made, request
from tests.engine.test_alert_watch import no_answer, watch_alerts
from tests.engine.venue import Venue
from tidegate.core.answers import Alarm, Answer
from tidegate.core.ports import InboxRequest
from tidegate.core.transfer import Question
from tidegate.engine import clock_repair
from tidegate.engine.alert_watch import AlertThresholds
from tidegate.engine.alerts import AlertCode
from tidegate.flows import FLOWS
from tidegate.store.flow_checks import checksums
from tidegate.store.inbox import MemoryInboxRow
from tidegate.store.memory_tables import MemoryTables
from tidegate.store.pipeline import text_of
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits, session_options
from tidegate.store.transaction import STATEMENTS
from tidegate.systems.ledger import Ledger, MemoryLedger

pytestmark = pytest.mark.slow

HOUR_S = 3600.0
TABLES = checksums(FLOWS.values())

# This function comes first in the search path, so that unchanged statements read our time.
CLOCK = f"""
CREATE TABLE {SCHEMA}.shifted (seconds float8 NOT NULL);
INSERT INTO {SCHEMA}.shifted VALUES (0);
GRANT SELECT ON {SCHEMA}.shifted TO tidegate_engine;
CREATE FUNCTION {SCHEMA}.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.now() + seconds * interval '1 second' FROM {SCHEMA}.shifted
$$;
"""

Step: TypeAlias = Callable[[float], None]
Opening: TypeAlias = Callable[[str], "AsyncIterator[tuple[Rig, Step]]"]


@asynccontextmanager
async def twin(_: str) -> AsyncIterator[tuple[Rig, Step]]:
    shifted = [0.0]
    store = Refusing(lambda: time.time() + shifted[0], MemoryTables(), lease_s=LEASE_S)
    yield (
        Rig(store, MemoryLedger(), Outside(Venue())),
        lambda by: shifted.append(shifted.pop() + by),
    )


@asynccontextmanager
async def postgres(database: str) -> AsyncIterator[tuple[Rig, Step]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(CLOCK)
        store = PostgresStore(database, SCHEMA, StoreLimits(lease_s=LEASE_S))
        kwargs = store._pool.kwargs
        assert isinstance(kwargs, dict)
        kwargs["options"] = kwargs["options"].replace(",tidegate", ",tidegate,pg_catalog")

        def step(by: float) -> None:
            connection.execute(f"UPDATE {SCHEMA}.shifted SET seconds = seconds + %s", (by,))

        async with store:
            yield Rig(store, Ledger(), Outside(Venue())), step


@pytest.fixture(params=[twin, postgres])
def opened(request: pytest.FixtureRequest, database: str) -> Callable[[], object]:
    return lambda: request.param(database)


@pytest.fixture(autouse=True)
def _short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_repair, "CHECK_S", 0.1)
    monkeypatch.setattr(clock_repair, "FAR_AHEAD_S", 5.0)


def play(opened: Callable[[], object], scene: Callable[[Rig, Step], object]) -> None:
    async def run() -> None:
        async with opened() as (rig, step):  # type: ignore[attr-defined]
            await rig.endow(1_000)
            await scene(rig, step)  # type: ignore[misc]

    asyncio.run(run())


def clock_alerts(rig: Rig) -> list[str]:
    return [alert.cause for alert in rig.alerts if alert.code is AlertCode.CLOCK_SET_BACK]


async def clock_alert(rig: Rig) -> None:
    until_s = time.monotonic() + 10
    while not clock_alerts(rig):
        assert time.monotonic() < until_s, "no alert about the clock"
        await asyncio.sleep(0.02)


async def leased_transfers(rig: Rig) -> list[object]:
    """Transfers that a worker leased before it was killed."""
    async with rig.engine(7) as engine:
        engine.lanes["venue"].stop()
        await asyncio.sleep(0.2)
        transfers = [await made(engine, request("in", 10)) for _ in range(3)]
    assert len(await rig.store.claim("venue", 10, TABLES)) == 3
    return list(transfers)


def test_rows_leased_before_a_step_back_are_due_again(
    opened: Callable[[], object],
) -> None:
    async def scene(rig: Rig, step: Step) -> None:
        await rig.store.mend_clock(None, 10)
        transfers = await leased_transfers(rig)
        step(-HOUR_S)
        async with rig.engine(1):
            ended = await rig.ended(transfers)  # type: ignore[arg-type]
        assert {t.state for t in ended} == {"COMMITTED"}
        assert rig.venue_account(OWNER).available == 1_030
        assert await rig.funding() == 970
        [message] = clock_alerts(rig)
        assert message.startswith("the database's clock was set back by 3")
        [alert] = [a for a in rig.alerts if a.alarm > Alarm.NONE]
        assert alert.alarm is Alarm.PAGE

    play(opened, scene)


def test_a_step_forward_ends_leases_early_and_moves_nothing_twice(
    opened: Callable[[], object],
) -> None:
    async def scene(rig: Rig, step: Step) -> None:
        released, asked = asyncio.Event(), asyncio.Event()

        async def slow(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            answers = execute()
            asked.set()
            await released.wait()
            return answers

        rig.outside.twist = slow
        async with rig.engine(1) as engine:
            transfer = await made(engine, request("out", 10))
            await asked.wait()
            step(HOUR_S)
            rig.outside.twist = None
            async with rig.engine(2):
                [ended] = await rig.ended([transfer])  # Asked again: the lease has ended.
            released.set()
            await asyncio.sleep(0.3)
            step(-HOUR_S)
            await clock_alert(rig)
            later = [await made(engine, request("in", 5)), await made(engine, request("out", 5))]
            await rig.ended(later)
        assert ended.state == "COMMITTED"
        assert len(rig.outside.calls) >= 2
        assert rig.venue_account(OWNER).available == 990
        assert await rig.funding() == 1_010

    play(opened, scene)


async def lease_by_the_old_clock(rig: Rig) -> None:
    """Lease rows as a transaction does that began before the clock was set back."""
    if isinstance(rig.store, PostgresStore):
        update = "UPDATE transfers SET due_at = due_at + interval '1 hour' WHERE lane = 'venue'"
        await rig.store.run(update, {})
        return
    rows = rig.store.tables.rows["transfers"]  # type: ignore[attr-defined]
    for key, row in rows.items():
        rows[key] = row._replace(due_s=row.due_s + HOUR_S)


def test_rows_leased_by_a_transaction_from_before_the_step_are_found(
    opened: Callable[[], object],
) -> None:
    async def scene(rig: Rig, step: Step) -> None:
        await rig.store.mend_clock(None, 10)
        step(-HOUR_S)
        async with rig.engine(1) as engine:
            await clock_alert(rig)
            engine.lanes["venue"].stop()
            await asyncio.sleep(0.2)
            transfer = await made(engine, request("in", 10))
            await lease_by_the_old_clock(rig)
            async with rig.engine(2):
                await rig.ended([transfer])
        assert len(clock_alerts(rig)) == 1

    play(opened, scene)


def test_a_clock_that_was_ahead_for_a_short_time_is_detected_by_the_leases_of_that_time(
    opened: Callable[[], object],
) -> None:
    async def scene(rig: Rig, step: Step) -> None:
        await rig.store.mend_clock(None, 10)
        step(HOUR_S)
        await leased_transfers(rig)
        step(-HOUR_S)  # Before any process has read the clock.
        behind_s, mended = await rig.store.mend_clock(None, 10)
        assert (round(behind_s / 100), mended) == (36, 3)

    play(opened, scene)


def test_mon_001_alerts_although_the_clock_was_set_back(database: str) -> None:
    async def scene(rig: Rig, step: Step) -> None:
        watch, alerts = watch_alerts(rig, AlertThresholds(stuck_s=1.0))
        rig.outside.twist = no_answer
        async with rig.engine(1) as engine:
            transfer = await made(engine, request("in", 5))
            step(-HOUR_S)
            until_s = time.monotonic() + 15
            while not alerts:
                assert time.monotonic() < until_s, "no alert MON-001"
                await asyncio.sleep(0.1)
                await watch.check()
            [alert] = alerts
            assert (alert.code, alert.transfer_id) == (AlertCode.TARGET_PENDING, transfer.id)
            assert alert.age_s is not None
            assert 1.0 <= alert.age_s < 15
            rig.outside.twist = None
            await rig.ended([transfer])

    play(lambda: postgres(database), scene)


def test_without_a_step_no_row_is_changed(opened: Callable[[], object]) -> None:
    async def scene(rig: Rig, step: Step) -> None:
        await leased_transfers(rig)
        for by in (0.0, -1.5, 1.5, 600.0):
            step(by)
            assert await rig.store.mend_clock(None, 10) == (0.0, 0)
        assert len(await rig.store.claim("venue", 10, TABLES)) == 3, "their leases have ended"
        step(-600.0)
        behind_s, mended = await rig.store.mend_clock(None, 2)
        assert (round(behind_s / 10), mended) == (60, 2), "no more rows than the limit"
        assert await rig.store.mend_clock(0.0, 2) == (0.0, 1)
        assert await rig.store.mend_clock(0.0, 2) == (0.0, 0)

    play(opened, scene)


def test_leased_requests_of_the_inbox_are_due_again_after_a_step_back(
    opened: Callable[[], object],
) -> None:
    async def scene(rig: Rig, step: Step) -> None:
        await rig.store.mend_clock(None, 10)
        id_ = UUID(int=77)
        if isinstance(rig.store, PostgresStore):
            statement = (
                "INSERT INTO inbox (id, owner, flow, asset_id, amount, terms, space, due_at)"
                " VALUES (%(id)s, 7, 'internal_transfer', 3, 5, '{}', 'test', now())"
            )
            with psycopg.connect(str(rig.store._pool.conninfo), autocommit=True) as connection:
                connection.execute(f"SET search_path TO {SCHEMA}")
                connection.execute(statement, {"id": id_})
        else:
            flow, space = "internal_transfer", "test"
            inbox_request = InboxRequest(
                id_, 7, flow, 3, 5, {}, space, None, None, expired=False, attempts=0
            )
            row = MemoryInboxRow(inbox_request, round(time.time() * 1_000_000))
            rig.store.tables.rows["inbox"][id_] = row  # type: ignore[attr-defined]
        assert len(await rig.store.inbox.claim(TABLES, 10)) == 1, "it is leased"
        step(-HOUR_S)
        assert await rig.store.inbox.claim(TABLES, 10) == []
        behind_s, mended = await rig.store.mend_clock(None, 10)
        assert (round(behind_s / 100), mended) == (36, 1)
        assert len(await rig.store.inbox.claim(TABLES, 10)) == 1

    play(opened, scene)


def test_while_the_clock_is_right_the_statement_reads_no_transfer(database: str) -> None:
    statement = text_of(STATEMENTS["mend_clock"])
    with psycopg.connect(database, options=session_options(SCHEMA, StoreLimits())) as connection:
        connection.execute(f"PREPARE mend AS {statement.sql.decode()}")
        values = {"beyond_s": "NULL", "limit": "10", "seen_us": "0"}
        arguments = ", ".join(values[name] for name in statement.names)
        [(tree,)] = connection.execute(
            f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE mend ({arguments})"
        ).fetchall()
    plans = [json.loads(tree)[0]["Plan"] if isinstance(tree, str) else tree[0]["Plan"]]
    loops = []
    while plans:
        plan = plans.pop()
        plans += plan.get("Plans", ())
        if plan.get("Relation Name") in ("transfers", "inbox") and "Scan" in plan["Node Type"]:
            loops.append(plan["Actual Loops"])
    assert loops, "the plan contains a scan of the table"
    assert set(loops) == {0}
