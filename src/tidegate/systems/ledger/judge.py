"""The rules of the ledger's answers: pure functions of accounts and operations already read."""

from collections.abc import Callable, Container, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from tidegate.core.account import Account, account_at
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.flow import UNDO_VERBS, Verb
from tidegate.core.money import MAX_AMOUNT
from tidegate.core.refusals import Doubt, Reason
from tidegate.core.request import MAX_OWNER
from tidegate.core.transfer import Question

FUNDING = "FUNDING"  # Opened by a deposit only.
OUTSIDE = "OUTSIDE"  # The other side of deposits and withdrawals: only this book may be negative.
SUSPENSE = "SUSPENSE"  # Holds money that the target account refused.
FEES_ENTRY = 1  # Every key has entry 0. A credit with a fee has this second entry.


class LedgerStatus(StrEnum):
    ACTIVE = "ACTIVE"
    FROZEN = "FROZEN"
    DISABLED = "DISABLED"


class LedgerBalance(NamedTuple):
    available: int
    held: int
    status: str


class LedgerOperation(NamedTuple):
    """One stored entry of an operation. The fields before `result` are its fingerprint."""

    transfer_id: UUID
    version: int
    account: Account
    verb: str
    amount: int
    undoes: int | None
    result: str
    reason: str = ""
    delta: int = 0
    held_delta: int = 0
    balance_after: int = 0
    entry: int = 0

    @property
    def moved(self) -> bool:
        return self.delta != 0 or self.held_delta != 0


OperationKey = tuple[UUID, int]
# The change of the available balance and of the held balance, and the new available balance.
BalanceChange = tuple[int, int, int]

# What each verb does to (available, held), in units of the amount.
EFFECTS: dict[Verb, tuple[int, int]] = {
    Verb.DEBIT: (-1, 0),
    Verb.CREDIT: (1, 0),
    Verb.REFUND: (1, 0),
    Verb.HOLD: (-1, 1),
    Verb.CAPTURE: (0, -1),
    Verb.RELEASE: (1, -1),
}
# The verbs that each undo can undo. The first one is the verb of its tombstone.
UNDONE: dict[Verb, tuple[Verb, ...]] = {
    Verb.REFUND: (Verb.DEBIT, Verb.CAPTURE),
    Verb.CAPTURE: (Verb.HOLD,),
    Verb.RELEASE: (Verb.HOLD,),
}


class PlainMove(NamedTuple):
    """The short form of a done debit or credit without a fee. Most operations are such."""

    question: Question
    account: Account
    balance_after: int


