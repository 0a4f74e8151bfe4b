"""What the engine relies on in a store, put to PostgreSQL and to the twin."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.conftest import SCHEMA
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.decide import Terms, decide
from tidegate.core.ports import Birth, CidTaken, Store, StoreFault
from tidegate.core.request import Request, transfer_of
from tidegate.core.transfer import Move, Party, Transfer
from tidegate.flows import FLOWS
from tidegate.store.memory import MemoryStore
from tidegate.store.postgres import Bounds, PostgresStore

FLOW = FLOWS["internal_transfer"]
_numbers = itertools.count(1)

AnyStore: TypeAlias = Store[Any]
Scene: TypeAlias = Callable[[AnyStore], Awaitable[None]]
Play: TypeAlias = Callable[[Scene], None]


@asynccontextmanager
async def postgres(database: str) -> AsyncIterator[AnyStore]:
    async with PostgresStore(database, SCHEMA, Bounds(lease_s=0.3)) as store:
        yield store


@asynccontextmanager
async def twin(_: str) -> AsyncIterator[AnyStore]:
    yield MemoryStore(time.time, lease_s=0.3)


@pytest.fixture(params=[postgres, twin], ids=["postgres", "twin"])
def play(request: pytest.FixtureRequest, database: str) -> Play:
    async def whole(scene: Scene) -> None:
        async with request.param(database) as store:
            await scene(store)

    return lambda scene: asyncio.run(whole(scene))


def newborn(lane: str = "venue", owner: int = 1) -> Transfer:
    parties = {"source": Party(lane, "SPOT", owner), "target": Party("other", "BOOK", owner)}
    id_ = UUID(int=int(time.time() * 1000) << 80 | next(_numbers))
    return transfer_of(Request(owner, FLOW.name, parties, 3, 100), FLOW, id_)


def birth(transfer: Transfer, cid: str | None = None) -> Birth:
    return Birth(Move(transfer, transfer), cid or str(transfer.id), b"print")


async def insert(store: AnyStore, *transfers: Transfer) -> None:
    async with store.transaction() as tx:
        await store.insert(tx, [birth(t) for t in transfers], [False] * len(transfers))


async def answer(store: AnyStore, transfers: Sequence[Transfer], given: Answer) -> int:
    """Decide and record, as the engine does; how many were still at their version."""
    async with store.transaction() as tx:
        fresh = await store.lock(tx, transfers)
        moves = [decide(FLOW, t, given, Terms()) for t in fresh]
        await store.record(tx, moves, [False] * len(moves))
    return len(moves)


async def one(store: AnyStore, id_: UUID) -> Transfer:
    [found] = await store.find([id_])
    return found


def test_what_was_inserted_is_found_as_it_was(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        first = replace(newborn(), detail={"memo": "«½»"}, trace="t-1", cid="c", parent=UUID(int=5))
        await insert(store, first)
        found = await one(store, first.id)
        times = {"created_us": found.created_us, "updated_us": found.updated_us}
        assert replace(found, waited_s=0.0) == replace(first, **times)
        assert found.created_us == found.updated_us > 1_700_000_000_000_000
        assert await store.find([UUID(int=1)]) == []

    play(scene)


def test_a_claim_leases_counts_the_attempt_and_gives_each_row_once(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, *(newborn() for _ in range(10)), newborn("elsewhere"))
        batches = await asyncio.gather(*(store.claim("venue", 4) for _ in range(4)))
        claimed = [t.id for batch in batches for t in batch]
        assert len(claimed) == len(set(claimed)) == 10
        assert all(t.attempts == 1 for batch in batches for t in batch)
        assert await store.claim("venue", 10) == []

    play(scene)


def test_an_expired_lease_is_simply_a_due_transfer(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, newborn())
        [first] = await store.claim("venue", 1)
        await asyncio.sleep(store.lease_s + 0.1)
        [again] = await store.claim("venue", 1)
        assert (again.id, again.attempts) == (first.id, 2)
        assert again.waited_s > store.lease_s

    play(scene)


def test_the_longest_due_is_claimed_first(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        order = []
        for _ in range(3):
            order.append(newborn())
            await insert(store, order[-1])
            await asyncio.sleep(0.01)
        claimed = [(await store.claim("venue", 1))[0].id for _ in order]
        assert claimed == [t.id for t in order]

    play(scene)


def test_a_released_lease_is_due_now_unless_the_row_has_moved(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, newborn(), newborn())
        kept, moved = await store.claim("venue", 2)
        await answer(store, [moved], Done())
        await store.release([kept, moved])
        assert [t.id for t in await store.claim("venue", 2)] == [kept.id]

    play(scene)


def test_a_move_is_recorded_only_for_a_row_at_the_version_asked_about(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, newborn())
        [asked] = await store.claim("venue", 1)
        assert await answer(store, [asked], Done()) == 1
        assert await answer(store, [asked], Rejected("late")) == 0
        found = await one(store, asked.id)
        assert (found.state, found.version, found.lane) == ("TARGET_PENDING", 1, "other")

    play(scene)


def test_of_two_workers_on_one_row_one_moves_it(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, newborn())
        [asked] = await store.claim("venue", 1)
        moved = await asyncio.gather(*(answer(store, [asked], Done()) for _ in range(6)))
        assert sum(moved) == 1
        assert (await one(store, asked.id)).version == 1

    play(scene)


def test_record_moves_all_that_were_meant_or_none(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, newborn(), newborn())
        first, second = await store.claim("venue", 2)
        await answer(store, [second], Done())
        moves = [decide(FLOW, t, Done(), Terms()) for t in (first, second)]
        with pytest.raises(StoreFault):
            async with store.transaction() as tx:
                await store.record(tx, moves, [False] * len(moves))
        assert (await one(store, first.id)).version == 0

    play(scene)


def test_what_a_transaction_did_is_gone_if_it_fails(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, newborn())
        [asked] = await store.claim("venue", 1)

        async def failing() -> None:
            async with store.transaction() as tx:
                fresh = await store.lock(tx, [asked])
                await store.record(tx, [decide(FLOW, t, Done(), Terms()) for t in fresh], [False])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        assert (await one(store, asked.id)).version == 0
        assert await answer(store, [asked], Done()) == 1

    play(scene)


def test_an_end_has_no_lane_and_is_never_claimed_again(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, newborn())
        [asked] = await store.claim("venue", 1)
        await answer(store, [asked], Rejected("INSUFFICIENT_BALANCE"))
        found = await one(store, asked.id)
        assert (found.state, found.lane, found.error) == ("FAILED", None, "INSUFFICIENT_BALANCE")
        await asyncio.sleep(store.lease_s + 0.1)
        assert await store.claim("venue", 1) == []

    play(scene)


def test_an_unknown_waits_its_delay_and_changes_nothing_else(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, newborn())
        [asked] = await store.claim("venue", 1)
        before = await one(store, asked.id)
        await answer(store, [asked], Unknown("timeout"))
        after = await one(store, asked.id)
        assert after == replace(before, retries=1, waited_s=after.waited_s)
        await asyncio.sleep(store.lease_s + 0.1)
        assert await store.claim("venue", 1) == [], "the delay is longer than the lease"

    play(scene)


def test_a_leased_row_is_left_to_whoever_was_handed_it(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        kept, left = newborn(), newborn()
        async with store.transaction() as tx:
            rows = await store.insert(tx, [birth(kept), birth(left)], [True, False])
        assert [t.attempts for t in rows] == [1, 0]
        assert [t.id for t in await store.claim("venue", 5)] == [left.id]
        assert await answer(store, [rows[0]], Done()) == 1

    play(scene)


def test_a_cid_that_is_taken_refuses_the_whole_batch(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        first, second, third = newborn(), newborn(), newborn()
        async with store.transaction() as tx:
            await store.insert(tx, [birth(first, "one")], [False])
        with pytest.raises(CidTaken):
            async with store.transaction() as tx:
                await store.insert(tx, [birth(third, "two"), birth(second, "one")], [False] * 2)
        assert [t.id for t in await store.find([first.id, second.id, third.id])] == [first.id]
        other = newborn(owner=2)
        async with store.transaction() as tx:
            await store.insert(tx, [birth(other, "one")], [False])
        _, _, known = await store.look([(1, "one"), (2, "one"), (3, "one"), (1, "two")])
        assert [k and k.transfer.id for k in known] == [first.id, other.id, None, None]

    play(scene)


def test_racing_births_of_one_cid_make_one_transfer(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        async def bear(transfer: Transfer) -> bool:
            try:
                async with store.transaction() as tx:
                    await store.insert(tx, [birth(transfer, "same")], [False])
            except CidTaken:
                return False
            return True

        racers = [newborn() for _ in range(6)]
        assert sum(await asyncio.gather(*map(bear, racers))) == 1
        assert len(await store.find([t.id for t in racers])) == 1

    play(scene)


def test_nothing_is_claimed_while_halted(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, newborn())
        await store.halt("the books differ", "auditor")
        await store.halt("again", "auditor")
        assert await store.halted()
        assert await store.claim("venue", 1) == []
        assert (await store.look([(1, "x")]))[1]
        async with store.transaction() as tx:
            assert (await tx.begun()).halted
        await store.resume("it was a drill", "operator")
        assert not await store.halted()
        assert len(await store.claim("venue", 1)) == 1

    play(scene)


def test_a_row_under_a_deadline_is_due_at_it_and_then_expired(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        transfer = newborn()
        async with store.transaction() as tx:
            move = Move(transfer, transfer, delay_s=60.0, deadline_s=0.3)
            await store.insert(tx, [birth(transfer)._replace(move=move)], [False])
        assert await store.claim("venue", 1) == []
        await asyncio.sleep(0.4)
        [late] = await store.claim("venue", 1)
        assert late.expired

    play(scene)


def test_the_life_of_a_transfer_takes_the_place_of_its_deadlines(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        transfer = newborn()
        async with store.transaction() as tx:
            move = Move(transfer, transfer, deadline_s=60.0)
            await store.insert(tx, [birth(transfer)._replace(move=move, lives_s=0.5)], [False])
        [asked] = await store.claim("venue", 1)
        assert not asked.expired
        onward = decide(FLOW, asked, Done(), Terms())
        onward = replace(onward, delay_s=60.0, deadline_s=3600.0)
        async with store.transaction() as tx:
            await store.lock(tx, [asked])
            await store.record(tx, [onward], [False])
        assert await store.claim("other", 1) == []
        await asyncio.sleep(0.6)
        [late] = await store.claim("other", 1)
        assert (late.version, late.expired) == (1, True)
        free = replace(decide(FLOW, late, Rejected("no"), Terms()), deadline_s=None)
        async with store.transaction() as tx:
            await store.lock(tx, [late])
            await store.record(tx, [free], [False])
        assert not (await one(store, asked.id)).expired

    play(scene)


def test_a_refused_refund_is_a_new_question_that_waits(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, newborn())
        [asked] = await store.claim("venue", 1)
        await answer(store, [asked], Done())
        await answer(store, [await one(store, asked.id)], Rejected("no"))
        await answer(store, [await one(store, asked.id)], Rejected("closed"))
        found = await one(store, asked.id)
        assert (found.state, found.version, found.paged) == ("COMPENSATING", 3, True)
        assert (found.undoes, found.retries, found.error) == (0, 1, "closed")
        assert await store.claim("venue", 1) == []

    play(scene)


def test_the_alarm_of_an_unknown_is_kept_as_paged(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, newborn())
        [asked] = await store.claim("venue", 1)
        await answer(store, [asked], Unknown("KEY_REUSED", Alarm.PAGE))
        assert (await one(store, asked.id)).paged

    play(scene)
