"""A bank in memory that keeps every promise, and one flaw at a time that breaks some."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

from msgspec.structs import replace

from tidegate.certify.system_under_test import ASSET_ID
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import UNDOES, Verb
from tidegate.core.transfer import Question

Key: TypeAlias = tuple[UUID, int]


class Flaw(StrEnum):
    NONE = "none"
    NO_KEYS = "does not look for the key"
    LOOKS_THEN_ACTS = "looks for the key, waits, and then acts"
    LOOKS_ONCE = "looks for the keys of a batch before it begins"
    NO_VERSION = "keys by the transfer alone"
    LAST_KEY = "remembers the last key only"
    FORGETS_UNDONE = "forgets what is undone"
    NO_FINGERPRINT = "does not compare what is asked"
    FORGETS_REFUSALS = "does not keep refusals"
    DEAF_TO_VOID = "carries out what is void"
    UNDOES_TWICE = "does not look whether it was undone"
    UNDO_RACES = "looks whether it was undone, waits, and then gives back"
    NO_TOMBSTONE = "leaves no tombstone"
    TOMBSTONE_FADES = "forgets a tombstone when money comes"
    UNDO_UNEXPECTED = "does not look whether an undo was expected"
    REFUNDS_REFUSALS = "gives back what was refused"
    ALL_OR_NOTHING = "refuses a batch for one in it"
    YES_FIRST = "answers in the order in which it is done"
    OPENING_BALANCE = "judges a batch on the balance before it"
    DEBITS_FIRST = "does the debits of a batch before its credits"
    OVERWRITES = "reads a balance, waits, and writes it back"
    MARKS_FIRST = "marks the key as begun, and never ends what was interrupted"
    EFFECT_FIRST = "moves the money, and then keeps the answer"
    TIMEOUT_IS_NO = "takes a timeout for a no"
    ABSENCE_IS_NO = "takes an absence for a no"
    MEMORY_ONLY = "keeps its answers in memory"
    FROZEN_TAKES_NOTHING = "refuses refunds of the frozen"
    DISABLED_TAKES_NOTHING = "refuses refunds of the disabled"
    NO_ONE_NO_RECORD = "keeps no refusal of an absent account"
    ZERO_IS_DONE = "is done with nothing"
    ONE_PURSE = "keeps all assets in one purse"
    ELSE_PAYS = "pays for every verb it does not know"
    NOT_FOUND_IS_NO = "takes what it does not find for a no"
    SAYS_NOTHING = "answers with None"


class Fault(StrEnum):
    NONE = "none"
    BEFORE = "dies before the effect"
    BETWEEN = "dies after the effect"
    AFTER = "is done, and the reply is lost"
    ABSENT = "is not there"


@dataclass(frozen=True)
class Kept:
    asked: tuple[object, ...]  # Empty for a tombstone.
    answer: Answer
    moved: int = 0
    undone: bool = False


class Bank:
    """The adapter and the bank behind it. Wherever it awaits, others may come first."""

    name, reversible = "bank", True

    def __init__(self, flaw: Flaw) -> None:
        self.flaw, self.fault = flaw, Fault.NONE
        self.balances: dict[int, int] = {}
        self.opening: dict[int, int] = {}  # Before the batch.
        self.statuses: dict[int, str] = {}
        self.kept: dict[Key, Kept] = {}
        self.begun: set[Key] = set()

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        if self.fault is Fault.ABSENT:
            if self.flaw is Flaw.ABSENCE_IS_NO:
                return [Rejected("UNAVAILABLE")] * len(questions)
            raise Unreachable("nobody is there")
        if self.flaw is Flaw.SAYS_NOTHING:
            return [None] * len(questions)  # type: ignore[list-item]
        known, self.opening = dict(self.kept), dict(self.balances)
        if self.flaw is Flaw.DEBITS_FIRST:
            for question in questions:
                if question.verb is Verb.DEBIT:
                    await self._answer(question)
        answers = []
        for question in questions:
            if self.flaw is Flaw.LOOKS_ONCE and self._key(question) not in known:
                self.kept.pop(self._key(question), None)
            answers.append(await self._answer(question))
        if self.fault is Fault.AFTER:
            if self.flaw is Flaw.TIMEOUT_IS_NO:
                return [Rejected("TIMEOUT")] * len(questions)
            raise TimeoutError("no reply")
        if self.flaw is Flaw.ALL_OR_NOTHING and any(isinstance(a, Rejected) for a in answers):
            return [Rejected("BATCH_FAILED")] * len(questions)
        if self.flaw is Flaw.YES_FIRST:
            answers.sort(key=lambda answer: not isinstance(answer, Done))
        return answers

    async def _answer(self, q: Question) -> Answer:
        await asyncio.sleep(0)
        key, asked = self._key(q), (q.verb, q.party, q.asset_id, q.amount, q.undoes)
        known = self.kept.get(key)
        if known is not None and self.flaw is not Flaw.NO_KEYS:
            same = known.asked in (asked, ()) or self.flaw is Flaw.NO_FINGERPRINT
            return known.answer if same else Unknown("KEY_REUSED", Alarm.PAGE)
        if self.flaw is Flaw.LOOKS_THEN_ACTS:
            await asyncio.sleep(0)
        if self.flaw is Flaw.MARKS_FIRST:
            if key in self.begun:
                return Unknown("IN_PROGRESS")
            self.begun.add(key)
        if self.fault is Fault.BEFORE:
            raise ConnectionError("killed")
        answer, moved = await self._judge(q)
        if isinstance(answer, Unknown):
            self.begun.discard(key)
            return answer
        await self._move(q.party.owner, moved)
        if self.flaw is Flaw.EFFECT_FIRST:
            if self.fault is Fault.BETWEEN:
                raise ConnectionError("killed")
            await asyncio.sleep(0)
        self._keep(q, Kept(asked, answer, moved))
        if self.fault is Fault.BETWEEN:
            raise ConnectionError("killed")
        return answer

    def _key(self, q: Question) -> Key:
        return q.transfer_id, 0 if self.flaw is Flaw.NO_VERSION else q.version

    def _keep(self, q: Question, kept: Kept) -> None:
        refused = isinstance(kept.answer, Rejected)
        absent = refused and q.party.owner not in self.balances
        if self.flaw is Flaw.LAST_KEY:
            self.kept.clear()
        if refused and self.flaw is Flaw.FORGETS_REFUSALS and not q.void:
            return
        if not (absent and self.flaw is Flaw.NO_ONE_NO_RECORD):
            self.kept[self._key(q)] = kept

    async def _move(self, owner: int, amount: int) -> None:
        if amount == 0:
            return
        before = self.balances.get(owner, 0)
        if self.flaw is Flaw.OVERWRITES:
            await asyncio.sleep(0)
        if self.flaw is Flaw.TOMBSTONE_FADES and amount > 500:
            self.kept = {key: kept for key, kept in self.kept.items() if kept.asked}
        self.balances[owner] = before + amount

    async def _judge(self, q: Question) -> tuple[Answer, int]:
        balances = self.opening if self.flaw is Flaw.OPENING_BALANCE else self.balances
        status, balance = self.statuses.get(q.party.owner), balances.get(q.party.owner, 0)
        if q.void and self.flaw is not Flaw.DEAF_TO_VOID:
            return Rejected("UNDONE"), 0
        if q.verb in UNDOES and q.undoes is not None:
            return await self._undo(q, status)
        if q.verb not in (Verb.DEBIT, Verb.CREDIT):
            paid = self.flaw is Flaw.ELSE_PAYS
            return (Done(), q.amount) if paid else (Unknown("no such verb", Alarm.PAGE), 0)
        if q.amount == 0 and self.flaw is Flaw.ZERO_IS_DONE:
            return Done(), 0
        if not 0 < q.amount < 2**127:
            return Rejected("INVALID_AMOUNT"), 0
        if status == "DISABLED" or (status == "FROZEN" and q.verb is Verb.DEBIT):
            return Rejected(f"ACCOUNT_{status}"), 0
        if q.verb is Verb.CREDIT:
            return Done(), q.amount
        if q.asset_id != ASSET_ID and self.flaw is not Flaw.ONE_PURSE:
            return Rejected("INVALID_ASSET"), 0
        return (Done(), -q.amount) if balance >= q.amount else (Rejected("INSUFFICIENT"), 0)

    async def _undo(self, q: Question, status: str | None) -> tuple[Answer, int]:
        assert q.undoes is not None
        key = self._key(replace(q, version=q.undoes))
        original = self.kept.get(key)
        refusing = {Flaw.FROZEN_TAKES_NOTHING: "FROZEN", Flaw.DISABLED_TAKES_NOTHING: "DISABLED"}
        if status is not None and refusing.get(self.flaw) == status:
            return Rejected(f"ACCOUNT_{status}"), 0
        happened = original is not None and isinstance(original.answer, Done)
        if q.expect_done and not happened and self.flaw is not Flaw.UNDO_UNEXPECTED:
            return Unknown("UNDO_UNFOUNDED", Alarm.HALT), 0
        if original is None:
            if self.flaw is not Flaw.NO_TOMBSTONE:
                self.kept[key] = Kept((), Rejected("UNDONE"))
            return Done(), 0
        if not happened:
            return Done(), q.amount if self.flaw is Flaw.REFUNDS_REFUSALS and original.asked else 0
        if self.flaw is Flaw.UNDO_RACES:
            await asyncio.sleep(0)
        if original.undone and self.flaw is not Flaw.UNDOES_TWICE:
            return Done(), 0
        self.kept[key] = Kept(original.asked, original.answer, original.moved, undone=True)
        if self.flaw is Flaw.FORGETS_UNDONE:
            del self.kept[key]
        return Done(), -original.moved


class BankBench:
    """Everything that a bench can offer."""

    in_order = True

    def __init__(self, flaw: Flaw) -> None:
        self.system = Bank(flaw)
        self.killed_before = self._meeting(Fault.BEFORE)
        self.killed_after = self._meeting(Fault.BETWEEN)
        self.reply_lost = self._meeting(Fault.AFTER)
        self.unreachable = self._meeting(Fault.ABSENT)

    def _meeting(self, fault: Fault) -> Callable[[], AbstractAsyncContextManager[None]]:
        @asynccontextmanager
        async def met() -> AsyncIterator[None]:
            self.system.fault = fault
            yield
            self.system.fault = Fault.NONE

        return met

    async def balance(self, owner: int) -> int:
        return self.system.balances[owner]

    async def query(self, question: Question) -> Answer | None:
        kept = self.system.kept.get((question.transfer_id, question.version))
        if kept is None and self.system.flaw is Flaw.NOT_FOUND_IS_NO:
            return Rejected("NOT_FOUND")
        return None if kept is None else kept.answer

    async def freeze(self, owner: int) -> None:
        self.system.statuses[owner] = "FROZEN"

    async def disable(self, owner: int) -> None:
        self.system.statuses[owner] = "DISABLED"

    async def restart(self) -> None:
        if self.system.flaw is Flaw.MEMORY_ONLY:
            self.system.kept.clear()
