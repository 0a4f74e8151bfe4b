"""Many transfers asked for at once: each as if it were asked for by itself, and told in order."""

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


def told(said: RequestResult) -> object:
    return (said.transfer.state, said.duplicate) if isinstance(said, Receipt) else said


@slow
def test_each_is_made_or_refused_by_itself_in_the_order_of_the_batch(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        wanted = request("in", 300, "a")
        asked = [
            CheckedRequest(wanted),
            CheckedRequest(request("in", 5_000, "too much")),
            CheckedRequest(wanted),  # A repetition, in the same batch.
            CheckedRequest(request("in", 301, "a")),  # Under the same cid, something else.
            CheckedRequest(request("out", 10, "b"), Refusal.RATE_LIMIT_EXCEEDED),
            CheckedRequest(Request(7, "no such flow", wanted.parties, 3, 1, "c")),
            CheckedRequest(request("out", 20)),
            CheckedRequest(request("out", 20)),  # Without a cid it is another one.
        ]
        async with rig.engine() as engine:
            said = await engine.transfer_all(asked, 5.0)
            again = await engine.transfer_all([CheckedRequest(wanted, Refusal.RATE_LIMIT_EXCEEDED)])
            assert await engine.transfer_all([]) == []
        assert [told(each) for each in said] == [
            ("COMMITTED", False),
            ("FAILED", False),
            ("COMMITTED", True),
            Refusal.IDEMPOTENCY_MISMATCH,
            Refusal.RATE_LIMIT_EXCEEDED,
            Refusal.INVALID_REQUEST,
            ("COMMITTED", False),
            ("COMMITTED", False),
        ]
        assert [told(each) for each in again] == [("COMMITTED", True)]
        made = {each.transfer.id for each in (*said, *again) if isinstance(each, Receipt)}
        assert len(made) == 4
        assert await rig.funding() == 1_000 - 300 + 2 * 20

    play(scene)


@slow
def test_who_waits_long_enough_is_told_how_far_each_is(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        answered = asyncio.Event()

        async def silent(asked: list[Question], execute: object) -> list[Answer]:
            await answered.wait()
            raise ValueError("no word")

        rig.outside.twist = silent  # type: ignore[assignment]
        asked = [CheckedRequest(request("in", 1, f"c{n}")) for n in range(3)]
        asked.insert(1, CheckedRequest(request("in", 5_000, "too much")))
        async with rig.engine() as engine:
            said = await engine.transfer_all(asked, 0.1)
            assert [told(each) for each in said] == [
                ("TARGET_PENDING", False),
                ("FAILED", False),
                ("TARGET_PENDING", False),
                ("TARGET_PENDING", False),
            ]
            rig.outside.twist = None
            answered.set()
            await rig.ended([each.transfer for each in said if isinstance(each, Receipt)])

    play(scene)


@slow
def test_what_was_taken_is_made_although_who_asked_has_gone(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        asked = [CheckedRequest(request("in", 10, f"c{n}")) for n in range(5)]
        async with rig.engine() as engine:
            asking = asyncio.create_task(engine.transfer_all(asked, 5.0))
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            said = await engine.transfer_all(asked, 5.0)
        assert {told(each) for each in said} == {("COMMITTED", True)}
        assert await rig.funding() == 950

    play(scene)


@slow
def test_a_fault_is_told_to_the_one_whose_it_is(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.fear_thirteen()
        asked = [CheckedRequest(request("in", 13 if n == 5 else 1, f"c{n}")) for n in range(20)]
        async with rig.engine() as engine:
            said = await engine.transfer_all(asked, 5.0)
        assert isinstance(said.pop(5), StoreFault)
        assert {told(each) for each in said} == {("COMMITTED", False)}
        assert await rig.funding() == 1_000 - 19

    play(scene)


def test_a_tray_is_full_when_the_last_place_is_taken() -> None:
    async def scene() -> None:
        tray = BatchReplies[str](3)
        first, second, third = tray.places()
        waits = asyncio.create_task(tray.filled())
        third.set_result("c")
        first.set_exception("a")  # An answer as well.
        await asyncio.sleep(0)
        assert not waits.done()
        assert first.done()
        assert not second.done()
        second.set_result("b")
        assert await waits == ["a", "b", "c"] == await tray.filled()
        with pytest.raises(AssertionError, match="answered before"):
            second.set_result("d")

    asyncio.run(scene())