class LedgerJudge:
    """Judges a batch in order. Each question sees the keys and balances of those before it."""

    def __init__(
        self,
        accounts: dict[Account, LedgerBalance],
        known: Sequence[LedgerOperation],
        unknown_assets: Container[int] = (),
    ) -> None:
        self.accounts = accounts
        self.unknown_assets = unknown_assets  # Their accounts could not be opened.
        self.operations: dict[OperationKey, LedgerOperation] = {}
        self.fees: dict[OperationKey, LedgerOperation] = {}
        for o in known:
            (self.fees if o.entry else self.operations)[o.transfer_id, o.version] = o
        self.closings: dict[OperationKey, LedgerOperation] = {
            (o.transfer_id, o.undoes): o for o in known if o.undoes is not None and o.moved
        }
        self.written: list[LedgerOperation] = []
        self.plain_moves: list[PlainMove] = []  # These are to be stored as well.

    def judge_all(self, questions: Sequence[Question], accounts: Sequence[Account]) -> list[Answer]:
        """Give the same answers as `judge` for each question in turn, but faster for plain moves.

        A plain move is a debit or credit without a fee, on an active account whose balance allows
        it, of a transfer that occurs once in the batch and has no stored operation.
        """
        if self.operations or len({q.transfer_id.int for q in questions}) < len(questions):
            return list(map(self.judge, questions, accounts))
        answers: list[Answer] = []
        balances, moves = self.accounts, self.plain_moves
        for question, account in zip(questions, accounts, strict=True):
            balance, amount, sign = balances.get(account), question.amount, PLAIN.get(question.verb)
            if (
                sign is not None
                and balance is not None
                and balance.status == ACTIVE
                and not (question.fee or question.void)
                and 0 < amount <= MAX_AMOUNT
                and has_owner(question)
                and 0 <= (after := balance.available + sign * amount) <= MAX_AMOUNT - balance.held
            ):
                balances[account] = balance_of((after, balance.held, ACTIVE))
                moves.append(plain_move_of((question, account, after)))
                answers.append(DONE)
            else:
                answers.append(self.judge(question, account))
        return answers

    def operations_written(self) -> list[LedgerOperation]:
        """All operations to be stored, in their long form."""
        return [*self.written, *map(operation_of, self.plain_moves)]

    def judge(self, question: Question, account: Account) -> Answer:
        """Answer a question. `account` is `account_of(question)`."""
        key = question.transfer_id, question.version
        known = self.operations.get(key)
        if known is not None:
            fee_entry = self.fees.get(key)
            same = _matches(known, fee_entry, question)
            return answer_of(known, fee_entry) if same else KEY_REUSED
        if question.void:
            return self._refuse(question, Reason.UNDONE)
        if question.verb not in EFFECTS:
            return Unknown(f"the ledger does not know the verb {question.verb}", Alarm.PAGE)
        if question.verb in UNDO_VERBS:
            return self._undo(question)
        if question.fee:
            fee = fee_part(question)
            refusal = self._refusal(net_part(question), account)
            refusal = refusal or self._refusal(fee, account_of(fee))
        else:
            refusal = self._refusal(question, account)
        if refusal:
            return self._refuse(question, refusal)
        return self._move(question, account)

    def _refusal(self, question: Question, account: Account) -> Reason | None:
        """Why a debit, hold or credit is refused, or None. The order of the checks is fixed."""
        credit = question.verb is Verb.CREDIT
        balance = self.accounts.get(account)
        if not has_owner(question):
            return Reason.INVALID_OWNER
        if question.asset_id in self.unknown_assets:
            return Reason.INVALID_ASSET
        if not 0 < question.amount <= MAX_AMOUNT:
            return Reason.INVALID_AMOUNT
        if balance is None:
            return Reason.TARGET_ACCOUNT_NOT_FOUND if credit else Reason.SOURCE_ACCOUNT_NOT_FOUND
        if balance.status == LedgerStatus.DISABLED:
            return Reason.ACCOUNT_DISABLED
        if balance.status == LedgerStatus.FROZEN and not credit:
            return Reason.ACCOUNT_FROZEN
        available = balance.available + EFFECTS[question.verb][0] * question.amount
        if abs(available) + balance.held > MAX_AMOUNT:
            return Reason.BALANCE_OVERFLOW
        if available < 0 and question.party.book != OUTSIDE:
            return Reason.INSUFFICIENT_BALANCE
        return None

    def _undo(self, question: Question) -> Answer:
        assert question.undoes is not None, f"{question.verb} without an operation to undo"
        undone = (question.transfer_id, question.undoes)
        original = self.operations.get(undone)
        if original is not None and not _undoes(question, original):
            return KEY_REUSED
        if original is None or original.result == "rejected":
            if question.expect_done:
                # Our history contains a Done that the ledger does not: the books disagree.
                return Unknown(Doubt.UNDO_UNFOUNDED, Alarm.HALT)
            if original is None:
                self._write(_tombstone(question))
            return self._done_unmoved(question)
        closing = self.closings.get(undone)
        if closing is None:
            return self._move(question, account_of(question))
        if closing.verb != question.verb:
            return Unknown(Doubt.ALREADY_CLOSED, Alarm.HALT)
        return self._done_unmoved(question)

    def _move(self, question: Question, account: Account) -> Answer:
        if question.fee:
            part = fee_part(question)
            fee = self._write_move(part, account_of(part), FEES_ENTRY)
            return answer_of(self._write_move(net_part(question), account), fee)
        return answer_of(self._write_move(question, account))

    def _write_move(self, question: Question, account: Account, entry: int = 0) -> LedgerOperation:
        balance = self.accounts[account]
        to_available, to_held = EFFECTS[question.verb]
        delta, held_delta = to_available * question.amount, to_held * question.amount
        after = balance.available + delta
        self.accounts[account] = LedgerBalance(after, balance.held + held_delta, balance.status)
        change = delta, held_delta, after
        return self._write(_operation(question, account, "done", "", change), entry)

    def _done_unmoved(self, question: Question) -> Answer:
        """Done without a move: the operation was undone before, or was never done."""
        account = account_of(question)
        done = _operation(question, account, "done", "", self._no_change(account))
        return answer_of(self._write(done))

    def _refuse(self, question: Question, reason: Reason) -> Answer:
        if question.fee:
            self._write_refusal(fee_part(question), reason, FEES_ENTRY)
            question = net_part(question)
        return answer_of(self._write_refusal(question, reason))

    def _write_refusal(self, question: Question, reason: Reason, entry: int = 0) -> LedgerOperation:
        account = account_of(question)
        change = self._no_change(account)
        return self._write(_operation(question, account, "rejected", str(reason), change), entry)

    def _no_change(self, account: Account) -> BalanceChange:
        balance = self.accounts.get(account)
        return 0, 0, 0 if balance is None else balance.available

    def _write(self, operation: LedgerOperation, entry: int = 0) -> LedgerOperation:
        if entry:
            operation = operation._replace(entry=entry)
        self.written.append(operation)
        operations = self.fees if entry else self.operations
        operations[operation.transfer_id, operation.version] = operation
        if operation.undoes is not None and operation.moved:
            self.closings[operation.transfer_id, operation.undoes] = operation
        return operation


