"""Transfers handed over inside a process are in no index of due rows, but are never lost."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.contracts.stores import OURS, answer, key_of, new_transfer
from tests.moves import moves_of
from tests.store.older import migrate_until
from tests.store.scenario import (
    EngineSetup,
    deposit,
    rows,
    run_to_end,
    running,
    superuser,
    to_remote,
)
from tidegate.core.answers import Done, Unknown
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.kind import Transfer
from tidegate.core.transfer import Move
from tidegate.flows import FLOWS
from tidegate.store.audit_progress import LAST_ID, AuditProgress, advance
from tidegate.store.floors import PostgresFloors
from tidegate.store.migrate import migrate
from tidegate.store.postgres import MAX_LISTS, PostgresStore
from tidegate.store.sessions import StoreLimits

LEASE_S = 0.4
Scenario = Callable[[PostgresStore], Awaitable[None]]


def run(database: str, scenario: Scenario, lease_s: float = LEASE_S) -> None:
    async def run_scenario() -> None:
        async with PostgresStore(database, SCHEMA, StoreLimits(lease_s=lease_s)) as store:
            await scenario(store)

    asyncio.run(run_scenario())


async def hand_over(store: PostgresStore, *transfers: Transfer) -> Sequence[Transfer]:
    """Create transfers that are handed over inside this process."""
    async with store.transaction() as tx:
        await store.reserve(tx, [key_of(t) for t in transfers])
        moves = moves_of([Move(None, transfer) for transfer in transfers])
        return await store.write(tx, moves, [True] * len(transfers))


def lanes_of(database: str, id_: UUID) -> Any:
    [row] = rows(database, "SELECT lane, due_lane, held FROM transfers WHERE id = %s", id_)
    return row


def lists(database: str) -> list[list[UUID]]:
    return [row[0] for row in rows(database, "SELECT ids FROM handovers ORDER BY number")]


def test_most_moves_are_heap_only_updates(database: str) -> None:
    """At least 95 of 100 moves are HOT updates, which write no index entries."""

    async def work() -> None:
        async with running(EngineSetup(database)) as engine:
            await run_to_end(engine, deposit(1, 10_000))
            for _ in range(8):
                await asyncio.gather(*[run_to_end(engine, to_remote(1, 1)) for _ in range(60)])

    asyncio.run(work())
    deadline = time.monotonic() + 20
    counts = (0, 0)
    while counts[0] < 480 and time.monotonic() < deadline:
        time.sleep(0.2)
        [counts] = rows(
            database,
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'transfers'",
        )
    assert counts[0] >= 480
    assert counts[1] >= 0.95 * counts[0], counts
    assert rows(database, "SELECT count(*) FROM transfers WHERE due_lane IS NOT NULL") == [(0,)]


def test_transfers_held_by_a_dead_process_are_claimed_after_the_lease(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        kept, other = new_transfer(), new_transfer()
        await hand_over(store, kept, other)
        assert lanes_of(database, kept.id) == ("venue", None, True)
        assert lists(database) == [[kept.id, other.id]]
        assert await store.due(["venue"], OURS) == []
        assert await store.claim("venue", 5, OURS) == []
        await asyncio.sleep(LEASE_S + 0.05)
        assert await store.due(["venue"], OURS) == ["venue"]
        assert lanes_of(database, kept.id) == ("venue", "venue", False)
        assert {t.id for t in await store.claim("venue", 5, OURS)} == {kept.id, other.id}
        assert lists(database) == []

    run(database, scenario)


def test_a_claim_finds_lapsed_transfers_without_a_call_of_due(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        kept = new_transfer()
        await hand_over(store, kept)
        await asyncio.sleep(LEASE_S + 0.05)
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [kept.id]

    run(database, scenario)


def test_a_locked_row_stays_listed_until_it_is_unlocked(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        locked, free = new_transfer(), new_transfer()
        await hand_over(store, locked, free)
        await asyncio.sleep(LEASE_S + 0.05)
        with superuser(database) as other, other.transaction():
            other.execute("SELECT FROM transfers WHERE id = %s FOR UPDATE", (locked.id,))
            began = time.monotonic()
            assert [t.id for t in await store.claim("venue", 5, OURS)] == [free.id]
            assert time.monotonic() - began < 1, "the claim waited for a lock"
            assert lists(database) == [[locked.id, free.id]]
            assert lanes_of(database, locked.id) == ("venue", None, True)
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [locked.id]
        assert lists(database) == []

    run(database, scenario)


def test_a_list_is_deleted_when_none_of_its_transfers_is_held(database: str) -> None:
    """Lists are read a second after they were written, long before the lease is over."""

    async def scenario(store: PostgresStore) -> None:
        first, second = new_transfer(), new_transfer()
        [ended, held] = await hand_over(store, first, second)
        moved = await _move_to_next_lane(store, ended)
        assert await store.due(["venue"], OURS) == []
        assert len(lists(database)) == 2, "lists younger than a second are not read"
        await asyncio.sleep(1.1)
        await answer(store, [moved], Done())
        assert await store.due(["venue"], OURS) == []
        assert lists(database) == [[first.id, second.id]], "one of them is still held"
        await _move_to_next_lane(store, held)
        await store.due(["venue"], OURS)
        # It is held again through a newer list. That the first list contains it too does no harm.
        assert lanes_of(database, second.id) == ("other", None, True)
        assert [second.id] in lists(database)

    run(database, scenario, lease_s=5.0)


async def _move_to_next_lane(store: PostgresStore, transfer: Transfer) -> Transfer:
    """The venue has answered Done: the transfer is handed over to the next lane."""
    [flow] = [flow for flow in FLOWS.values() if flow.name == transfer.flow]
    async with store.transaction() as tx:
        locked = await store.lock(tx, [transfer])
        moves = moves_of([decide(flow, t, Done(), DecisionContext()) for t in locked])
        [row] = await store.write(tx, moves, [True])
    return row


def test_a_row_that_is_held_again_is_claimed_after_its_first_list_lapses(
    database: str,
) -> None:
    async def scenario(store: PostgresStore) -> None:
        transfer = new_transfer()
        [held] = await hand_over(store, transfer)
        await asyncio.sleep(LEASE_S - 0.15)
        await _move_to_next_lane(store, held)
        await asyncio.sleep(0.2)
        # The first list has lapsed: the row is in the index, and due when its lease is over.
        assert await store.claim("other", 5, OURS) == []
        await asyncio.sleep(LEASE_S)
        assert [t.id for t in await store.claim("other", 5, OURS)] == [transfer.id]
        assert lists(database) == []

    run(database, scenario)


def test_a_released_transfer_is_in_the_index_at_once(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        transfer = new_transfer()
        held = await hand_over(store, transfer)
        await store.release(held)
        assert lanes_of(database, transfer.id) == ("venue", "venue", False)
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [transfer.id]

    run(database, scenario)


def test_a_retry_waits_in_the_index(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        transfer = new_transfer()
        [held] = await hand_over(store, transfer)
        await answer(store, [held], Unknown("timeout"))
        assert lanes_of(database, transfer.id) == ("venue", "venue", False)

    run(database, scenario)


def test_a_row_with_a_deadline_is_never_held(database: str) -> None:
    """It is due at its deadline, which may be long before the lease is over."""

    async def scenario(store: PostgresStore) -> None:
        late = new_transfer()
        async with store.transaction() as tx:
            moves = moves_of([Move(None, late, deadline_s=0.1)])
            await store.write(tx, moves, [True])
        assert lanes_of(database, late.id) == ("venue", "venue", False)
        assert lists(database) == []
        await asyncio.sleep(0.15)
        [claimed] = await store.claim("venue", 5, OURS)
        assert claimed.expired

    run(database, scenario, lease_s=5.0)


def test_held_transfers_are_due_at_once_when_the_clock_was_set_back(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        transfer = new_transfer()
        await hand_over(store, transfer)
        hour = "interval '1 hour'"
        with superuser(database) as connection:
            connection.execute(f"UPDATE store_clock SET latest = now() + {hour}")
            connection.execute(f"UPDATE handovers SET until = until + {hour}")
            connection.execute(f"UPDATE transfers SET due_at = due_at + {hour}")
        behind_s, mended = await store.mend_clock(None, 100)
        assert behind_s > 3000
        assert mended == 1
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [transfer.id]
        await store.due(["venue"], OURS)
        assert lists(database) == [], "a list from the future was kept"

    run(database, scenario)


def test_all_waiting_transfers_are_repaired_when_the_clock_was_set_back(database: str) -> None:
    """The caller repeats `mend_clock` while the limit is reached, in the index or in the lists."""

    async def scenario(store: PostgresStore) -> None:
        held, waiting = [new_transfer() for _ in range(3)], [new_transfer() for _ in range(5)]
        await hand_over(store, *held)
        async with store.transaction() as tx:
            moves = moves_of([Move(None, t, delay_s=60.0) for t in waiting])
            await store.write(tx, moves, [False] * len(waiting))
        with superuser(database) as connection:
            connection.execute("UPDATE store_clock SET latest = now() + interval '1 hour'")
            connection.execute("UPDATE transfers SET due_at = due_at + interval '1 hour'")
        _, mended = await store.mend_clock(None, 2)
        while mended == 2:
            _, mended = await store.mend_clock(0.0, 2)
        claimed = await store.claim("venue", 20, OURS)
        assert {t.id for t in claimed} == {t.id for t in (*held, *waiting)}

    run(database, scenario, lease_s=5.0)


def test_held_transfers_are_in_the_view_of_open_transfers(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        [held] = await hand_over(store, new_transfer())
        waiting = new_transfer()
        async with store.transaction() as tx:
            await store.write(tx, moves_of([Move(None, waiting)]), [False])
        found = rows(database, "SELECT id FROM open_transfers ORDER BY id")
        assert found == [(held.id,), (waiting.id,)]
        assert await PostgresFloors(store).lowest(0) == held.id
        await hand_over(store, new_transfer())
        async with store.transaction() as tx:
            locked = await store.lock(tx, [held])
            await store.write(tx, moves_of([_unchanged(t) for t in locked]), [True])
        # Each transfer is in the view once, although one of them is in two lists and in the index.
        found = rows(database, "SELECT count(*), count(DISTINCT id) FROM open_transfers")
        assert found == [(3, 3)]

    run(database, scenario, lease_s=5.0)


def _unchanged(transfer: Transfer) -> Move:
    return Move(transfer, transfer)


def test_two_processes_at_once_lapse_each_row_once(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        transfers = [new_transfer() for _ in range(40)]
        for start in range(0, 40, 4):
            await hand_over(store, *transfers[start : start + 4])
        await asyncio.sleep(2 * LEASE_S + 0.05)
        async with PostgresStore(database, SCHEMA, StoreLimits(lease_s=5.0)) as other:
            for _ in range(3):
                await asyncio.gather(*[s.due(["venue"], OURS) for s in (store, other) * 3])
            claimed = await asyncio.gather(*[s.claim("venue", 40, OURS) for s in (store, other)])
        ids = [t.id for batch in claimed for t in batch]
        assert sorted(ids) == sorted(t.id for t in transfers)
        assert lists(database) == []

    run(database, scenario, lease_s=2 * LEASE_S)


def test_one_call_reads_a_bounded_number_of_lists(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        for _ in range(3):
            await hand_over(store, new_transfer())
        with superuser(database) as connection:
            connection.execute(
                "INSERT INTO handovers (until, ids)"
                " SELECT now() - interval '1 minute', '{}' FROM generate_series(1, %s)",
                (MAX_LISTS,),
            )
        await asyncio.sleep(LEASE_S + 0.05)
        await store.due(["venue"], OURS)
        assert len(lists(database)) == 3
        assert await store.due(["venue"], OURS) == ["venue"]

    run(database, scenario)


def test_the_audit_finds_held_transfers_that_are_in_no_list(database: str) -> None:
    """An operator has deleted lists by hand. The sweep reads every transfer within a day."""

    async def scenario(store: PostgresStore) -> None:
        lost, kept = new_transfer(), new_transfer()
        await hand_over(store, lost)
        with superuser(database) as connection:
            connection.execute("DELETE FROM handovers")
        await hand_over(store, kept)
        assert rows(database, "SELECT id FROM open_transfers") == [(kept.id,)]
        start = AuditProgress(UUID(int=0), 0, 0, 0, 0.0, 0, 0)
        found = await advance(store, start, start._replace(id=LAST_ID))
        assert found == [(lost.id, "venue", "SOURCE_PENDING")]
        assert lanes_of(database, kept.id) == ("venue", None, True)
        await asyncio.sleep(LEASE_S + 0.05)
        assert {t.id for t in await store.claim("venue", 5, OURS)} == {lost.id, kept.id}
        assert await advance(store, start, start._replace(id=LAST_ID)) == []

    run(database, scenario)


OLDER_INSERT = """
    INSERT INTO transfers (id, owner, flow, state, lane, due_at, version, attempts, retries, paged,
                           parties, asset_id, amount, head_hash, created_at, updated_at)
    VALUES (gen_random_uuid(), 1, 'internal_transfer', 'SOURCE_PENDING', {}, now(), 0, 0, 0, false,
            '{{}}', 3, 1, '', now(), now())
