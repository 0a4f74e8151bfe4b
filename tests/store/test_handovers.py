"""What is handed over inside a process touches no index, and is asked about again all the same."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.contracts.stores import OURS, answer, key_of, new_transfer
from tests.store.older import migrate_until
from tests.store.scenario import Setting, deposit, moved, rows, running, superuser, to_remote
from tidegate.core.answers import Done, Unknown
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.kind import Transfer
from tidegate.core.moves import moves_of
from tidegate.core.transfer import Move
from tidegate.flows import FLOWS
from tidegate.store.audit_progress import LAST_ID, AuditProgress, advance
from tidegate.store.floors import PostgresFloors
from tidegate.store.migrate import migrate
from tidegate.store.postgres import MAX_LISTS, PostgresStore
from tidegate.store.sessions import StoreLimits

LEASE_S = 0.4
Scene = Callable[[PostgresStore], Awaitable[None]]


def play(database: str, scene: Scene, lease_s: float = LEASE_S) -> None:
    async def whole() -> None:
        async with PostgresStore(database, SCHEMA, StoreLimits(lease_s=lease_s)) as store:
            await scene(store)

    asyncio.run(whole())


async def handed(store: PostgresStore, *transfers: Transfer) -> Sequence[Transfer]:
    """Create them as what is handed over inside this process."""
    async with store.transaction() as tx:
        await store.reserve(tx, [key_of(t) for t in transfers])
        moves = moves_of([Move(None, transfer) for transfer in transfers])
        return await store.write(tx, moves, [True] * len(transfers))


def standing(database: str, id_: UUID) -> Any:
    [row] = rows(database, "SELECT lane, due_lane, held FROM transfers WHERE id = %s", id_)
    return row


def lists(database: str) -> list[list[UUID]]:
    return [row[0] for row in rows(database, "SELECT ids FROM handovers ORDER BY number")]


def test_a_transfers_second_version_stays_on_its_page(database: str) -> None:
    """At least 95 of 100 moves are HOT updates, so that they write no entry of an index."""

    async def work() -> None:
        async with running(Setting(database)) as engine:
            await moved(engine, deposit(1, 10_000))
            for _ in range(8):
                await asyncio.gather(*[moved(engine, to_remote(1, 1)) for _ in range(60)])

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


def test_what_a_process_held_when_it_died_is_claimed_after_its_lease(database: str) -> None:
    async def scene(store: PostgresStore) -> None:
        kept, other = new_transfer(), new_transfer()
        await handed(store, kept, other)
        assert standing(database, kept.id) == ("venue", None, True)
        assert lists(database) == [[kept.id, other.id]]
        assert await store.due(["venue"], OURS) == []
        assert await store.claim("venue", 5, OURS) == []
        await asyncio.sleep(LEASE_S + 0.05)
        assert await store.due(["venue"], OURS) == ["venue"]
        assert standing(database, kept.id) == ("venue", "venue", False)
        assert {t.id for t in await store.claim("venue", 5, OURS)} == {kept.id, other.id}
        assert lists(database) == []

    play(database, scene)


def test_a_claim_finds_what_has_lapsed_without_a_look_before_it(database: str) -> None:
    async def scene(store: PostgresStore) -> None:
        kept = new_transfer()
        await handed(store, kept)
        await asyncio.sleep(LEASE_S + 0.05)
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [kept.id]

    play(database, scene)


def test_a_row_that_somebody_has_locked_stays_listed_until_it_is_free(database: str) -> None:
    async def scene(store: PostgresStore) -> None:
        locked, free = new_transfer(), new_transfer()
        await handed(store, locked, free)
        await asyncio.sleep(LEASE_S + 0.05)
        with superuser(database) as other, other.transaction():
            other.execute("SELECT FROM transfers WHERE id = %s FOR UPDATE", (locked.id,))
            began = time.monotonic()
            assert [t.id for t in await store.claim("venue", 5, OURS)] == [free.id]
            assert time.monotonic() - began < 1, "nobody waits for a lock here"
            assert lists(database) == [[locked.id, free.id]]
            assert standing(database, locked.id) == ("venue", None, True)
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [locked.id]
        assert lists(database) == []

    play(database, scene)


def test_a_list_is_deleted_once_all_of_it_has_ended_and_not_before(database: str) -> None:
    """Lists are looked at a second after they were written, long before the lease is over."""

    async def scene(store: PostgresStore) -> None:
        ends, waits = new_transfer(), new_transfer()
        [ended, held] = await handed(store, ends, waits)
        asked = await _asked_on(store, ended)
        assert await store.due(["venue"], OURS) == []
        assert len(lists(database)) == 2, "not yet a second old"
        await asyncio.sleep(1.1)
        await answer(store, [asked], Done())
        assert await store.due(["venue"], OURS) == []
        assert lists(database) == [[ends.id, waits.id]], "one of it is still held"
        await _asked_on(store, held)
        await store.due(["venue"], OURS)
        # Held again by its newer list; the first one names it as well, and harms nothing.
        assert standing(database, waits.id) == ("other", None, True)
        assert [waits.id] in lists(database)

    play(database, scene, lease_s=5.0)


async def _asked_on(store: PostgresStore, transfer: Transfer) -> Transfer:
    """The venue has said Done: the transfer is handed over to the next lane."""
    [flow] = [flow for flow in FLOWS.values() if flow.name == transfer.flow]
    async with store.transaction() as tx:
        fresh = await store.lock(tx, [transfer])
        moves = moves_of([decide(flow, t, Done(), DecisionContext()) for t in fresh])
        [row] = await store.write(tx, moves, [True])
    return row


def test_a_row_that_is_held_again_is_claimed_after_the_lapse_of_its_first_list(
    database: str,
) -> None:
    async def scene(store: PostgresStore) -> None:
        one = new_transfer()
        [held] = await handed(store, one)
        await asyncio.sleep(LEASE_S - 0.15)
        await _asked_on(store, held)
        await asyncio.sleep(0.2)
        # The first list is over: the row goes into the index, and is due when its lease is over.
        assert await store.claim("other", 5, OURS) == []
        await asyncio.sleep(LEASE_S)
        assert [t.id for t in await store.claim("other", 5, OURS)] == [one.id]
        assert lists(database) == []

    play(database, scene)


def test_what_is_given_back_is_in_the_index_at_once(database: str) -> None:
    async def scene(store: PostgresStore) -> None:
        one = new_transfer()
        held = await handed(store, one)
        await store.release(held)
        assert standing(database, one.id) == ("venue", "venue", False)
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [one.id]

    play(database, scene)


def test_a_retry_waits_in_the_index(database: str) -> None:
    async def scene(store: PostgresStore) -> None:
        one = new_transfer()
        [held] = await handed(store, one)
        await answer(store, [held], Unknown("timeout"))
        assert standing(database, one.id) == ("venue", "venue", False)

    play(database, scene)


def test_a_row_under_a_deadline_is_never_held(database: str) -> None:
    """It is due at its deadline, which may come long before the lease is over."""

    async def scene(store: PostgresStore) -> None:
        late = new_transfer()
        async with store.transaction() as tx:
            moves = moves_of([Move(None, late, deadline_s=0.1)])
            await store.write(tx, moves, [True])
        assert standing(database, late.id) == ("venue", "venue", False)
        assert lists(database) == []
        await asyncio.sleep(0.15)
        [claimed] = await store.claim("venue", 5, OURS)
        assert claimed.expired

    play(database, scene, lease_s=5.0)


def test_what_is_held_is_due_at_once_when_the_clock_was_set_back(database: str) -> None:
    async def scene(store: PostgresStore) -> None:
        one = new_transfer()
        await handed(store, one)
        hour = "interval '1 hour'"
        with superuser(database) as connection:
            connection.execute(f"UPDATE store_clock SET latest = now() + {hour}")
            connection.execute(f"UPDATE handovers SET until = until + {hour}")
            connection.execute(f"UPDATE transfers SET due_at = due_at + {hour}")
        behind_s, mended = await store.mend_clock(None, 100)
        assert behind_s > 3000
        assert mended == 1
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [one.id]
        await store.due(["venue"], OURS)
        assert lists(database) == [], "a list from the future is not kept for an hour"

    play(database, scene)


def test_all_that_waits_is_mended_when_the_clock_was_set_back(database: str) -> None:
    """Whoever mends goes on as long as the limit is reached, in the index or in the lists."""

    async def scene(store: PostgresStore) -> None:
        held, waiting = [new_transfer() for _ in range(3)], [new_transfer() for _ in range(5)]
        await handed(store, *held)
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

    play(database, scene, lease_s=5.0)


def test_what_is_held_is_seen_by_all_who_look_at_what_is_open(database: str) -> None:
    async def scene(store: PostgresStore) -> None:
        [held] = await handed(store, new_transfer())
        waits = new_transfer()
        async with store.transaction() as tx:
            await store.write(tx, moves_of([Move(None, waits)]), [False])
        found = rows(database, "SELECT id FROM open_transfers ORDER BY id")
        assert found == [(held.id,), (waits.id,)]
        assert await PostgresFloors(store).lowest(0) == held.id
        await handed(store, new_transfer())
        async with store.transaction() as tx:
            fresh = await store.lock(tx, [held])
            await store.write(tx, moves_of([_stays(t) for t in fresh]), [True])
        # However many lists name it, and although it is in the index now.
        found = rows(database, "SELECT count(*), count(DISTINCT id) FROM open_transfers")
        assert found == [(3, 3)]

    play(database, scene, lease_s=5.0)


def _stays(transfer: Transfer) -> Move:
    return Move(transfer, transfer)


def test_two_processes_that_look_at_once_free_each_row_once(database: str) -> None:
    async def scene(store: PostgresStore) -> None:
        many = [new_transfer() for _ in range(40)]
        for start in range(0, 40, 4):
            await handed(store, *many[start : start + 4])
        await asyncio.sleep(2 * LEASE_S + 0.05)
        async with PostgresStore(database, SCHEMA, StoreLimits(lease_s=5.0)) as other:
            for _ in range(3):
                await asyncio.gather(*[s.due(["venue"], OURS) for s in (store, other) * 3])
            claimed = await asyncio.gather(*[s.claim("venue", 40, OURS) for s in (store, other)])
        ids = [t.id for some in claimed for t in some]
        assert sorted(ids) == sorted(t.id for t in many)
        assert lists(database) == []

    play(database, scene, lease_s=2 * LEASE_S)


def test_one_look_goes_through_a_bounded_number_of_lists(database: str) -> None:
    async def scene(store: PostgresStore) -> None:
        for _ in range(3):
            await handed(store, new_transfer())
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

    play(database, scene)


def test_the_audit_finds_what_no_list_names(database: str) -> None:
    """Somebody has deleted lists by hand. The sweep reads every transfer within a day."""

    async def scene(store: PostgresStore) -> None:
        lost, kept = new_transfer(), new_transfer()
        await handed(store, lost)
        with superuser(database) as connection:
            connection.execute("DELETE FROM handovers")
        await handed(store, kept)
        assert rows(database, "SELECT id FROM open_transfers") == [(kept.id,)]
        begun = AuditProgress(UUID(int=0), 0, 0, 0, 0.0, 0, 0)
        found = await advance(store, begun, begun._replace(id=LAST_ID))
        assert found == [(lost.id, "venue", "SOURCE_PENDING")]
        assert standing(database, kept.id) == ("venue", None, True)
        await asyncio.sleep(LEASE_S + 0.05)
        assert {t.id for t in await store.claim("venue", 5, OURS)} == {lost.id, kept.id}
        assert await advance(store, begun, begun._replace(id=LAST_ID)) == []

    play(database, scene)


OLDER_INSERT = """
    INSERT INTO transfers (id, owner, flow, state, lane, due_at, version, attempts, retries, paged,
                           parties, asset_id, amount, head_hash, created_at, updated_at)
    VALUES (gen_random_uuid(), 1, 'internal_transfer', 'SOURCE_PENDING', {}, now(), 0, 0, 0, false,
            '{{}}', 3, 1, '', now(), now())
