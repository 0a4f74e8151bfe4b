"""One check on one bench: it asks as the engine asks, and keeps what was said for the telling."""

import asyncio
from collections.abc import Sequence
from typing import NoReturn
from uuid import UUID

from msgspec.structs import replace

from tidegate.certify.system_under_test import (
    ASSET_ID,
    BOOK,
    CanFund,
    HasSecondClient,
    SystemUnderTest,
)
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.ports import System
from tidegate.core.transfer import Question
from tidegate.engine.step import ask as engine_asks

START = 100  # What the owner has when a check begins.
OWNERS = 2**48
SESSIONS = 4
MAX_TRIES = 20
PAUSE_S = 0.1
MAX_STORY = 60


class PromiseBroken(Exception):
    """A promise did not hold: what was expected, and what came instead."""


class NotTried(Exception):
    """Nothing can be said, because the bench does not offer what the check needs."""


class Trial:
    """A bench with an owner who has START, and a story of all that was asked and answered."""

    def __init__(self, bench: SystemUnderTest, fresh: UUID, story: list[str]) -> None:
        self.bench, self.story = bench, story
        self.owner = 1 + fresh.int % (OWNERS - 1)
        self.other = self.owner + 1
        self._first, self._asked = fresh.int, 0
        self._asset_id = int(getattr(bench, "asset_id", ASSET_ID))
        self._sessions: list[System] = []
        self._labels: dict[UUID, str] = {}

    def question(self, verb: Verb, amount: int, owner: int | None = None) -> Question:
        """A new question about a new transfer."""
        transfer_id = UUID(int=(self._first + self._asked) % 2**128)
        self._labels[transfer_id] = _label(self._asked)
        self._asked += 1
        book = str(getattr(self.bench, "book", BOOK))
        party = Party(self.bench.system.name, book, owner or self.owner)
        return Question(transfer_id, 0, verb, party, self._asset_id, amount)

    def debit(self, amount: int, owner: int | None = None) -> Question:
        return self.question(Verb.DEBIT, amount, owner)

    def credit(self, amount: int) -> Question:
        return self.question(Verb.CREDIT, amount)

    def undo(self, original: Question, version: int = 1, *, expect_done: bool = True) -> Question:
        if not self.bench.system.reversible:
            raise NotTried("the system says that it cannot undo: reversible is False")
        return replace(
            original,
            version=version,
            verb=Verb.REFUND,
            undoes=original.version,
            expect_done=expect_done,
        )

    async def fund(self, amount: int, owner: int | None = None) -> None:
        to = owner or self.owner
        if isinstance(self.bench, CanFund):
            await self.bench.fund(to, amount)
            self.tell(f"funded with {amount}")
            return
        credit = replace(self.question(Verb.CREDIT, amount, to), opens=True)
        if not isinstance(await self._settle(credit), Done):
            self.broken("a CREDIT that opens an account puts money into it")

    async def ask(self, *questions: Question, system: System | None = None) -> Sequence[Answer]:
        """One batch. Whatever is raised is an Unknown, as it is to the engine."""
        asked = self.bench.system if system is None else system
        try:
            said = await engine_asks(asked, questions)
        except Unreachable as fault:
            said = Unknown(f"Unreachable: {fault}")
        answers = [said] * len(questions) if isinstance(said, Unknown) else list(said)
        where = "" if len(questions) == 1 else f" (one batch of {len(questions)})"
        for question, answer in zip(questions, answers, strict=True):
            self.tell(f"{self._named(question)} → {shown(answer)}{where}")
            if not isinstance(answer, Done | Rejected | Unknown):
                self.broken("an answer is Done, Rejected or Unknown")
        return answers

    async def one(self, question: Question) -> Answer:
        return (await self.ask(question))[0]

    async def race(self, *questions: Question) -> Sequence[Answer]:
        """Each question in an ask of its own, all at once, over several sessions if there are."""
        if not self._sessions:
            self._sessions = [self.bench.system]
            if isinstance(self.bench, HasSecondClient):
                self._sessions += [await self.bench.another() for _ in range(SESSIONS - 1)]
        asks = (
            self.ask(question, system=self._sessions[turn % len(self._sessions)])
            for turn, question in enumerate(questions)
        )
        return [answer for [answer] in await asyncio.gather(*asks)]

    async def final(self, question: Question) -> Answer:
        """Ask until it is no longer Unknown, as the engine would, though not for ever."""
        answer = await self._settle(question)
        if isinstance(answer, Unknown):
            self.broken(f"{self._named(question)} comes to an answer within {MAX_TRIES} tries")
        return answer

    async def _settle(self, question: Question) -> Answer:
        for _ in range(MAX_TRIES):
            answer = await self.one(question)
            if not isinstance(answer, Unknown) or answer.alarm > Alarm.NONE:
                return answer
            await asyncio.sleep(PAUSE_S)
        return answer

    async def done(self, question: Question) -> None:
        if not isinstance(await self.final(question), Done):
            self.broken(f"{self._named(question)} is Done")

    async def rejected(self, question: Question) -> Rejected:
        answer = await self.final(question)
        if not isinstance(answer, Rejected):
            self.broken(f"{self._named(question)} is Rejected")
        return answer

    async def unknown(self, question: Question, alarm: Alarm) -> None:
        answer = await self.one(question)
        if not isinstance(answer, Unknown):
            self.broken(f"{self._named(question)} is Unknown, and nothing happens")
        if answer.alarm < alarm:
            self.broken(f"a person is told of it: Unknown(…, Alarm.{alarm.name})")

    async def same(self, question: Question, before: Answer) -> None:
        """The same key gets the same yes or no; in what words may differ."""
        after = await self.final(question)
        if type(after) is not type(before):
            self.broken(f"{self._named(question)} gets the answer it got before: {shown(before)}")

    async def has(self, amount: int, owner: int | None = None) -> None:
        """The owner has this much, by the money itself."""
        found = await self.bench.balance(owner or self.owner)
        self.tell(f"balance: {found}")
        if found != amount:
            self.broken(f"the balance is {amount}")

    def tell(self, line: str) -> None:
        if len(self.story) < MAX_STORY:
            self.story.append(line)

    def broken(self, expected: str) -> NoReturn:
        raise PromiseBroken(expected)

    def _named(self, question: Question) -> str:
        """A question in words that are the same in every run."""
        label = self._labels[question.transfer_id]
        words = f"{question.verb.upper()} {question.amount}, key {label}/{question.version}"
        if question.undoes is not None:
            expected = "expected to be done" if question.expect_done else "perhaps not done"
            words += f", undoes {label}/{question.undoes}, {expected}"
        if question.party.owner != self.owner:
            words += ", another owner"
        if question.asset_id != self._asset_id:
            words += ", another asset"
        return words + (", void" if question.void else "")


def shown(answer: object) -> str:
    match answer:
        case Done():
            return "Done"
        case Rejected(reason=reason):
            return f"Rejected({reason})"
        case Unknown(reason=reason, alarm=alarm):
            return f"Unknown({reason})" + (f", {alarm.name}" if alarm else "")
        case _:
            return repr(answer)


def _label(number: int) -> str:
    """A, B, … Z, A1, B1 …"""
    turn, letter = divmod(number, 26)
    return chr(ord("A") + letter) + (str(turn) if turn else "")
