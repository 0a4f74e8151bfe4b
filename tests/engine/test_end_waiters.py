"""Who waits for an end is told of it, or how far it is when the time is over; each by itself."""

import asyncio
from uuid import UUID

from tidegate.core.kind import Transfer, transfer_with
from tidegate.core.refusals import Refusal
from tidegate.engine.end_waiters import EndWaiters
from tidegate.engine.pending_request import Receipt


def transfer(number: int, lane: str | None = "core") -> Transfer:
    own = {"id": UUID(int=number), "owner": 1, "amount": 5}
    return transfer_with({}, {}, flow="internal_transfer", state="TARGET_PENDING", lane=lane, **own)


def follow(
    waiting: EndWaiters, number: int, patience_s: float
) -> "asyncio.Future[Receipt | Refusal]":
    answer: asyncio.Future[Receipt | Refusal] = asyncio.get_running_loop().create_future()
    waiting.follow(answer, transfer(number), patience_s)
    return answer


async def rest(seconds: float) -> None:
    await asyncio.sleep(seconds)


def test_each_is_let_go_at_its_own_time() -> None:
    async def scene() -> None:
        waiting, loop = EndWaiters(), asyncio.get_running_loop()
        went_s: dict[int, float] = {}
        began_s = loop.time()

        def note(number: int) -> None:
            went_s[number] = loop.time() - began_s

        for number, patience_s in enumerate((0.2, 0.05, 0.2, 0.05)):
            answer = follow(waiting, number, patience_s)
            answer.add_done_callback(lambda _, number=number: note(number))  # type: ignore[misc]
            await rest(0.02)
        await rest(0.4)
        assert sorted(went_s, key=lambda n: went_s[n]) == [1, 3, 0, 2]
        due_s = {0: 0.2, 1: 0.07, 2: 0.24, 3: 0.11}
        assert all(went_s[n] >= due_s[n] - 0.002 for n in due_s), went_s
        assert waiting.longest(10, 0.0) == []

    asyncio.run(scene())


def test_who_is_told_of_the_end_is_not_told_again_when_the_time_is_over() -> None:
    async def scene() -> None:
        waiting = EndWaiters()
        told, late = follow(waiting, 1, 0.05), follow(waiting, 2, 0.05)
        also = follow(waiting, 1, 30)
        end = transfer(1, None)
        waiting.ended([end])
        assert told.result() == also.result() == Receipt(end)
        await rest(0.1)
        assert late.result() == Receipt(transfer(2))
        # The line was empty for a while, and serves who comes now.
        again = follow(waiting, 3, 0.05)
        await rest(0.1)
        assert again.result() == Receipt(transfer(3))

    asyncio.run(scene())


def test_a_caller_who_has_gone_is_no_trouble() -> None:
    async def scene() -> None:
        waiting = EndWaiters()
        gone, gone_too = follow(waiting, 1, 0.01), follow(waiting, 2, 0.01)
        gone.cancel()
        gone_too.cancel()
        waiting.ended([transfer(1, None)])
        await rest(0.05)
        assert waiting.longest(10, 0.0) == []

    asyncio.run(scene())


def test_those_who_have_waited_longest_come_first() -> None:
    async def scene() -> None:
        waiting = EndWaiters()
        for number in (3, 1, 2):
            follow(waiting, number, 30)
        assert waiting.longest(2, 0.0) == [UUID(int=3), UUID(int=1)]
        assert waiting.longest(2, 60.0) == [], "they have just come"

    asyncio.run(scene())


def test_one_transfer_that_is_always_asked_about_anew_does_not_hide_the_others() -> None:
    """Its first caller has gone and its next has just come, but its place is the first."""

    async def scene() -> None:
        waiting = EndWaiters()
        follow(waiting, 1, 0.05)
        follow(waiting, 2, 30)
        await asyncio.sleep(0.04)
        follow(waiting, 1, 30)
        await asyncio.sleep(0.04)
        assert waiting.longest(10, 0.06) == [UUID(int=2)]

    asyncio.run(scene())


def test_it_is_known_whether_anybody_waits() -> None:
    async def scene() -> None:
        waiting = EndWaiters()
        assert not waiting.anyone.is_set()
        follow(waiting, 1, 30)
        follow(waiting, 2, 0.01)
        waiting.ended([transfer(1, None)])
        assert waiting.anyone.is_set()
        await rest(0.05)
        assert not waiting.anyone.is_set()
        follow(waiting, 3, 30)
        assert waiting.anyone.is_set()
        waiting.ended([transfer(3, None)])
        assert not waiting.anyone.is_set()

    asyncio.run(scene())
