"""Batches under way have no owner in common, and whoever is passed over keeps the place."""

import asyncio
from collections import deque

from tidegate.engine.ring import EXPECTED_S, BusyOwners


def identity(owner: int) -> int:
    return owner


def test_who_is_in_a_batch_is_passed_over_and_keeps_the_place() -> None:
    busy_owners = BusyOwners(lambda: None)
    waiting = deque([1, 2, 1, 3, 2])
    with busy_owners.locking({1}):
        assert busy_owners.choose(waiting, 10, identity) == [2, 3, 2]
        assert list(waiting) == [1, 1]
    assert busy_owners.choose(waiting, 10, identity) == [1, 1]


def test_an_owner_in_two_batches_is_free_when_both_have_ended() -> None:
    busy_owners = BusyOwners(lambda: None)
    with busy_owners.locking([1]):
        with busy_owners.locking([1, None]):
            pass
        assert busy_owners.choose(deque([1]), 10, identity) == []
    assert busy_owners.choose(deque([1]), 10, identity) == [1]


def test_who_locks_nothing_is_never_passed_over() -> None:
    busy_owners = BusyOwners(lambda: None)
    with busy_owners.locking([1, None]):
        assert busy_owners.choose(deque([1, 2]), 10, lambda _: None) == [1, 2]


def test_who_was_passed_over_is_called_when_somebody_is_free() -> None:
    calls: list[str] = []
    busy_owners = BusyOwners(lambda: calls.append("freed"))
    with busy_owners.locking({1}):
        pass
    assert calls == [], "nobody had been passed over"
    with busy_owners.locking({1}):
        assert busy_owners.choose(deque([1]), 10, identity) == []
    assert calls == ["freed"]


def test_a_long_queue_of_one_owner_is_not_walked_again_and_again() -> None:
    busy_owners = BusyOwners(lambda: None)
    waiting = deque([1] * 10_000)
    looked: list[int] = []

    def owner(item: int) -> int:
        looked.append(item)
        return item

    with busy_owners.locking({1}):
        assert busy_owners.choose(waiting, 100, owner) == []
    assert len(looked) == 100
    assert len(waiting) == 10_000


def test_whom_an_answer_concerns_is_passed_over_until_it_is_there_or_late() -> None:
    async def scene() -> None:
        calls: list[str] = []
        busy_owners = BusyOwners(lambda: calls.append("freed"))
        with busy_owners.expecting() as expect:
            expect([1, None])
            assert busy_owners.choose(deque([1, 2]), 10, identity) == [2]
            with busy_owners.locking([1]):
                pass
            assert busy_owners.choose(deque([1]), 10, identity) == []
        assert calls == ["freed", "freed"]
        assert busy_owners.choose(deque([1]), 10, identity) == [1]
        with busy_owners.expecting() as expect:
            expect([1])
            assert busy_owners.choose(deque([1]), 10, identity) == []
            calls.clear()
            await asyncio.sleep(EXPECTED_S * 2)
            assert calls == ["freed"], "somebody is told, who else would wait for the answer too"
            assert busy_owners.choose(deque([1]), 10, identity) == [1]
            with busy_owners.locking([1]):
                pass
        assert busy_owners.choose(deque([1]), 10, identity) == [1], "and it is not freed twice"

    asyncio.run(scene())


def test_one_who_is_always_asked_about_comes_to_his_turn() -> None:
    """The answers of a busy owner overlap: there is always a batch that concerns him."""

    async def scene() -> None:
        busy_owners = BusyOwners(lambda: None)
        waiting = deque([1])
        with busy_owners.expecting() as first:
            first([1])
            assert busy_owners.choose(waiting, 10, identity) == []
            with busy_owners.expecting() as second:
                second([1, 2])
                assert busy_owners.choose(deque([2]), 10, identity) == [], "another is kept apart"
        with busy_owners.expecting() as third:
            third([1])
            assert busy_owners.choose(waiting, 10, identity) == [1]
        with busy_owners.expecting() as fourth:
            fourth([1])
            assert busy_owners.choose(deque([1]), 10, identity) == [], "it was his turn"

    asyncio.run(scene())
