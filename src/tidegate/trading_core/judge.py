"""Which operations are done and which are refused: the rules, in a fixed order."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate.core.money import MAX_AMOUNT
from tidegate.core.wire import (
    ACCOUNT,
    ANSWER,
    ASSET,
    OPERATION,
    RECORD,
    STATUS,
    VOID,
    AccountStatus,
    CoreBook,
    CoreOutcome,
    pack,
    pack_assets,
    rows,
    unpack_binding,
    unpack_rebinding,
)
from tidegate.trading_core.accounts import ABSENT, AccountState
from tidegate.trading_core.book import AskedOperation, BookDraft, key_of, undone_by
from tidegate.trading_core.move_columns import (
    ACTIVE,
    CREDIT,
    DEBIT,
    DONE,
    REFUND,
    VERB_AT,
    MoveColumns,
    pack_answers,
    pack_records,
    read_operations,
)
from tidegate.trading_core.operation_memory import (
    FINGERPRINT,
    UNDONE_BIT,
    VERSION_BITS,
    answer_of,
    fingerprint,
    remember,
    verb_of,
)

FEW = 4  # Operations for which it does not pay to cut columns.
STORED = 32  # Outcomes below this are stored under their key.
BOOKS = frozenset(int(book) for book in CoreBook)
FROZEN, DISABLED = int(AccountStatus.FROZEN), int(AccountStatus.DISABLED)
EMPTY, TOMBSTONE = int(CoreOutcome.EMPTY), int(CoreOutcome.TOMBSTONE)
UNDONE = int(CoreOutcome.UNDONE)
RETIRED, KEY_REUSED = int(CoreOutcome.RETIRED), int(CoreOutcome.KEY_REUSED)
MALFORMED, UNFOUNDED = int(CoreOutcome.MALFORMED), int(CoreOutcome.UNDO_UNFOUNDED)
MAX_OWNER = 2**63 - 1


def judge(draft: BookDraft, operations: bytes) -> tuple[bytes, bytes]:
    """Decide each operation into the draft; return the answers and the records for the log."""
    if len(operations) <= FEW * OPERATION.size:
        records: list[bytes] = []
        few = [ANSWER.pack(*_judge(draft, row, records)) for row in rows(OPERATION, operations)]
        return b"".join(few), b"".join(records)
    moves = read_operations(operations)
    batch = OperationBatch(draft, moves, draft.book.states.find_all(moves.groups, moves.owners))
    verbs = _short_ways(draft, moves, batch.states)
    balances, balance_of, ended = draft.balances, draft.balances.get, batch.ended
    for verb, state, amount in zip(verbs, batch.states, moves.amounts, strict=True):
        # Most are new, and are plain moves of money on an open account. Whatever `credit` and
        # `debit` say is done is done here, without a call for each thing that they look at.
        if amount and state.status == ACTIVE:
            if verb == CREDIT:
                after = balance_of(state, state.balance) + amount
                if after <= MAX_AMOUNT:
                    balances[state] = after
                    ended.append(after)
                    continue
            elif verb == DEBIT:
                after = balance_of(state, state.balance) - amount
                if after >= 0:
                    balances[state] = after
                    ended.append(after)
                    continue
        balance = balance_of(state, state.balance)
        if refused := _refusal(verb, state.status, balance, amount):
            batch.refused[len(ended)] = refused
            ended.append(balance)
        else:
            batch.write_down()
            batch.judge_next()
    batch.write_down()
    return b"".join(batch.answers), b"".join(batch.records)


class OperationBatch:
    """Operations, with the answers and records of those that are judged already."""

    def __init__(
        self, draft: BookDraft, moves: MoveColumns, states: Sequence[AccountState]
    ) -> None:
        self.states = states
        self.answers: list[bytes] = []
        self.records: list[bytes] = []
        # Of the plain moves that are judged and not yet written down: the balance after each, and
        # the outcomes of those that are not done.
        self.ended: list[int] = []
        self.refused: dict[int, int] = {}
        self._draft, self._moves = draft, moves
        self._written = 0

    def write_down(self) -> None:
        """Take in the plain moves that were judged since."""
        if not self.ended:
            return
        draft, count, get = self._draft, len(self.ended), self.refused.get
        outcomes = bytes([get(at, DONE) for at in range(count)]) if self.refused else b""
        moves = self._moves.part(self._written, self._written + count)
        states = self.states[self._written : self._written + count]
        remember(draft.memory, draft.position, moves, states, outcomes)
        self.records.append(pack_records(moves, self.ended, outcomes))
        self.answers.append(pack_answers(draft.position, count, outcomes))
        draft.position += count
        self._written += count
        self.ended.clear()
        self.refused.clear()

    def judge_next(self) -> None:
        """Judge the next one as any operation is."""
        row = OPERATION.unpack_from(self._moves.operations, self._written * OPERATION.size)
        self.answers.append(ANSWER.pack(*_judge(self._draft, row, self.records)))
        self._written += 1


def _refusal(verb: int, status: int, balance: int, amount: int) -> int:
    """Why a plain move is refused, if so, and if that is stored."""
    if status == ABSENT or verb not in (CREDIT, DEBIT):
        return 0
    outcome = (credit if verb == CREDIT else debit)(status, balance, amount)
    return outcome if DONE < outcome < STORED else 0


def _short_ways(draft: BookDraft, moves: MoveColumns, states: Sequence[AccountState]) -> bytes:
    """The verbs of those whose key and account nothing has touched that is not durable.

    And 0 for the others, and for those whose key is known or repeated or retired.
    """
    keys, book, memory = moves.keys, draft.book, draft.memory
    lowest = key_of(draft.floor)
    # An undo may bury another key, which shows only when it is judged.
    undone: set[bytes] = set()
    if REFUND in moves.operations[VERB_AT :: OPERATION.size]:
        asked = rows(OPERATION, moves.operations)
        undone = {undone_by(row[0], row[3]) for row in asked if row[1] == REFUND}
    if (
        len(set(keys)) == len(keys)  # Which also hashes all before the first is looked up.
        and book.are_new(keys)
        and memory.keys().isdisjoint(keys)
        and undone.isdisjoint(keys)
        and not draft.statuses
        and (not draft.floor or min(keys) >= lowest)
    ):
        return moves.verbs
    verbs, seen = bytearray(moves.verbs), undone
    for at, (key, state) in enumerate(zip(keys, states, strict=True)):
        if (
            key in seen
            or key in memory
            or key in book.memory
            or key < lowest
            or state in draft.statuses
        ):
            verbs[at] = 0
        seen.add(key)
    return bytes(verbs)


def _judge(draft: BookDraft, row: tuple[Any, ...], records: list[bytes]) -> tuple[int, int]:
    """Decide any operation; return its outcome and the position of the record that stores it."""
    key, verb, mode, undoes, account, size = row
    amount = int.from_bytes(size)
    if key < key_of(draft.floor):
        return RETIRED, 0
    stored = draft.find(key)
    if stored is not None:
        return _repeat(draft, stored, (verb, undoes, account, amount))
    delta, status, balance = 0, *draft.status_and_balance(account)
    if account[0] not in BOOKS or not _is_operation(verb, undoes, key):
        outcome = MALFORMED
    elif mode == VOID and 0 < amount <= MAX_AMOUNT:
        # Nothing is known of it, and from now on nothing can become of it.
        outcome = UNDONE
    elif verb != REFUND and status == ABSENT and (strange := _strange(draft, account)):
        outcome = strange
    elif verb == CREDIT:
        outcome = credit(status, balance, amount)
        delta = amount if outcome == DONE else 0
    elif verb == DEBIT:
        outcome = debit(status, balance, amount)
        delta = -amount if outcome == DONE else 0
    else:
        outcome, delta = refund(draft, undone_by(key, undoes), account, amount, mode)
    if outcome >= STORED:
        return outcome, 0
    balance += delta
    draft.note(key, (verb, undoes, account, amount), outcome, delta, balance)
    change, after = delta.to_bytes(16, signed=True), balance.to_bytes(16)
    records.append(RECORD.pack(key, verb, mode, undoes, account, size, outcome, change, after))
    return outcome, draft.position


def _strange(draft: BookDraft, account: bytes) -> int:
    """Why an account may not be opened. One that is open was looked at when it was opened."""
    _, asset_id, owner = ACCOUNT.unpack(account)
    if not 0 < owner <= MAX_OWNER:
        return CoreOutcome.INVALID_OWNER
    return 0 if asset_id in draft.assets else CoreOutcome.INVALID_ASSET


def _is_operation(verb: int, undoes: int, key: bytes) -> bool:
    """A refund names another operation, and nothing else names one."""
    if verb == REFUND:
        return undone_by(key, undoes) != key
    return verb in (DEBIT, CREDIT) and not undoes


def _repeat(draft: BookDraft, stored: int, asked: AskedOperation) -> tuple[int, int]:
    """The stored answer, if the question is the stored one."""
    verb, undoes, account, amount = asked
    state = draft.state(account)
    if state is None or verb_of(stored) != verb:
        return KEY_REUSED, 0
    if stored >> FINGERPRINT << FINGERPRINT != fingerprint(state, undoes, amount):
        return KEY_REUSED, 0
    return answer_of(stored)


def debit(status: int, balance: int, amount: int) -> int:
    if not 0 < amount <= MAX_AMOUNT:
        return CoreOutcome.INVALID_AMOUNT
    if status == ABSENT:
        return CoreOutcome.SOURCE_ACCOUNT_NOT_FOUND
    if status == FROZEN:
        return CoreOutcome.ACCOUNT_FROZEN
    if status == DISABLED:
        return CoreOutcome.ACCOUNT_DISABLED
    if balance < amount:
        return CoreOutcome.INSUFFICIENT_BALANCE
    return DONE


def credit(status: int, balance: int, amount: int) -> int:
    if not 0 < amount <= MAX_AMOUNT:
        return CoreOutcome.INVALID_AMOUNT
    if status == DISABLED:
        return CoreOutcome.ACCOUNT_DISABLED
    if balance + amount > MAX_AMOUNT:
        return CoreOutcome.BALANCE_OVERFLOW
    return DONE


def refund(
    draft: BookDraft, original: bytes, account: bytes, amount: int, expect_done: int
) -> tuple[int, int]:
    """Undo a DEBIT, once. The account's status is not asked: the money is its owner's."""
    stored = draft.find(original)
    if stored is None:
        return (UNFOUNDED if expect_done else TOMBSTONE), 0
    state = draft.state(account)
    if verb_of(stored) != DEBIT or state is None:
        return KEY_REUSED, 0
    if stored >> FINGERPRINT << FINGERPRINT != fingerprint(state, 0, amount):
        return KEY_REUSED, 0
    if answer_of(stored)[0] != DONE:
        return (UNFOUNDED if expect_done else EMPTY), 0
    if stored & UNDONE_BIT:
        return EMPTY, 0
    if draft.balance(account) > MAX_AMOUNT - amount:
        return CoreOutcome.BALANCE_OVERFLOW, 0
    return DONE, amount


def set_status(draft: BookDraft, body: bytes) -> tuple[bytes, int]:
    """Open or close an account; return the record, and why it is refused, if so.

    Said twice, it is recorded once.
    """
    account, status = STATUS.unpack(body)
    before = draft.status(account)
    if before == ABSENT and (strange := _strange(draft, account)):
        return b"", strange
    if before == status:
        return b"", 0
    draft.note_status(account, status)
    return body, 0


def retire(draft: BookDraft, body: bytes, latest: int) -> bytes:
    """The store's floor. It only rises, and not above what our own clock calls long ago."""
    floor = int.from_bytes(body)
    if floor << VERSION_BITS <= draft.floor or floor > latest:
        return b""
    draft.note_floor(floor)
    return body


def bind(draft: BookDraft, body: bytes) -> bytes:
    """The first store that comes is the one that is served."""
    if draft.binding.store:
        return b""
    draft.note_binding(unpack_binding(body))
    return body


def rebind(draft: BookDraft, body: bytes) -> bytes:
    """By an operator: the store lives elsewhere, or another one takes its place."""
    before, binding = msgspec.structs.astuple(unpack_rebinding(body))
    if draft.binding.store != before or draft.binding == binding:
        return b""
    draft.note_binding(binding)
    return pack(binding)


def add_assets(draft: BookDraft, body: bytes) -> bytes:
    """Assets are only ever added."""
    fresh = {asset for (asset,) in rows(ASSET, body)} - draft.assets
    if not fresh:
        return b""
    draft.note_assets(fresh)
    return pack_assets(fresh)
