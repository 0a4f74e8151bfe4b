"""A system that keeps a record of its own is told of every move, in the same transaction."""

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


class Watching:
    """The ledger with a record of its own, kept in the table of its accounts' names."""

    def __init__(self, ledger: Any) -> None:
        self.ledger, self.name, self.reversible = ledger, ledger.name, True
        self.seen: list[tuple[str | None, str]] = []
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
        self.seen += [(m.before.state if m.before else None, m.after.state) for m in moves]

    async def refused(self, tx: Any, requests: Sequence[tuple[InboxRequest, Refusal]]) -> None:
        """Nothing comes out of an inbox here."""


def watched(rig: Rig) -> tuple[Engine[Any], Watching]:
    rig.ledger = watching = Watching(rig.ledger)
    return rig.engine(), watching


def test_a_witness_sees_the_birth_and_every_move(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        engine, watching = watched(rig)
        async with engine:
            await rig.ended([await made(engine, request("in", 10))])
        assert watching.seen == [
            (None, "TARGET_PENDING"),
            ("TARGET_PENDING", "COMMITTED"),
        ]

    play(scene)


def test_what_a_witness_cannot_record_has_not_happened(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        engine, watching = watched(rig)
        async with engine:
            watching.broken = ValueError("no room")
            asked = asyncio.gather(engine.submit(request("in", 10)), return_exceptions=True)
            [said] = await asked
            assert "no room" in str(said)
            assert (await rig.books())[FUNDING].available == 1_000
            watching.broken = None
            await rig.ended([await made(engine, request("in", 10))])
        assert await rig.funding() == 990

    play(scene)


def test_a_hint_makes_a_lane_look_at_once(play: Play) -> None:
    """The next scan is an hour away: without the hint nothing would be found before."""

    async def scene(rig: Rig) -> None:
        sleepy, other = rig.engine(), rig.engine(2)
        sleepy.scan.scan_s = 3600.0
        other.lanes["venue"].stop()
        async with sleepy:
            await asyncio.sleep(0.1)
            async with other:
                transfer = await made(other, request("in", 10))
            await asyncio.sleep(0.3)
            [found] = await rig.store.find([transfer.id])
            assert found.lane == "venue"
            sleepy.hint(["venue"])
            await rig.ended([transfer])

    play(scene)


def test_a_hint_that_comes_while_a_lane_looks_is_heard(play: Play) -> None:
    """The look has seen nothing yet, and the next scan is an hour away."""

    async def scene(rig: Rig) -> None:
        looked, on = asyncio.Event(), asyncio.Event()
        claim = rig.store.claim

        async def slowly(lane: str, limit: int, flows: FlowChecksums) -> Sequence[Transfer]:
            found: Sequence[Transfer] = await claim(lane, limit, flows)
            if lane == "venue" and not on.is_set():
                looked.set()
                await on.wait()
            return found

        rig.store.claim = slowly  # type: ignore[method-assign]
        sleepy, other = rig.engine(), rig.engine(2)
        sleepy.scan.scan_s = 3600.0
        other.lanes["venue"].stop()
        async with sleepy:
            sleepy.hint(["venue"])
            await looked.wait()
            async with other:
                transfer = await made(other, request("in", 10))
            sleepy.hint(["venue"])
            on.set()
            await rig.ended([transfer])

    play(scene)
