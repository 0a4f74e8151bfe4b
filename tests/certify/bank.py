"""A bank in memory that keeps every promise, except those that its one flaw breaks."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

from msgspec.structs import replace

from tidegate.certify.system_under_test import ASSET_ID
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import UNDO_VERBS, Verb
from tidegate.core.transfer import Question

Key: TypeAlias = tuple[UUID, int]


class Flaw(StrEnum):
    NONE = "none"
    NO_KEYS = "does not look up the key"
    LOOKUP_THEN_WAIT = "looks up the key, waits, and then acts"
    LOOKUP_ONCE = "looks up the keys of a batch once, before the batch"
    NO_VERSION = "uses the transfer id alone as the key"
    LAST_KEY = "stores the last key only"
    FORGETS_UNDONE = "forgets undone operations"
    NO_FINGERPRINT = "does not compare the question with the stored one"
    FORGETS_REFUSALS = "does not store refusals"
    IGNORES_VOID = "carries out a void question"
    UNDOES_TWICE = "does not check whether the operation was undone"
    UNDO_RACES = "checks whether the operation was undone, waits, and then gives back"
    NO_TOMBSTONE = "stores no tombstone"
    TOMBSTONE_DELETED = "forgets tombstones when money arrives"
    UNDO_UNEXPECTED = "ignores expect_done"
    REFUNDS_REFUSALS = "gives back the amount of a refused operation"
    ALL_OR_NOTHING = "refuses the whole batch because of one question"
    DONE_FIRST = "returns the answers in another order"
    OPENING_BALANCE = "judges a batch on the balance before it"
    DEBITS_FIRST = "does the debits of a batch before its credits"
    OVERWRITES = "reads a balance, waits, and writes it back"
    STARTED_FIRST = "stores the key as started, and never ends an interrupted operation"
    EFFECT_FIRST = "moves the money before it stores the answer"
    TIMEOUT_IS_REJECTED = "answers Rejected after a timeout"
    UNREACHABLE_IS_REJECTED = "answers Rejected when it is unreachable"
    MEMORY_ONLY = "stores its answers in memory"
    FROZEN_REFUSES_REFUNDS = "refuses refunds to frozen accounts"
    DISABLED_REFUSES_REFUNDS = "refuses refunds to disabled accounts"
    ABSENT_NOT_STORED = "does not store the refusal of a missing account"
    ZERO_IS_DONE = "answers Done for an amount of zero"
    ASSETS_MIXED = "keeps one balance for all assets"
    ELSE_PAYS = "pays for every verb that it does not support"
    NOT_FOUND_IS_REJECTED = "a query answers Rejected for an unknown key"
    ANSWERS_NONE = "answers with None"


class Fault(StrEnum):
    NONE = "none"
    BEFORE = "crashes before the effect"
    BETWEEN = "crashes after the effect"
    AFTER = "carries out the question, and the reply is lost"
    ABSENT = "is unreachable"


@dataclass(frozen=True)
class StoredOperation:
    question: tuple[object, ...]  # Empty for a tombstone.
    answer: Answer
    moved: int = 0
    undone: bool = False


class Bank:
    """The adapter and its bank. At each await, another task may run first."""

    name, reversible = "bank", True

    def __init__(self, flaw: Flaw) -> None:
        self.flaw, self.fault = flaw, Fault.NONE
        self.balances: dict[int, int] = {}
        self.opening: dict[int, int] = {}  # The balances before the batch.
        self.statuses: dict[int, str] = {}
        self.stored: dict[Key, StoredOperation] = {}
        self.started: set[Key] = set()

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        if self.fault is Fault.ABSENT:
            if self.flaw is Flaw.UNREACHABLE_IS_REJECTED:
                return [Rejected("UNAVAILABLE")] * len(questions)
            raise Unreachable("the bank is unreachable")
        if self.flaw is Flaw.ANSWERS_NONE:
            return [None] * len(questions)  # type: ignore[list-item]
        known, self.opening = dict(self.stored), dict(self.balances)
        if self.flaw is Flaw.DEBITS_FIRST:
            for question in questions:
                if question.verb is Verb.DEBIT:
                    await self._answer(question)
        answers = []
        for question in questions:
            if self.flaw is Flaw.LOOKUP_ONCE and self._key(question) not in known:
                self.stored.pop(self._key(question), None)
            answers.append(await self._answer(question))
        if self.fault is Fault.AFTER:
            if self.flaw is Flaw.TIMEOUT_IS_REJECTED:
                return [Rejected("TIMEOUT")] * len(questions)
            raise TimeoutError("no reply")
        if self.flaw is Flaw.ALL_OR_NOTHING and any(isinstance(a, Rejected) for a in answers):
            return [Rejected("BATCH_FAILED")] * len(questions)
        if self.flaw is Flaw.DONE_FIRST:
            answers.sort(key=lambda answer: not isinstance(answer, Done))
        return answers

    async def _answer(self, q: Question) -> Answer:
        await asyncio.sleep(0)
        key, question = self._key(q), (q.verb, q.party, q.asset_id, q.amount, q.undoes)
        known = self.stored.get(key)
        if known is not None and self.flaw is not Flaw.NO_KEYS:
            same = known.question in (question, ()) or self.flaw is Flaw.NO_FINGERPRINT
            return known.answer if same else Unknown("KEY_REUSED", Alarm.PAGE)
        if self.flaw is Flaw.LOOKUP_THEN_WAIT:
            await asyncio.sleep(0)
        if self.flaw is Flaw.STARTED_FIRST:
            if key in self.started:
                return Unknown("IN_PROGRESS")
            self.started.add(key)
        if self.fault is Fault.BEFORE:
            raise ConnectionError("killed")
        answer, moved = await self._judge(q)
        if isinstance(answer, Unknown):
            self.started.discard(key)
            return answer
        await self._move(q.party.owner, moved)
        if self.flaw is Flaw.EFFECT_FIRST:
            if self.fault is Fault.BETWEEN:
                raise ConnectionError("killed")
            await asyncio.sleep(0)
        self._store(q, StoredOperation(question, answer, moved))
        if self.fault is Fault.BETWEEN:
            raise ConnectionError("killed")
        return answer

    def _key(self, q: Question) -> Key:
        return q.transfer_id, 0 if self.flaw is Flaw.NO_VERSION else q.version

    def _store(self, q: Question, operation: StoredOperation) -> None:
        refused = isinstance(operation.answer, Rejected)
        absent = refused and q.party.owner not in self.balances
        if self.flaw is Flaw.LAST_KEY:
            self.stored.clear()
        if refused and self.flaw is Flaw.FORGETS_REFUSALS and not q.void:
            return
        if not (absent and self.flaw is Flaw.ABSENT_NOT_STORED):
            self.stored[self._key(q)] = operation

    async def _move(self, owner: int, amount: int) -> None:
        if amount == 0:
            return
        before = self.balances.get(owner, 0)
        if self.flaw is Flaw.OVERWRITES:
            await asyncio.sleep(0)
        if self.flaw is Flaw.TOMBSTONE_DELETED and amount > 500:
            self.stored = {key: o for key, o in self.stored.items() if o.question}
        self.balances[owner] = before + amount

    async def _judge(self, q: Question) -> tuple[Answer, int]:
        balances = self.opening if self.flaw is Flaw.OPENING_BALANCE else self.balances
        status, balance = self.statuses.get(q.party.owner), balances.get(q.party.owner, 0)
        if q.void and self.flaw is not Flaw.IGNORES_VOID:
            return Rejected("UNDONE"), 0
        if q.verb in UNDO_VERBS and q.undoes is not None:
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
        if q.asset_id != ASSET_ID and self.flaw is not Flaw.ASSETS_MIXED:
            return Rejected("INVALID_ASSET"), 0
        return (Done(), -q.amount) if balance >= q.amount else (Rejected("INSUFFICIENT"), 0)

    async def _undo(self, q: Question, status: str | None) -> tuple[Answer, int]:
        assert q.undoes is not None
        key = self._key(replace(q, version=q.undoes))
        original = self.stored.get(key)
        refusing = {
            Flaw.FROZEN_REFUSES_REFUNDS: "FROZEN",
            Flaw.DISABLED_REFUSES_REFUNDS: "DISABLED",
        }
        if status is not None and refusing.get(self.flaw) == status:
            return Rejected(f"ACCOUNT_{status}"), 0
        done = original is not None and isinstance(original.answer, Done)
        if q.expect_done and not done and self.flaw is not Flaw.UNDO_UNEXPECTED:
            return Unknown("UNDO_UNFOUNDED", Alarm.HALT), 0
        if original is None:
            if self.flaw is not Flaw.NO_TOMBSTONE:
                self.stored[key] = StoredOperation((), Rejected("UNDONE"))
            return Done(), 0
        if not done:
            refunds = self.flaw is Flaw.REFUNDS_REFUSALS and original.question
            return Done(), q.amount if refunds else 0
        if self.flaw is Flaw.UNDO_RACES:
            await asyncio.sleep(0)
        if original.undone and self.flaw is not Flaw.UNDOES_TWICE:
            return Done(), 0
        self.stored[key] = dataclasses.replace(original, undone=True)
        if self.flaw is Flaw.FORGETS_UNDONE:
            del self.stored[key]
        return Done(), -original.moved


class BankBench:
    """A bench with all optional members except `fund` and `another`."""

    in_order = True

    def __init__(self, flaw: Flaw) -> None:
        self.system = Bank(flaw)
        self.killed_before = self._block(Fault.BEFORE)
        self.killed_after = self._block(Fault.BETWEEN)
        self.reply_lost = self._block(Fault.AFTER)
        self.unreachable = self._block(Fault.ABSENT)

    def _block(self, fault: Fault) -> Callable[[], AbstractAsyncContextManager[None]]:
        @asynccontextmanager
        async def block() -> AsyncIterator[None]:
            self.system.fault = fault
            yield
            self.system.fault = Fault.NONE

        return block

    async def balance(self, owner: int) -> int:
        return self.system.balances[owner]

    async def query(self, question: Question) -> Answer | None:
        operation = self.system.stored.get((question.transfer_id, question.version))
        if operation is None and self.system.flaw is Flaw.NOT_FOUND_IS_REJECTED:
            return Rejected("NOT_FOUND")
        return None if operation is None else operation.answer

    async def freeze(self, owner: int) -> None:
        self.system.statuses[owner] = "FROZEN"

    async def disable(self, owner: int) -> None:
        self.system.statuses[owner] = "DISABLED"

    async def restart(self) -> None:
        if self.system.flaw is Flaw.MEMORY_ONLY:
            self.system.stored.clear()
