"""The run of one check on one bench: it asks as the engine does, and records a story."""

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
from tidegate.engine.step import ask as engine_ask

START = 100  # The balance of the owner when a check starts.
OWNERS = 2**48
SESSIONS = 4
MAX_TRIES = 20
PAUSE_S = 0.1
MAX_STORY = 60


class PromiseBroken(Exception):
    """The system broke a promise. The message is what was expected."""


class NotTried(Exception):
    """The check cannot run, because the bench or the system lacks something."""


class Trial:
    """A bench with one funded owner, and a story of all questions and answers."""

    def __init__(self, bench: SystemUnderTest, fresh: UUID, story: list[str]) -> None:
        self.bench, self.story = bench, story
        self.owner = 1 + fresh.int % (OWNERS - 1)
        self.other = self.owner + 1
        self._first_id, self._question_count = fresh.int, 0
        self._asset_id = int(getattr(bench, "asset_id", ASSET_ID))
        self._sessions: list[System] = []
        self._labels: dict[UUID, str] = {}

    def question(self, verb: Verb, amount: int, owner: int | None = None) -> Question:
        """A new question about a new transfer."""
        transfer_id = UUID(int=(self._first_id + self._question_count) % 2**128)
        self._labels[transfer_id] = _label(self._question_count)
        self._question_count += 1
        book = str(getattr(self.bench, "book", BOOK))
        party = Party(self.bench.system.name, book, owner or self.owner)
        return Question(transfer_id, 0, verb, party, self._asset_id, amount)

    def debit(self, amount: int, owner: int | None = None) -> Question:
        return self.question(Verb.DEBIT, amount, owner)

    def credit(self, amount: int) -> Question:
        return self.question(Verb.CREDIT, amount)

    def undo(self, original: Question, version: int = 1, *, expect_done: bool = True) -> Question:
        if not self.bench.system.reversible:
            raise NotTried("the system cannot undo: reversible is False")
        return replace(
            original,
            version=version,
            verb=Verb.REFUND,
            undoes=original.version,
            expect_done=expect_done,
        )

    async def fund(self, amount: int, owner: int | None = None) -> None:
        receiver = owner or self.owner
        if isinstance(self.bench, CanFund):
            await self.bench.fund(receiver, amount)
            self.record(f"funded with {amount}")
            return
        credit = replace(self.question(Verb.CREDIT, amount, receiver), opens=True)
        if not isinstance(await self._ask_until_decided(credit), Done):
            self.fail("a CREDIT that opens an account is Done")

    async def ask(self, *questions: Question, system: System | None = None) -> Sequence[Answer]:
        """Ask one batch. Every exception is an Unknown, as in the engine."""
        adapter = self.bench.system if system is None else system
        try:
            reply = await engine_ask(adapter, questions)
        except Unreachable as fault:
            reply = Unknown(f"Unreachable: {fault}")
        answers = [reply] * len(questions) if isinstance(reply, Unknown) else list(reply)
        batch = "" if len(questions) == 1 else f" (one batch of {len(questions)})"
        for question, answer in zip(questions, answers, strict=True):
            self.record(f"{self._describe(question)} → {answer_text(answer)}{batch}")
            if not isinstance(answer, Done | Rejected | Unknown):
                self.fail("an answer is Done, Rejected or Unknown")
        return answers

    async def ask_one(self, question: Question) -> Answer:
        return (await self.ask(question))[0]

    async def race(self, *questions: Question) -> Sequence[Answer]:
        """Ask each question by itself, all at once, over several sessions if the bench has them."""
        if not self._sessions:
            self._sessions = [self.bench.system]
            if isinstance(self.bench, HasSecondClient):
                self._sessions += [await self.bench.another() for _ in range(SESSIONS - 1)]
        asks = (
            self.ask(question, system=self._sessions[index % len(self._sessions)])
            for index, question in enumerate(questions)
        )
        return [answer for [answer] in await asyncio.gather(*asks)]

    async def final_answer(self, question: Question) -> Answer:
        """Ask until the answer is not Unknown, as the engine does, but only MAX_TRIES times."""
        answer = await self._ask_until_decided(question)
        if isinstance(answer, Unknown):
            self.fail(f"{self._describe(question)} is Done or Rejected within {MAX_TRIES} tries")
        return answer

    async def _ask_until_decided(self, question: Question) -> Answer:
        for _ in range(MAX_TRIES):
            answer = await self.ask_one(question)
            if not isinstance(answer, Unknown) or answer.alarm > Alarm.NONE:
                return answer
            await asyncio.sleep(PAUSE_S)
        return answer

    async def assert_done(self, question: Question) -> None:
        if not isinstance(await self.final_answer(question), Done):
            self.fail(f"{self._describe(question)} is Done")

    async def assert_rejected(self, question: Question) -> Rejected:
        answer = await self.final_answer(question)
        if not isinstance(answer, Rejected):
            self.fail(f"{self._describe(question)} is Rejected")
        return answer

    async def assert_unknown(self, question: Question, alarm: Alarm) -> None:
        answer = await self.ask_one(question)
        if not isinstance(answer, Unknown):
            self.fail(f"{self._describe(question)} is Unknown, and has no effect")
        if answer.alarm < alarm:
            self.fail(f"the answer raises an alarm: Unknown(…, Alarm.{alarm.name})")

    async def assert_same(self, question: Question, before: Answer) -> None:
        """The same key gets Done or Rejected as before. The reason may differ."""
        after = await self.final_answer(question)
        if type(after) is not type(before):
            self.fail(
                f"{self._describe(question)} gets the same answer as before: {answer_text(before)}"
            )

    async def assert_balance(self, amount: int, owner: int | None = None) -> None:
        balance = await self.bench.balance(owner or self.owner)
        self.record(f"balance: {balance}")
        if balance != amount:
            self.fail(f"the balance is {amount}")

    def record(self, line: str) -> None:
        if len(self.story) < MAX_STORY:
            self.story.append(line)

    def fail(self, expected: str) -> NoReturn:
        raise PromiseBroken(expected)

    def _describe(self, question: Question) -> str:
        """Describe a question. The text is the same in every run."""
        label = self._labels[question.transfer_id]
        text = f"{question.verb.upper()} {question.amount}, key {label}/{question.version}"
        if question.undoes is not None:
            expected = "expected to be done" if question.expect_done else "perhaps not done"
            text += f", undoes {label}/{question.undoes}, {expected}"
        if question.party.owner != self.owner:
            text += ", another owner"
        if question.asset_id != self._asset_id:
            text += ", another asset"
        return text + (", void" if question.void else "")


def answer_text(answer: object) -> str:
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
    suffix, letter = divmod(number, 26)
    return chr(ord("A") + letter) + (str(suffix) if suffix else "")
