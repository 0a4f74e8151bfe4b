"""The rules that decide whether an operation is done or refused, checked in a fixed order."""

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
from tidegate.trading_core.book import BookDraft, OperationFields, key_of, undone_by
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
    FINGERPRINT_SHIFT,
    UNDONE_BIT,
    VERSION_BITS,
    answer_of,
    fingerprint,
    remember,
    verb_of,
)

SMALL_BATCH = 4  # Up to this many operations, judging row by row is faster than by columns.
STORED = 32  # Outcomes below this are stored under their key; others are not stored.
BOOKS = frozenset(int(book) for book in CoreBook)
FROZEN, DISABLED = int(AccountStatus.FROZEN), int(AccountStatus.DISABLED)
EMPTY, TOMBSTONE = int(CoreOutcome.EMPTY), int(CoreOutcome.TOMBSTONE)
UNDONE = int(CoreOutcome.UNDONE)
RETIRED, KEY_REUSED = int(CoreOutcome.RETIRED), int(CoreOutcome.KEY_REUSED)
MALFORMED, UNFOUNDED = int(CoreOutcome.MALFORMED), int(CoreOutcome.UNDO_UNFOUNDED)
MAX_OWNER = 2**63 - 1


def judge(draft: BookDraft, operations: bytes) -> tuple[bytes, bytes]:
    """Write each decision into the draft. Return the answers, and the records for the log."""
    if len(operations) <= SMALL_BATCH * OPERATION.size:
        records: list[bytes] = []
        answers = [
            ANSWER.pack(*_judge_operation(draft, row, records))
            for row in rows(OPERATION, operations)
        ]
        return b"".join(answers), b"".join(records)
    moves = read_operations(operations)
    batch = OperationBatch(draft, moves, draft.book.states.find_all(moves.groups, moves.owners))
    verbs = _fast_path_verbs(draft, moves, batch.states)
    balances, balance_of, balances_after = draft.balances, draft.balances.get, batch.balances_after
    for verb, state, amount in zip(verbs, batch.states, moves.amounts, strict=True):
        # Most operations are new plain moves on an active account. The cases in which `credit` and
        # `debit` return DONE are repeated here inline, because a call per check is slower.
        if amount and state.status == ACTIVE:
            if verb == CREDIT:
                after = balance_of(state, state.balance) + amount
                if after <= MAX_AMOUNT:
                    balances[state] = after
                    balances_after.append(after)
                    continue
            elif verb == DEBIT:
                after = balance_of(state, state.balance) - amount
                if after >= 0:
                    balances[state] = after
                    balances_after.append(after)
                    continue
        balance = balance_of(state, state.balance)
        if refusal := _stored_refusal(verb, state.status, balance, amount):
            batch.refusals[len(balances_after)] = refusal
            balances_after.append(balance)
        else:
            batch.flush()
            batch.judge_next()
    batch.flush()
    return b"".join(batch.answers), b"".join(batch.records)


class OperationBatch:
    """The operations of a request, with the answers and records of those judged so far."""

    def __init__(
        self, draft: BookDraft, moves: MoveColumns, states: Sequence[AccountState]
    ) -> None:
        self.states = states
        self.answers: list[bytes] = []
        self.records: list[bytes] = []
        # For the plain moves that are judged but not yet flushed: the balance after each, and the
        # outcomes of the refused ones by index.
        self.balances_after: list[int] = []
        self.refusals: dict[int, int] = {}
        self._draft, self._moves = draft, moves
        self._flushed = 0

    def flush(self) -> None:
        """Remember the plain moves judged since the last flush; pack their answers and records."""
        if not self.balances_after:
            return
        draft, count, get = self._draft, len(self.balances_after), self.refusals.get
        outcomes = bytes([get(index, DONE) for index in range(count)]) if self.refusals else b""
        moves = self._moves.part(self._flushed, self._flushed + count)
        states = self.states[self._flushed : self._flushed + count]
        remember(draft.memory, draft.position, moves, states, outcomes)
        self.records.append(pack_records(moves, self.balances_after, outcomes))
        self.answers.append(pack_answers(draft.position, count, outcomes))
        draft.position += count
        self._flushed += count
        self.balances_after.clear()
        self.refusals.clear()

    def judge_next(self) -> None:
        """Judge the next operation by the general rules."""
        row = OPERATION.unpack_from(self._moves.operations, self._flushed * OPERATION.size)
        self.answers.append(ANSWER.pack(*_judge_operation(self._draft, row, self.records)))
        self._flushed += 1


def _stored_refusal(verb: int, status: int, balance: int, amount: int) -> int:
    """The outcome of a plain move if it is refused and the refusal is stored, otherwise 0."""
    if status == ABSENT or verb not in (CREDIT, DEBIT):
        return 0
    outcome = (credit if verb == CREDIT else debit)(status, balance, amount)
    return outcome if DONE < outcome < STORED else 0


