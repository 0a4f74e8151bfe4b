"""Concurrent batches have no owner in common; requests that are passed over keep their order."""

import asyncio
from collections import deque

from tidegate.engine.ring import EXPECTED_S, BusyOwners


def identity(owner: int) -> int:
    return owner


def test_an_owner_in_a_batch_is_passed_over_and_keeps_its_place_in_the_queue() -> None:
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


def test_a_request_that_locks_nothing_is_never_passed_over() -> None:
    busy_owners = BusyOwners(lambda: None)
    with busy_owners.locking([1, None]):
        assert busy_owners.choose(deque([1, 2]), 10, lambda _: None) == [1, 2]


def test_the_queue_is_notified_when_an_owner_that_was_passed_over_is_free() -> None:
    calls: list[str] = []
    busy_owners = BusyOwners(lambda: calls.append("freed"))
    with busy_owners.locking({1}):
        pass
    assert calls == [], "no owner was passed over"
    with busy_owners.locking({1}):
        assert busy_owners.choose(deque([1]), 10, identity) == []
    assert calls == ["freed"]


def test_a_long_queue_of_one_owner_is_searched_only_up_to_the_limit() -> None:
    busy_owners = BusyOwners(lambda: None)
    waiting = deque([1] * 10_000)
    examined: list[int] = []

    def owner(item: int) -> int:
        examined.append(item)
        return item

    with busy_owners.locking({1}):
        assert busy_owners.choose(waiting, 100, owner) == []
    assert len(examined) == 100
    assert len(waiting) == 10_000


def test_an_owner_that_is_asked_about_is_passed_over_until_the_answer_arrives_or_is_late() -> None:
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
            assert calls == ["freed"], "the queue is notified before the answer arrives"
            assert busy_owners.choose(deque([1]), 10, identity) == [1]
            with busy_owners.locking([1]):
                pass
        assert busy_owners.choose(deque([1]), 10, identity) == [1], "it is not freed twice"

    asyncio.run(scene())


def test_an_owner_that_is_asked_about_all_the_time_still_gets_requests_through() -> None:
    """The questions about a busy owner overlap: at any time a system is asked about one."""

    async def scene() -> None:
        busy_owners = BusyOwners(lambda: None)
        waiting = deque([1])
        with busy_owners.expecting() as first:
            first([1])
            assert busy_owners.choose(waiting, 10, identity) == []
            with busy_owners.expecting() as second:
                second([1, 2])
                assert busy_owners.choose(deque([2]), 10, identity) == [], (
                    "another owner is passed over"
                )
        with busy_owners.expecting() as third:
            third([1])
            assert busy_owners.choose(waiting, 10, identity) == [1]
        with busy_owners.expecting() as fourth:
            fourth([1])
            assert busy_owners.choose(deque([1]), 10, identity) == [], (
                "its request was taken before"
            )

    asyncio.run(scene())
