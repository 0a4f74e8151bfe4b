"""A listener receives every move in the transaction of that move. A hint wakes a lane at once."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.engine.rig import Play, Rig, made, request
from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.kind import Transfer
from tidegate.core.ports import FlowChecksums, InboxRequest
from tidegate.core.refusals import Refusal
from tidegate.core.transfer import Move, Question
from tidegate.engine.engine import Engine
from tidegate.systems.ledger import FUNDING


class RecordingLedger:
    """A ledger that is also a listener. It records the moves that it receives."""

    def __init__(self, ledger: Any) -> None:
        self.ledger, self.name, self.reversible = ledger, ledger.name, True
        self.moves: list[tuple[str | None, str]] = []
        self.broken: Exception | None = None

    async def lock(
        self, tx: Any, accounts: Sequence[Account], next_: Sequence[Question] = ()
    ) -> None:
        await self.ledger.lock(tx, accounts, next_)

    async def ask(self, tx: Any, questions: Sequence[Question]) -> Sequence[Answer]:
        answers: Sequence[Answer] = await self.ledger.ask(tx, questions)
        return answers

    async def moved(self, tx: Any, moves: Sequence[Move]) -> None:
        if self.broken is not None:
            raise self.broken
        self.moves += [(m.before.state if m.before else None, m.after.state) for m in moves]

    async def refused(self, tx: Any, requests: Sequence[tuple[InboxRequest, Refusal]]) -> None:
        """These tests have no inbox."""


def with_listener(rig: Rig) -> tuple[Engine[Any], RecordingLedger]:
    rig.ledger = ledger = RecordingLedger(rig.ledger)
    return rig.engine(), ledger


def test_a_listener_receives_the_creation_and_every_move(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        engine, ledger = with_listener(rig)
        async with engine:
            await rig.ended([await made(engine, request("in", 10))])
        assert ledger.moves == [
            (None, "TARGET_PENDING"),
            ("TARGET_PENDING", "COMMITTED"),
        ]

    play(scene)


def test_a_move_that_a_listener_cannot_record_is_rolled_back(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        engine, ledger = with_listener(rig)
        async with engine:
            ledger.broken = ValueError("no room")
            submitted = asyncio.gather(engine.submit(request("in", 10)), return_exceptions=True)
            [reply] = await submitted
            assert "no room" in str(reply)
            assert (await rig.books())[FUNDING].available == 1_000
            ledger.broken = None
            await rig.ended([await made(engine, request("in", 10))])
        assert await rig.funding() == 990

    play(scene)


def test_a_hint_makes_a_lane_claim_at_once(play: Play) -> None:
    """The next scan is an hour away. Without the hint the lane would find nothing before."""

    async def scene(rig: Rig) -> None:
        hinted, other = rig.engine(), rig.engine(2)
        hinted.scan.scan_s = 3600.0
        other.lanes["venue"].stop()
        async with hinted:
            await asyncio.sleep(0.1)
            async with other:
                transfer = await made(other, request("in", 10))
            await asyncio.sleep(0.3)
            [found] = await rig.store.find([transfer.id])
            assert found.lane == "venue"
            hinted.hint(["venue"])
            await rig.ended([transfer])

    play(scene)


def test_a_hint_during_a_claim_is_not_lost(play: Play) -> None:
    """The running claim has found nothing, and the next scan is an hour away."""

    async def scene(rig: Rig) -> None:
        claimed, released = asyncio.Event(), asyncio.Event()
        claim = rig.store.claim

        async def slowly(lane: str, limit: int, flows: FlowChecksums) -> Sequence[Transfer]:
            found: Sequence[Transfer] = await claim(lane, limit, flows)
            if lane == "venue" and not released.is_set():
                claimed.set()
                await released.wait()
            return found

        rig.store.claim = slowly  # type: ignore[method-assign]
        hinted, other = rig.engine(), rig.engine(2)
        hinted.scan.scan_s = 3600.0
        other.lanes["venue"].stop()
        async with hinted:
            hinted.hint(["venue"])
            await claimed.wait()
            async with other:
                transfer = await made(other, request("in", 10))
            hinted.hint(["venue"])
            released.set()
            await rig.ended([transfer])

    play(scene)
