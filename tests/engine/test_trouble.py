"""Halts, unreachable systems, stops and deadlines."""

import asyncio
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import pytest

from tests.engine.rig import ASSET, LEASE_S, OWNER, SPOT, WAIT_S, Execute, Play, Rig, made, request
from tidegate.core.answers import Alarm, Answer, Done, Unknown, Unreachable
from tidegate.core.flow import Ask, End, Flow, Place, Verb
from tidegate.core.kind import Party, Transfer
from tidegate.core.ports import StoreUnavailable
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.core.transfer import Question
from tidegate.engine.engine import Engine
from tidegate.engine.pending_request import Receipt
from tidegate.engine.ring import RING_SIZE
from tidegate.engine.step import record_answers
from tidegate.engine.stopped import EngineStopped
from tidegate.engine.write_batch import WriteBatch
from tidegate.systems.ledger import LedgerStatus

pytestmark = pytest.mark.slow


def test_a_halt_stops_the_transfers_of_a_full_ring_until_it_is_resumed(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        # Leases last longer than filling the ring takes, so that only the halt stops its entries.
        object.__setattr__(rig.store, "lease_s", 60.0)
        await rig.deposit(RING_SIZE)
        released = asyncio.Event()

        async def twist(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            await released.wait()
            return execute()

        rig.outside.twist = twist
        async with rig.engine() as engine:
            busy = await occupy(rig, engine)
            waiting: list[Transfer] = []
            for size in (*[RING_SIZE // 10] * 10, 20):
                wave = [made(engine, request("in", 1)) for _ in range(size)]
                waiting += await asyncio.gather(*wave)
            ring = engine.context.rings["venue"]
            assert len(ring) == ring.size == RING_SIZE == 10_000
            await rig.store.halt("a drill", "operator")
            released.set()
            await rig.ended(busy)  # They were asked before the halt: their answers are recorded.
            async with rig.engine(2) as other:
                assert await other.submit(request("in", 1)) is Refusal.HALTED
                await until(lambda: len(ring) == 0)
                await asyncio.sleep(LEASE_S)
            assert len(rig.outside.calls) == len(busy)
            assert {t.state for t in await rig.store.find([t.id for t in waiting])} == {
                "TARGET_PENDING"
            }
            assert rig.venue_account(OWNER).available == 1_000 + len(busy)
            await rig.store.resume("the drill is over", "operator")
            ended = await rig.ended(waiting)
        assert len(ended) == RING_SIZE + 20
        assert {t.state for t in ended} == {"COMMITTED"}
        moved = len(ended) + len(busy)
        assert await rig.funding() == 1_000 + RING_SIZE - moved
        assert rig.venue_account(OWNER).available == 1_000 + moved

    play(scene)


async def occupy(rig: Rig, engine: Engine[Any]) -> list[Transfer]:
    """Give each loop of the venue's lane one transfer, so that none takes from the ring."""
    busy: list[Transfer] = []
    while len(busy) < engine.parts.loops_per_lane:
        busy.append(await made(engine, request("in", 1)))
        await until(lambda: len(rig.outside.calls) == len(busy))
    return busy


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, for WAIT_S at most."""
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "the condition does not hold"
        await asyncio.sleep(0.01)


def test_a_halt_is_seen_before_the_first_local_ask(play: Play) -> None:
    """The answer that has arrived is recorded, but no further money moves."""

    async def scene(rig: Rig) -> None:
        async def twist(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            answers = execute()
            await rig.store.halt("a drill", "operator")
            return answers

        rig.outside.twist = twist
        async with rig.engine() as engine:
            receipt = await engine.transfer(request("out", 300), wait_s=1.0)
            assert isinstance(receipt, Receipt)
            assert (receipt.transfer.state, receipt.transfer.version) == ("TARGET_PENDING", 1)
            assert receipt.transfer.lane == "ledger"
            assert await rig.funding() == 1_000
            rig.outside.twist = None
            await rig.store.resume("the drill is over", "operator")
            [ended] = await rig.ended([receipt.transfer])
        assert ended.state == "COMMITTED"
        assert await rig.funding() == 1_300

    play(scene)


def test_a_refund_of_a_debit_that_the_system_never_made_halts(
    play: Play,
) -> None:
    async def scene(rig: Rig) -> None:
        await rig.set_status(LedgerStatus.DISABLED)
        async with rig.engine() as engine:

            async def twist(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
                if questions[0].verb is Verb.DEBIT:
                    return [Done()]  # A false answer: nothing was done.
                return execute()

            rig.outside.twist = twist
            receipt = await engine.transfer(request("out", 300), wait_s=1.0)
        assert isinstance(receipt, Receipt)
        assert receipt.transfer.state == "COMPENSATING"
        assert await rig.store.halted()
        assert any(alert.alarm is Alarm.HALT for alert in rig.alerts)
        assert rig.venue_account(OWNER).available == 1_000

    play(scene)


def test_a_full_ring_leaves_rows_due_and_loses_none(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine(ring_size=3) as engine:
            calls = [made(engine, request(("in", "out")[n % 2], 1)) for n in range(100)]
            ended = await rig.ended(await asyncio.gather(*calls))
        assert {t.state for t in ended} == {"COMMITTED"}

    play(scene)


def test_a_stop_is_bounded_while_the_store_is_away(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async def fail(*_: object) -> None:
            raise StoreUnavailable("the server is away")

        engine = rig.engine()
        await engine.__aenter__()
        object.__setattr__(rig.store, "write", fail)
        call = asyncio.ensure_future(engine.submit(request("in", 1)))
        await asyncio.sleep(0.3)
        assert not call.done(), "it is unknown whether it was committed"
        began_s = time.monotonic()
        await engine.stop(grace_s=0.5)
        assert time.monotonic() - began_s < 3
        with pytest.raises(EngineStopped) as raised:
            await call
        assert raised.value.maybe_accepted

    play(scene)


@pytest.mark.parametrize("call", ["due", "claim"])  # Called by the scan, and by a lane.
def test_a_loop_that_fails_with_a_bug_is_reported(play: Play, call: str) -> None:
    async def scene(rig: Rig) -> None:
        async def broken(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        object.__setattr__(rig.store, call, broken)
        async with rig.engine() as engine:
            engine.hint(["venue"])
            fault = await asyncio.wait_for(engine.died, 5)
            assert isinstance(fault, ZeroDivisionError)
        assert any(a.alarm is Alarm.CRITICAL for a in rig.alerts)

    play(scene)


def test_a_stop_releases_the_leases(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            engine.lanes["venue"].stop()
            await asyncio.sleep(0.2)
            await asyncio.gather(*(made(engine, request("in", 1)) for _ in range(10)))
        assert len(await rig.store.claim("venue", 100, engine.context.tables)) == 10, "not leased"

    play(scene)


@pytest.mark.slow
def test_an_unreachable_system_closes_its_lane_with_one_page(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        down = True

        async def twist(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            if down:
                raise Unreachable("connection refused")
            return execute()

        rig.outside.twist = twist
        async with rig.engine() as engine:
            transfers = await asyncio.gather(*(made(engine, request("in", 1)) for _ in range(50)))
            await asyncio.sleep(2.5 * LEASE_S)
            assert engine.lanes["venue"].closed
            assert len([a for a in rig.alerts if a.alarm is Alarm.PAGE]) == 1
            later = rig.outside.calls[2:]
            assert all(len(call) == 1 for call in later), "one probe at a time"
            down = False
            began_s = time.monotonic()
            ended = await rig.ended(transfers)
            assert time.monotonic() - began_s < 16
        assert {t.state for t in ended} == {"COMMITTED"}
        assert all(t.retries == 0 for t in ended), "an outage does not count as an attempt"

    play(scene)


def test_a_closed_lane_without_due_transfers_opens_again(play: Play) -> None:
    """Another engine may have finished what was due: then no probe of this one gets an answer."""

    async def scene(rig: Rig) -> None:
        async def unreachable(_: Sequence[Question], __: Execute) -> Sequence[Answer]:
            raise Unreachable("connection refused")

        rig.outside.twist = unreachable
        async with rig.engine(1) as engine:
            transfer = await made(engine, request("in", 1))
            for _ in range(200):
                if engine.lanes["venue"].closed:
                    break
                await asyncio.sleep(0.02)
            async with rig.engine(2):
                rig.outside.twist = None
                await rig.ended([transfer])
            for _ in range(400):
                if not engine.lanes["venue"].closed:
                    break
                await asyncio.sleep(0.02)
            assert not engine.lanes["venue"].closed
            await rig.ended([await made(engine, request("in", 1))])
        assert len([a for a in rig.alerts if a.alarm is Alarm.PAGE]) <= 2

    play(scene)


class Step(StrEnum):
    WAITING = "WAITING"
    DEBITING = "DEBITING"
    CREDITING = "CREDITING"
    REFUNDING = "REFUNDING"
    PAID = "PAID"
    LAPSED = "LAPSED"
    RETURNED = "RETURNED"


APPROVED = Flow(
    "approved",
    first=Step.WAITING,
    rows={
        Step.WAITING: Ask(
            Place.SOURCE,
            "approver",
            Verb.CHECK,
            done=Step.DEBITING,
            rejected=Step.LAPSED,
            deadline_s=0.6,
        ),
        Step.DEBITING: Ask(
            Place.SOURCE, "source", Verb.DEBIT, done=Step.CREDITING, rejected=Step.LAPSED
        ),
        Step.CREDITING: Ask(
            Place.IN_FLIGHT, "target", Verb.CREDIT, done=Step.PAID, rejected=Step.REFUNDING
        ),
        Step.REFUNDING: Ask(Place.IN_FLIGHT, "source", Verb.REFUND, done=Step.RETURNED),
        Step.PAID: End(Place.TARGET),
        Step.LAPSED: End(Place.SOURCE),
        Step.RETURNED: End(Place.SOURCE),
    },
    roles=frozenset({"approver"}),
)


def test_an_answer_after_the_deadline_changes_nothing(play: Play, database: str) -> None:
    async def scene(rig: Rig) -> None:
        rig.install(database, APPROVED)

        async def twist(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            return [Unknown("not decided yet")] * len(questions)

        rig.outside.twist = twist
        parties = {**request("in", 1).parties, "approver": Party("venue", SPOT, OWNER)}
        async with rig.engine() as engine:
            transfer = await made(engine, Request(OWNER, "approved", parties, ASSET, 5))
            [ended] = await rig.ended([transfer])
            assert (ended.state, ended.error) == ("LAPSED", "EXPIRED")
            await record_answers(engine.context, WriteBatch([transfer], [Done()], "venue"))
        [after] = await rig.store.find([transfer.id])
        assert (after.state, after.version) == ("LAPSED", 1)
        assert await rig.funding() == 1_000

    play(scene)
