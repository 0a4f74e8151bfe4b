"""Answers that are recorded after another process has claimed the row, on both stores."""

import asyncio
from collections.abc import Sequence

from tests.contracts.stores import (
    OURS,
    AnyStore,
    RunScenario,
    answer,
    find_one,
    insert,
    new_transfer,
)
from tidegate.core.answers import Alarm, Done, Unknown
from tidegate.core.kind import Transfer


def test_a_late_unknown_keeps_the_newer_counters(run: RunScenario) -> None:
    """The worker was stopped between asking and recording, for longer than the lease."""

    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [late] = await store.claim("venue", 1, OURS)
        for attempts in (2, 3):
            [claimed] = await after_the_lease(store, late)
            assert claimed.attempts == attempts
        for _ in range(2):  # The reply to the first COMMIT was lost: it is counted once.
            await answer(store, [claimed], Unknown("KEY_REUSED", Alarm.PAGE))
            assert (await find_one(store, late.id)).retries == 1
        await answer(store, [late], Unknown("late"))
        found = await find_one(store, late.id)
        assert (found.attempts, found.retries, found.paged) == (3, 2, True)

    run(scenario)


def test_a_late_answer_keeps_the_newer_retries(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [late] = await store.claim("venue", 1, OURS)
        [claimed] = await after_the_lease(store, late)
        await answer(store, [claimed], Unknown("KEY_REUSED", Alarm.PAGE))
        await answer(store, [late], Done())
        found = await find_one(store, late.id)
        assert (found.version, found.attempts, found.retries, found.paged) == (1, 0, 1, False)

    run(scenario)


async def after_the_lease(store: AnyStore, leased: Transfer) -> Sequence[Transfer]:
    await asyncio.sleep(store.lease_s + 0.1)
    again = await store.claim("venue", 1, OURS)
    assert [t.id for t in again] == [leased.id]
    return again