"""


def test_a_process_of_an_older_version_cannot_write_what_nobody_would_find(database: str) -> None:
    """It knows nothing of the index of the due: what it writes is refused, and nothing is lost."""

    async def scene(store: PostgresStore) -> None:
        one = new_transfer()
        async with store.transaction() as tx:
            await store.write(tx, moves_of([Move(None, one)]), [False])
        ended = "UPDATE transfers SET lane = NULL, state = 'FAILED', version = 1 WHERE id = %s"
        onward = "UPDATE transfers SET lane = 'core' WHERE id = %s"
        for statement, values in (
            (OLDER_INSERT.format("'venue'"), ()),
            (ended, (one.id,)),
            (onward, (one.id,)),
        ):
            with (
                superuser(database) as connection,
                pytest.raises(psycopg.errors.CheckViolation) as caught,
            ):
                connection.execute(statement, values)
            assert caught.value.diag.constraint_name == "transfers_values"
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [one.id]

    play(database, scene)


def test_open_transfers_of_an_older_store_are_found_after_the_migration(bare: str) -> None:
    migrate_until(bare, {"shared": 2, "store": 21, "economy": 8})
    with superuser(bare) as connection:
        connection.execute(OLDER_INSERT.format("'venue'"))
        connection.execute(
            OLDER_INSERT.format("NULL").replace("SOURCE_PENDING", "FAILED").replace(" 1, ", " 2, ")
        )
    migrate(bare, SCHEMA, FLOWS.values())

    async def scene(store: PostgresStore) -> None:
        assert await store.due(["venue"], OURS) == ["venue"]
        [row] = rows(bare, "SELECT count(*) FROM open_transfers")
        assert row == (1,)
        [definition] = rows(bare, "SELECT pg_get_indexdef('transfers_due'::regclass)")
        assert "(due_lane, flow, due_at)" in definition[0]

    play(bare, scene)
