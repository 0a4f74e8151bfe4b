"""Rows that poison, brakes that are pulled, systems that are away, stops and deadlines."""

import asyncio
import time
from collections.abc import Sequence
from enum import StrEnum

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.engine.rig import (
    ASSET,
    LEASE_S,
    OWNER,
    SPOT,
    Execute,
    Play,
    Rig,
    made,
    request,
)
from tidegate.core.answers import Alarm, Answer, Done, Unknown, Unreachable
from tidegate.core.flow import Ask, End, Flow, Place, Verb
from tidegate.core.ports import StoreFault, StoreUnavailable
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.core.transfer import Party, Question
from tidegate.engine.births import Receipt
from tidegate.engine.step import conclude
from tidegate.store.migrate import migrate
from tidegate.systems.ledger import Status

pytestmark = pytest.mark.slow


def test_one_question_that_raises_does_not_hold_back_the_others(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async def twist(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            if any(question.amount == 13 for question in questions):
                raise KeyError("no such wallet")
            return execute()

        rig.outside.twist = twist
        async with rig.engine() as engine:
            await rig.ended([await made(engine, request("in", 1))])
            amounts = [13 if n == 70 else 1 for n in range(200)]
            transfers = await asyncio.gather(*(made(engine, request("in", a)) for a in amounts))
            ended = await rig.ended([t for t in transfers if t.amount == 1])
            assert {t.state for t in ended} == {"COMMITTED"}
            [stuck] = await rig.store.find([t.id for t in transfers if t.amount == 13])
            assert stuck.state == "TARGET_PENDING"
            rig.outside.twist = None
            await rig.ended([stuck])
        assert await rig.funding() == 1_000 - 213

    play(scene)


def test_one_row_that_cannot_be_recorded_does_not_hold_back_999(
    play_postgres: Play, database: str
) -> None:
    async def scene(rig: Rig) -> None:
        held = asyncio.Event()

        async def twist(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            await held.wait()
            return execute()

        rig.outside.twist = twist
        async with rig.engine() as engine:
            made_here = [made(engine, request("in", 1)) for _ in range(1_000)]
            transfers = await asyncio.gather(*made_here)
            poison = transfers[500].id
            refuse(database, f"CHECK (transfer_id <> '{poison}' OR version = 0)")
            held.set()
            await rig.ended([t for t in transfers if t.id != poison])
            [stuck] = await rig.store.find([poison])
            assert stuck.state == "TARGET_PENDING"
            paged = [a for a in rig.alerts if a.alarm is Alarm.PAGE]
            assert {a.transfer_id for a in paged} == {poison}
            refuse(database, None)
            [ended] = await rig.ended([stuck])
        assert ended.state == "COMMITTED"
        assert (await rig.funding(), rig.venue_account(OWNER).available) == (0, 2_000)

    play_postgres(scene)


def refuse(database: str, check: str | None) -> None:
    """Make the database refuse certain history rows, or stop doing so, as its owner could."""
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"SET search_path TO {SCHEMA}")  # type: ignore[arg-type, unused-ignore]
        owner.execute("ALTER TABLE history DROP CONSTRAINT IF EXISTS poison")
        if check is not None:
            change = f"ALTER TABLE history ADD CONSTRAINT poison {check}"
            owner.execute(change)  # type: ignore[arg-type, unused-ignore]


def test_a_halt_stops_what_is_in_the_ring_and_a_resume_lets_it_go_on(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        ring_size = 40
        async with rig.engine(ring_size=ring_size) as engine:
            engine.lanes["venue"].stop()  # Nobody takes from the ring until it is full.
            await asyncio.sleep(0.2)
            first = await asyncio.gather(*(made(engine, request("in", 1)) for _ in range(60)))
            assert len(engine.means.rings["venue"]) == ring_size
            await rig.store.halt("a drill", "operator")
            async with rig.engine(2) as other:
                assert await other.submit(request("in", 1)) is Refusal.HALTED
                # The full ring, too, is looked at only after the brake.
                other.means.rings["venue"]._entries.extend(engine.means.rings["venue"]._entries)
                other.lanes["venue"].wake()
                await asyncio.sleep(2 * LEASE_S)
                assert rig.outside.calls == []
                assert await rig.funding() == 1_000 - 60
                await rig.store.resume("the drill is over", "operator")
                ended = await rig.ended(first)
        assert {t.state for t in ended} == {"COMMITTED"}

    play(scene)


def test_a_halt_is_seen_before_the_first_local_ask(play: Play) -> None:
    """The answer that was already there is recorded; the money goes no further."""

    async def scene(rig: Rig) -> None:
        async def twist(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            answers = execute()
            await rig.store.halt("a drill", "operator")
            return answers

        rig.outside.twist = twist
        async with rig.engine() as engine:
            said = await engine.transfer(request("out", 300), wait_s=1.0)
            assert isinstance(said, Receipt)
            assert (said.transfer.state, said.transfer.version) == ("TARGET_PENDING", 1)
            assert said.transfer.lane == "ledger"
            assert await rig.funding() == 1_000
            rig.outside.twist = None
            await rig.store.resume("the drill is over", "operator")
            [ended] = await rig.ended([said.transfer])
        assert ended.state == "COMMITTED"
        assert await rig.funding() == 1_300

    play(scene)


def test_what_our_history_holds_as_done_and_the_system_never_did_pulls_the_brake(
    play: Play,
) -> None:
    async def scene(rig: Rig) -> None:
        await rig.set_status(Status.DISABLED)
        async with rig.engine() as engine:

            async def twist(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
                if questions[0].verb is Verb.DEBIT:
                    return [Done()]  # A lie: nothing was done.
                return execute()

            rig.outside.twist = twist
            said = await engine.transfer(request("out", 300), wait_s=1.0)
        assert isinstance(said, Receipt)
        assert said.transfer.state == "COMPENSATING"
        assert await rig.store.halted()
        assert any(alert.alarm is Alarm.HALT for alert in rig.alerts)
        assert rig.venue_account(OWNER).available == 1_000

    play(scene)


def test_a_full_ring_leaves_rows_due_and_loses_none(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine(ring_size=3) as engine:
            both = [made(engine, request(("in", "out")[n % 2], 1)) for n in range(100)]
            ended = await rig.ended(await asyncio.gather(*both))
        assert {t.state for t in ended} == {"COMMITTED"}

    play(scene)


def test_a_stop_is_bounded_while_the_store_is_away(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        gone = StoreUnavailable("the server is away")

        async def fail(*_: object) -> None:
            raise gone

        engine = rig.engine()
        await engine.__aenter__()
        object.__setattr__(rig.store, "insert", fail)
        asking = asyncio.ensure_future(engine.submit(request("in", 1)))
        await asyncio.sleep(0.3)
        assert not asking.done(), "nobody knows whether it was committed"
        began = time.monotonic()
        await engine.stop(grace_s=0.5)
        assert time.monotonic() - began < 3
        asking.cancel()

    play(scene)


def test_a_local_system_that_raises_refuses_only_what_made_it_raise(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        ask = rig.ledger.ask

        async def touchy(tx: object, questions: Sequence[Question]) -> Sequence[Answer]:
            if any(question.amount == 13 for question in questions):
                raise KeyError("thirteen")
            return await ask(tx, questions)

        rig.ledger.ask = touchy  # type: ignore[method-assign]
        async with rig.engine() as engine:
            asked = [engine.submit(request("in", 13 if n == 5 else 1)) for n in range(20)]
            said = await asyncio.gather(*asked, return_exceptions=True)
        assert [n for n, s in enumerate(said) if not isinstance(s, Receipt)] == [5]
        assert isinstance(said[5], StoreFault)
        assert await rig.funding() == 1_000 - 19

    play(scene)


def test_a_loop_that_dies_does_not_go_unnoticed(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async def broken(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        object.__setattr__(rig.store, "claim", broken)
        async with rig.engine() as engine:
            fault = await asyncio.wait_for(engine.died, 5)
            assert isinstance(fault, ZeroDivisionError)
        assert any(a.alarm is Alarm.CRITICAL for a in rig.alerts)

    play(scene)


def test_a_clean_stop_gives_its_leases_back(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            engine.lanes["venue"].stop()
            await asyncio.sleep(0.2)
            await asyncio.gather(*(made(engine, request("in", 1)) for _ in range(10)))
        assert len(await rig.store.claim("venue", 100)) == 10, "due now, not when a lease is over"

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
            began = time.monotonic()
            ended = await rig.ended(transfers)
            assert time.monotonic() - began < 16
        assert {t.state for t in ended} == {"COMMITTED"}
        assert all(t.retries == 0 for t in ended), "an outage is no attempt of a transfer"

    play(scene)


def test_a_closed_lane_with_nothing_left_to_do_opens_again(play: Play) -> None:
    """Others may have finished what was due: nothing would ever tell this one."""

    async def scene(rig: Rig) -> None:
        async def down(_: Sequence[Question], __: Execute) -> Sequence[Answer]:
            raise Unreachable("connection refused")

        rig.outside.twist = down
        async with rig.engine(1) as one:
            transfer = await made(one, request("in", 1))
            for _ in range(200):
                if one.lanes["venue"].closed:
                    break
                await asyncio.sleep(0.02)
            async with rig.engine(2):
                rig.outside.twist = None
                await rig.ended([transfer])
            for _ in range(400):
                if not one.lanes["venue"].closed:
                    break
                await asyncio.sleep(0.02)
            assert not one.lanes["venue"].closed
            await rig.ended([await made(one, request("in", 1))])
        assert len([a for a in rig.alerts if a.alarm is Alarm.PAGE]) <= 2

    play(scene)


class Step(StrEnum):
    WAITING = "WAITING"
    DEBITING = "DEBITING"
    CREDITING = "CREDITING"
    GIVING_BACK = "GIVING_BACK"
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
            Place.IN_FLIGHT, "target", Verb.CREDIT, done=Step.PAID, rejected=Step.GIVING_BACK
        ),
        Step.GIVING_BACK: Ask(Place.IN_FLIGHT, "source", Verb.REFUND, done=Step.RETURNED),
        Step.PAID: End(Place.TARGET),
        Step.LAPSED: End(Place.SOURCE),
        Step.RETURNED: End(Place.SOURCE),
    },
)


def test_an_answer_after_the_deadline_changes_nothing(play: Play, database: str) -> None:
    async def scene(rig: Rig) -> None:
        migrate(database, SCHEMA, [APPROVED])
        rig.flows = {**rig.flows, APPROVED.name: APPROVED}

        async def twist(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            return [Unknown("nobody has decided yet")] * len(questions)

        rig.outside.twist = twist
        parties = {**request("in", 1).parties, "approver": Party("venue", SPOT, OWNER)}
        async with rig.engine() as engine:
            transfer = await made(engine, Request(OWNER, "approved", parties, ASSET, 5))
            [ended] = await rig.ended([transfer])
            assert (ended.state, ended.error) == ("LAPSED", "EXPIRED")
            await conclude(engine.means, "venue", [transfer], [Done()])
        [after] = await rig.store.find([transfer.id])
        assert (after.state, after.version) == ("LAPSED", 1)
        assert await rig.funding() == 1_000

    play(scene)