"""


def test_an_older_process_cannot_write_rows_that_no_claim_would_find(database: str) -> None:
    """It does not fill the column of the index of the due: its writes are refused, and so nothing
    is lost.
    """

    async def scenario(store: PostgresStore) -> None:
        transfer = new_transfer()
        async with store.transaction() as tx:
            await store.write(tx, moves_of([Move(None, transfer)]), [False])
        ended = "UPDATE transfers SET lane = NULL, state = 'FAILED', version = 1 WHERE id = %s"
        onward = "UPDATE transfers SET lane = 'core' WHERE id = %s"
        for statement, values in (
            (OLDER_INSERT.format("'venue'"), ()),
            (ended, (transfer.id,)),
            (onward, (transfer.id,)),
        ):
            with (
                superuser(database) as connection,
                pytest.raises(psycopg.errors.CheckViolation) as caught,
            ):
                connection.execute(statement, values)
            assert caught.value.diag.constraint_name == "transfers_values"
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [transfer.id]

    run(database, scenario)


def test_open_transfers_of_an_older_store_are_found_after_the_migration(
    unmigrated: str,
) -> None:
    migrate_until(unmigrated, {"shared": 2, "store": 21, "economy": 8})
    with superuser(unmigrated) as connection:
        connection.execute(OLDER_INSERT.format("'venue'"))
        connection.execute(
            OLDER_INSERT.format("NULL").replace("SOURCE_PENDING", "FAILED").replace(" 1, ", " 2, ")
        )
    migrate(unmigrated, SCHEMA, FLOWS.values(), economy=True)

    async def scenario(store: PostgresStore) -> None:
        assert await store.due(["venue"], OURS) == ["venue"]
        [row] = rows(unmigrated, "SELECT count(*) FROM open_transfers")
        assert row == (1,)
        [definition] = rows(unmigrated, "SELECT pg_get_indexdef('transfers_due'::regclass)")
        assert "(due_lane, flow, due_at)" in definition[0]

    run(unmigrated, scenario)
