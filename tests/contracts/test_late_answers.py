"""An answer that is written when others have had the row meanwhile, put to both stores."""

import asyncio
from collections.abc import Sequence

from tests.contracts.stores import OURS, AnyStore, Play, answer, insert, new_transfer, one
from tidegate.core.answers import Alarm, Done, Unknown
from tidegate.core.kind import Transfer


def test_a_late_unknown_takes_back_nothing_that_was_counted_since(play: Play) -> None:
    """Its worker was stopped between the question and the record, for longer than the lease."""

    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [late] = await store.claim("venue", 1, OURS)
        for attempts in (2, 3):
            [asked] = await after_the_lease(store, late)
            assert asked.attempts == attempts
        for _ in range(2):  # The reply to the first COMMIT was lost: it is counted once.
            await answer(store, [asked], Unknown("KEY_REUSED", Alarm.PAGE))
            assert (await one(store, late.id)).retries == 1
        await answer(store, [late], Unknown("late"))
        found = await one(store, late.id)
        assert (found.attempts, found.retries, found.paged) == (3, 2, True)

    play(scene)


def test_a_late_answer_takes_back_no_retries(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [late] = await store.claim("venue", 1, OURS)
        [asked] = await after_the_lease(store, late)
        await answer(store, [asked], Unknown("KEY_REUSED", Alarm.PAGE))
        await answer(store, [late], Done())
        found = await one(store, late.id)
        assert (found.version, found.attempts, found.retries, found.paged) == (1, 0, 1, False)

    play(scene)


async def after_the_lease(store: AnyStore, leased: Transfer) -> Sequence[Transfer]:
    await asyncio.sleep(store.lease_s + 0.1)
    claimed = await store.claim("venue", 1, OURS)
    assert [t.id for t in claimed] == [leased.id]
    return claimed