DONE = Done()
ACTIVE = LedgerStatus.ACTIVE.value
PLAIN = {verb: EFFECTS[verb][0] for verb in (Verb.DEBIT, Verb.CREDIT)}
# Faster than calling the class: most questions make one of each.
balance_of: Callable[[tuple[int, int, str]], LedgerBalance] = partial(tuple.__new__, LedgerBalance)
plain_move_of: Callable[[tuple[Question, Account, int]], PlainMove] = partial(
    tuple.__new__, PlainMove
)
KEY_REUSED = Unknown(Doubt.KEY_REUSED, Alarm.PAGE)


def has_owner(question: Question) -> bool:
    return 0 < question.party.owner <= MAX_OWNER


def may_open(question: Question) -> bool:
    """A deposit opens an account in any book. A credit opens one in any book except FUNDING."""
    by_credit = question.verb is Verb.CREDIT and question.party.book != FUNDING
    return question.opens or by_credit


def account_of(question: Question) -> Account:
    party = question.party
    return account_at((party.owner, party.book, question.asset_id))


def operation_of(move: PlainMove) -> LedgerOperation:
    question, account, after = move
    change = PLAIN[question.verb] * question.amount, 0, after
    return _operation(question, account, "done", "", change)


def fee_part(question: Question) -> Question:
    """The second entry of a credit with a fee: the fee, for the fee account."""
    assert question.fees is not None, f"{question.transfer_id} has a fee and no fee account"
    return replace(question, party=question.fees, amount=question.fee, fee=0, fees=None)


def net_part(question: Question) -> Question:
    """The first entry of a credit with a fee: the amount for the target, without the fee."""
    return replace(question, amount=question.amount - question.fee, fee=0, fees=None)


def parts(questions: Sequence[Question]) -> Sequence[Question]:
    """The questions, followed by the fee entries of those with a fee."""
    charged = [fee_part(q) for q in questions if q.fee]
    return [*questions, *charged] if charged else questions


def answer_of(operation: LedgerOperation, fee: LedgerOperation | None = None) -> Answer:
    if operation.result != "done":
        return Rejected(operation.reason)
    return DONE if fee is None else Done({"fee": str(fee.amount)})


def _operation(
    question: Question, account: Account, result: str, reason: str, change: BalanceChange
) -> LedgerOperation:
    return LedgerOperation(
        question.transfer_id,
        question.version,
        account,
        question.verb.value,
        question.amount,
        question.undoes,
        result,
        reason,
        *change,
    )


def _tombstone(question: Question) -> LedgerOperation:
    """The stored refusal of an operation that has not arrived yet: if it arrives, it is refused."""
    assert question.undoes is not None
    reason = str(Reason.UNDONE)
    return _operation(question, account_of(question), "rejected", reason, (0, 0, 0))._replace(
        version=question.undoes, verb=str(UNDONE[question.verb][0]), undoes=None
    )


def _matches(operation: LedgerOperation, fee: LedgerOperation | None, question: Question) -> bool:
    """Whether the stored operation is the one in the question, including its fee."""
    if question.fee:
        part = fee_part(question)
        same = fee is not None and (fee.account, fee.amount) == (account_of(part), part.amount)
    else:
        same = fee is None
    return (
        same
        and operation.verb == question.verb
        and operation.account == account_of(question)
        and operation.amount == question.amount - question.fee
        and operation.undoes == question.undoes
    )


def _undoes(question: Question, original: LedgerOperation) -> bool:
    return (
        original.verb in UNDONE[question.verb]
        # A capture of a hold that was captured before moved no money, so nothing can be refunded.
        and (original.verb != Verb.CAPTURE or original.moved or original.result == "rejected")
        and original.account == account_of(question)
        and original.amount == question.amount
    )
