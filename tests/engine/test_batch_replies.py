"""A batch of requests: each has the result it would have alone, and results keep their order."""

import asyncio

import pytest

from tests.engine.rig import Play, Rig, request
from tidegate.core.answers import Answer
from tidegate.core.ports import StoreFault
from tidegate.core.refusals import Refusal
from tidegate.core.request import CheckedRequest, Request
from tidegate.core.transfer import Question
from tidegate.engine.batch_replies import BatchReplies
from tidegate.engine.pending_request import Receipt, RequestResult

slow = pytest.mark.slow


def shown(result: RequestResult) -> object:
    """The state and whether it is a duplicate, or the refusal or fault itself."""
    if isinstance(result, Receipt):
        return result.transfer.state, result.duplicate
    return result


@slow
def test_each_request_is_created_or_refused_alone_and_results_keep_their_order(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        wanted = request("in", 300, "a")
        requests = [
            CheckedRequest(wanted),
            CheckedRequest(request("in", 5_000, "too much")),
            CheckedRequest(wanted),  # A repetition in the same batch.
            CheckedRequest(request("in", 301, "a")),  # The same cid with another amount.
            CheckedRequest(request("out", 10, "b"), Refusal.RATE_LIMIT_EXCEEDED),
            CheckedRequest(Request(7, "no such flow", wanted.parties, 3, 1, "c")),
            CheckedRequest(request("out", 20)),
            CheckedRequest(request("out", 20)),  # Without a cid it is another transfer.
        ]
        async with rig.engine() as engine:
            results = await engine.transfer_all(requests, 5.0)
            repeated = await engine.transfer_all(
                [CheckedRequest(wanted, Refusal.RATE_LIMIT_EXCEEDED)]
            )
            assert await engine.transfer_all([]) == []
        assert [shown(result) for result in results] == [
            ("COMMITTED", False),
            ("FAILED", False),
            ("COMMITTED", True),
            Refusal.IDEMPOTENCY_MISMATCH,
            Refusal.RATE_LIMIT_EXCEEDED,
            Refusal.INVALID_REQUEST,
            ("COMMITTED", False),
            ("COMMITTED", False),
        ]
        assert [shown(result) for result in repeated] == [("COMMITTED", True)]
        ids = {r.transfer.id for r in (*results, *repeated) if isinstance(r, Receipt)}
        assert len(ids) == 4
        assert await rig.funding() == 1_000 - 300 + 2 * 20

    play(scene)


@slow
def test_after_the_wait_each_result_has_the_present_state(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        released = asyncio.Event()

        async def failing(questions: list[Question], execute: object) -> list[Answer]:
            await released.wait()
            raise ValueError("no answer")

        rig.outside.twist = failing  # type: ignore[assignment]
        requests = [CheckedRequest(request("in", 1, f"c{n}")) for n in range(3)]
        requests.insert(1, CheckedRequest(request("in", 5_000, "too much")))
        async with rig.engine() as engine:
            results = await engine.transfer_all(requests, 0.1)
            assert [shown(result) for result in results] == [
                ("TARGET_PENDING", False),
                ("FAILED", False),
                ("TARGET_PENDING", False),
                ("TARGET_PENDING", False),
            ]
            rig.outside.twist = None
            released.set()
            await rig.ended([r.transfer for r in results if isinstance(r, Receipt)])

    play(scene)


@slow
def test_accepted_requests_are_created_although_their_caller_was_cancelled(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        requests = [CheckedRequest(request("in", 10, f"c{n}")) for n in range(5)]
        async with rig.engine() as engine:
            caller = asyncio.create_task(engine.transfer_all(requests, 5.0))
            await asyncio.sleep(0)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            results = await engine.transfer_all(requests, 5.0)
        assert {shown(result) for result in results} == {("COMMITTED", True)}
        assert await rig.funding() == 950

    play(scene)


@slow
def test_a_fault_is_the_result_of_its_own_request_only(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.raise_on_thirteen()
        requests = [CheckedRequest(request("in", 13 if n == 5 else 1, f"c{n}")) for n in range(20)]
        async with rig.engine() as engine:
            results = await engine.transfer_all(requests, 5.0)
        assert isinstance(results.pop(5), StoreFault)
        assert {shown(result) for result in results} == {("COMMITTED", False)}
        assert await rig.funding() == 1_000 - 19

    play(scene)


def test_the_replies_are_complete_when_the_last_one_arrives() -> None:
    async def scene() -> None:
        replies = BatchReplies[str](3)
        first, second, third = replies.targets()
        caller = asyncio.create_task(replies.collect())
        third.set_result("c")
        first.set_exception("a")  # A fault is stored as a reply.
        await asyncio.sleep(0)
        assert not caller.done()
        assert first.done()
        assert not second.done()
        second.set_result("b")
        assert await caller == ["a", "b", "c"] == await replies.collect()
        with pytest.raises(AssertionError, match="answered before"):
            second.set_result("d")

    asyncio.run(scene())
