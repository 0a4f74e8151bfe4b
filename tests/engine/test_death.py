"""When a loop of the engine dies of a bug, all waiting callers get a correct reply at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.engine.rig import OWNER, Play, Rig, made, request
from tidegate.core.answers import Alarm
from tidegate.core.request import CheckedRequest
from tidegate.engine.alerts import Alert
from tidegate.engine.pending_request import Receipt
from tidegate.engine.stopped import EngineStopped

SOON_S = 5.0


def broken(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("a planted bug")


def test_waiting_and_later_callers_get_an_error_at_once(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            before = await made(engine, request("in", 5, "before"))
            await rig.ended([before])
            rig.store.reserve = broken  # type: ignore[method-assign]
            with pytest.raises(EngineStopped):
                await asyncio.wait_for(engine.submit(request("in", 5, "a")), SOON_S)
            await asyncio.wait_for(engine.died, SOON_S)
            for call in (engine.submit, engine.transfer):
                with pytest.raises(EngineStopped) as later:
                    await asyncio.wait_for(call(request("in", 5, "b")), SOON_S)
                assert not later.value.maybe_accepted
            batch = [CheckedRequest(request("in", 5, f"c{n}"), None) for n in range(3)]
            answers = await asyncio.wait_for(engine.transfer_all(batch), SOON_S)
            assert [type(answer) for answer in answers] == [EngineStopped] * 3
        assert [a.alarm for a in rig.alerts if "died" in a.cause] == [Alarm.CRITICAL]

    play(scene)


def test_a_request_that_may_have_been_accepted_gets_that_reply(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        transaction = rig.store.transaction

        @asynccontextmanager
        async def dies_after_its_commit() -> AsyncIterator[Any]:
            async with transaction() as tx:
                yield tx
            raise ZeroDivisionError("a planted bug")

        async with rig.engine() as engine:
            rig.store.transaction = dies_after_its_commit  # type: ignore[method-assign]
            with pytest.raises(EngineStopped) as stopped:
                await asyncio.wait_for(engine.submit(request("in", 5, "kept")), SOON_S)
            assert stopped.value.maybe_accepted
        rig.store.transaction = transaction  # type: ignore[method-assign]
        async with rig.engine(2) as engine:
            receipt = await engine.transfer(request("in", 5, "kept"))
            assert isinstance(receipt, Receipt)
            assert receipt.duplicate, "it had been accepted"

    play(scene)


def test_requests_that_no_loop_had_started_were_not_accepted(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        held = asyncio.Event()

        async def slow_then_broken(_: Sequence[object]) -> Any:
            await held.wait()
            return broken()

        async with rig.engine() as engine:
            rig.store.look = slow_then_broken  # type: ignore[method-assign, assignment]
            # Requests of one owner are never in two batches at once, so these wait.
            first = asyncio.ensure_future(engine.submit(request("in", 5, "first")))
            await asyncio.sleep(0.1)
            rest = [
                asyncio.ensure_future(engine.submit(request("in", 5, f"r{n}"))) for n in range(20)
            ]
            await asyncio.sleep(0.1)
            held.set()
            replies = await asyncio.wait_for(
                asyncio.gather(first, *rest, return_exceptions=True), SOON_S
            )
            assert all(isinstance(reply, EngineStopped) for reply in replies), replies
            maybe = [r.maybe_accepted for r in replies if isinstance(r, EngineStopped)]
            assert maybe == [True, *[False] * 20]
        assert await rig.funding(OWNER) == 1_000

    play(scene)


def test_a_waiter_for_an_end_gets_the_receipt_when_a_lane_dies(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        waits = asyncio.Event()

        async def silent(_: object, __: Callable[[], object]) -> Any:
            waits.set()
            await asyncio.Event().wait()

        rig.outside.twist = silent
        async with rig.engine() as engine:
            waiting = asyncio.ensure_future(engine.transfer(request("in", 5, "w"), wait_s=60.0))
            await asyncio.wait_for(waits.wait(), SOON_S)
            rig.store.claim = broken  # type: ignore[method-assign]
            answer = await asyncio.wait_for(waiting, SOON_S)
            assert isinstance(answer, Receipt)
            assert answer.transfer.state == "TARGET_PENDING"
            await engine.stop(0.1)

    play(scene)


def test_an_alert_that_raises_does_not_hide_a_death(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        def raises(_: Alert) -> None:
            broken()

        engine = rig.engine()
        object.__setattr__(engine.parts, "alert", raises)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with engine:
            rig.store.look = broken  # type: ignore[method-assign]
            with pytest.raises(EngineStopped):
                await asyncio.wait_for(engine.submit(request("in", 5, "a")), SOON_S)
            assert isinstance(await asyncio.wait_for(engine.died, SOON_S), ZeroDivisionError)

    play(scene)
