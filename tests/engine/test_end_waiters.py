"""Each waiter gets the end of its transfer, or the current receipt after its own timeout."""

import asyncio
from uuid import UUID

from tidegate.core.kind import Transfer, transfer_with
from tidegate.core.refusals import Refusal
from tidegate.engine.end_waiters import EndWaiters
from tidegate.engine.pending_request import Receipt


def transfer(number: int, lane: str | None = "core") -> Transfer:
    fields = {"id": UUID(int=number), "owner": 1, "amount": 5}
    return transfer_with(
        {}, {}, flow="internal_transfer", state="TARGET_PENDING", lane=lane, **fields
    )


def follow(
    waiting: EndWaiters, number: int, timeout_s: float
) -> "asyncio.Future[Receipt | Refusal]":
    answer: asyncio.Future[Receipt | Refusal] = asyncio.get_running_loop().create_future()
    waiting.follow(answer, transfer(number), timeout_s)
    return answer


def test_each_waiter_times_out_at_its_own_time() -> None:
    async def scene() -> None:
        waiting, loop = EndWaiters(), asyncio.get_running_loop()
        ended_s: dict[int, float] = {}
        started_s = loop.time()

        def note(number: int) -> None:
            ended_s[number] = loop.time() - started_s

        for number, timeout_s in enumerate((0.2, 0.05, 0.2, 0.05)):
            answer = follow(waiting, number, timeout_s)
            answer.add_done_callback(lambda _, number=number: note(number))  # type: ignore[misc]
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.4)
        assert sorted(ended_s, key=lambda n: ended_s[n]) == [1, 3, 0, 2]
        due_s = {0: 0.2, 1: 0.07, 2: 0.24, 3: 0.11}
        assert all(ended_s[n] >= due_s[n] - 0.002 for n in due_s), ended_s
        assert waiting.longest_waiting(10, 0.0) == []

    asyncio.run(scene())


def test_a_waiter_that_got_the_end_is_not_answered_again_by_the_timeout() -> None:
    async def scene() -> None:
        waiting = EndWaiters()
        ended, late = follow(waiting, 1, 0.05), follow(waiting, 2, 0.05)
        second = follow(waiting, 1, 30)
        end = transfer(1, None)
        waiting.ended([end])
        assert ended.result() == second.result() == Receipt(end)
        await asyncio.sleep(0.1)
        assert late.result() == Receipt(transfer(2))
        # There was no waiter with this timeout for a while. A new one still times out.
        third = follow(waiting, 3, 0.05)
        await asyncio.sleep(0.1)
        assert third.result() == Receipt(transfer(3))

    asyncio.run(scene())


def test_cancelled_waiters_are_ignored() -> None:
    async def scene() -> None:
        waiting = EndWaiters()
        first, second = follow(waiting, 1, 0.01), follow(waiting, 2, 0.01)
        first.cancel()
        second.cancel()
        waiting.ended([transfer(1, None)])
        await asyncio.sleep(0.05)
        assert waiting.longest_waiting(10, 0.0) == []

    asyncio.run(scene())


def test_the_longest_waiting_transfers_come_first() -> None:
    async def scene() -> None:
        waiting = EndWaiters()
        for number in (3, 1, 2):
            follow(waiting, number, 30)
        assert waiting.longest_waiting(2, 0.0) == [UUID(int=3), UUID(int=1)]
        assert waiting.longest_waiting(2, 60.0) == [], "they have not waited long enough"

    asyncio.run(scene())


def test_a_transfer_with_new_waiters_does_not_hide_the_others() -> None:
    """The transfer keeps the first position after its first waiter has timed out."""

    async def scene() -> None:
        waiting = EndWaiters()
        follow(waiting, 1, 0.05)
        follow(waiting, 2, 30)
        await asyncio.sleep(0.04)
        follow(waiting, 1, 30)
        await asyncio.sleep(0.04)
        assert waiting.longest_waiting(10, 0.06) == [UUID(int=2)]

    asyncio.run(scene())


def test_the_event_is_set_while_there_are_waiters() -> None:
    async def scene() -> None:
        waiting = EndWaiters()
        assert not waiting.has_waiters.is_set()
        follow(waiting, 1, 30)
        follow(waiting, 2, 0.01)
        waiting.ended([transfer(1, None)])
        assert waiting.has_waiters.is_set()
        await asyncio.sleep(0.05)
        assert not waiting.has_waiters.is_set()
        follow(waiting, 3, 30)
        assert waiting.has_waiters.is_set()
        waiting.ended([transfer(3, None)])
        assert not waiting.has_waiters.is_set()

    asyncio.run(scene())