def _fast_path_verbs(draft: BookDraft, moves: MoveColumns, states: Sequence[AccountState]) -> bytes:
    """The verbs of the operations that may be judged by columns, and 0 for all others.

    The verb is 0 if the key is known, retired, repeated in the request or named by an undo in it,
    or if the draft has changed the status of the account.
    """
    keys, book, memory = moves.keys, draft.book, draft.memory
    lowest = key_of(draft.floor)
    # An undo may leave a tombstone under another key. That is known only once it is judged.
    undone: set[bytes] = set()
    if REFUND in moves.operations[VERB_AT :: OPERATION.size]:
        operations = rows(OPERATION, moves.operations)
        undone = {undone_by(row[0], row[3]) for row in operations if row[1] == REFUND}
    if (
        len(set(keys)) == len(keys)  # This also hashes all keys before the first lookup.
        and book.are_new(keys)
        and memory.keys().isdisjoint(keys)
        and undone.isdisjoint(keys)
        and not draft.statuses
        and (not draft.floor or min(keys) >= lowest)
    ):
        return moves.verbs
    verbs, seen = bytearray(moves.verbs), undone
    for index, (key, state) in enumerate(zip(keys, states, strict=True)):
        if (
            key in seen
            or key in memory
            or key in book.memory
            or key < lowest
            or state in draft.statuses
        ):
            verbs[index] = 0
        seen.add(key)
    return bytes(verbs)


def _judge_operation(
    draft: BookDraft, row: tuple[Any, ...], records: list[bytes]
) -> tuple[int, int]:
    """Decide any operation. Return its outcome and the position of the record that stores it."""
    key, verb, mode, undoes, account, raw_amount = row
    amount = int.from_bytes(raw_amount)
    if key < key_of(draft.floor):
        return RETIRED, 0
    stored = draft.find(key)
    if stored is not None:
        return _repeat(draft, stored, (verb, undoes, account, amount))
    delta, status, balance = 0, *draft.status_and_balance(account)
    if account[0] not in BOOKS or not _is_valid(verb, undoes, key):
        outcome = MALFORMED
    elif mode == VOID and 0 < amount <= MAX_AMOUNT:
        # The key is unknown, and from now on it is refused.
        outcome = UNDONE
    elif verb != REFUND and status == ABSENT and (invalid := _invalid_account(draft, account)):
        outcome = invalid
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
    draft.write_operation(key, (verb, undoes, account, amount), outcome, delta, balance)
    change, after = delta.to_bytes(16, signed=True), balance.to_bytes(16)
    records.append(
        RECORD.pack(key, verb, mode, undoes, account, raw_amount, outcome, change, after)
    )
    return outcome, draft.position


def _invalid_account(draft: BookDraft, account: bytes) -> int:
    """Why an account may not be opened, or 0. An open account was checked when it was opened."""
    _, asset_id, owner = ACCOUNT.unpack(account)
    if not 0 < owner <= MAX_OWNER:
        return CoreOutcome.INVALID_OWNER
    return 0 if asset_id in draft.assets else CoreOutcome.INVALID_ASSET


def _is_valid(verb: int, undoes: int, key: bytes) -> bool:
    """Whether a refund names another operation, or a debit or credit names none."""
    if verb == REFUND:
        return undone_by(key, undoes) != key
    return verb in (DEBIT, CREDIT) and not undoes


def _repeat(draft: BookDraft, stored: int, operation: OperationFields) -> tuple[int, int]:
    """The stored answer, if the repeated operation is the same as the stored one."""
    verb, undoes, account, amount = operation
    state = draft.state(account)
    if state is None or verb_of(stored) != verb:
        return KEY_REUSED, 0
    if stored >> FINGERPRINT_SHIFT << FINGERPRINT_SHIFT != fingerprint(state, undoes, amount):
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
    """Undo a DEBIT once. The account's status is not checked: the money belongs to its owner."""
    stored = draft.find(original)
    if stored is None:
        return (UNFOUNDED if expect_done else TOMBSTONE), 0
    state = draft.state(account)
    if verb_of(stored) != DEBIT or state is None:
        return KEY_REUSED, 0
    if stored >> FINGERPRINT_SHIFT << FINGERPRINT_SHIFT != fingerprint(state, 0, amount):
        return KEY_REUSED, 0
    if answer_of(stored)[0] != DONE:
        return (UNFOUNDED if expect_done else EMPTY), 0
    if stored & UNDONE_BIT:
        return EMPTY, 0
    if draft.balance(account) > MAX_AMOUNT - amount:
        return CoreOutcome.BALANCE_OVERFLOW, 0
    return DONE, amount


def set_status(draft: BookDraft, body: bytes) -> tuple[bytes, int]:
    """Open or close an account. Return the record, and the outcome if it is refused.

    Setting the status that the account already has records nothing.
    """
    account, status = STATUS.unpack(body)
    before = draft.status(account)
    if before == ABSENT and (invalid := _invalid_account(draft, account)):
        return b"", invalid
    if before == status:
        return b"", 0
    draft.write_status(account, status)
    return body, 0


def retire(draft: BookDraft, body: bytes, latest: int) -> bytes:
    """Raise the store's floor. It never decreases, and it may not exceed `latest`."""
    floor = int.from_bytes(body)
    if floor << VERSION_BITS <= draft.floor or floor > latest:
        return b""
    draft.write_floor(floor)
    return body


def bind(draft: BookDraft, body: bytes) -> bytes:
    """Bind the core to the first store that connects."""
    if draft.binding.store:
        return b""
    draft.write_binding(unpack_binding(body))
    return body


def rebind(draft: BookDraft, body: bytes) -> bytes:
    """Bind the core to another database or another store, by an operator's request."""
    before, binding = msgspec.structs.astuple(unpack_rebinding(body))
    if draft.binding.store != before or draft.binding == binding:
        return b""
    draft.write_binding(binding)
    return pack(binding)


def add_assets(draft: BookDraft, body: bytes) -> bytes:
    """Add the assets that are not yet known. Assets are never removed."""
    fresh = {asset for (asset,) in rows(ASSET, body)} - draft.assets
    if not fresh:
        return b""
    draft.write_assets(fresh)
    return pack_assets(fresh)
