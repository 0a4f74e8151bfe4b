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
    Book,
    Outcome,
    Status,
    pack,
    pack_assets,
    rows,
    unpack_binding,
    unpack_rebinding,
)
from tidegate.trading_core.accounts import ABSENT, AccountState
from tidegate.trading_core.book import Asked, Draft, key_of, undone_by
from tidegate.trading_core.columns import (
    ACTIVE,
    CREDIT,
    DEBIT,
    DONE,
    REFUND,
    VERB_AT,
    Moves,
    pack_answers,
    pack_done,
    read_operations,
)
from tidegate.trading_core.memory import (
    FINGERPRINT,
    UNDONE_BIT,
    VERSION_BITS,
    answer_of,
    fingerprint,
    remember,
    verb_of,
)

STORED = 32  # Outcomes below this are stored under their key.
BOOKS = frozenset(int(book) for book in Book)
FROZEN, DISABLED = int(Status.FROZEN), int(Status.DISABLED)
EMPTY, TOMBSTONE = int(Outcome.EMPTY), int(Outcome.TOMBSTONE)
UNDONE = int(Outcome.UNDONE)
RETIRED, KEY_REUSED = int(Outcome.RETIRED), int(Outcome.KEY_REUSED)
MALFORMED, UNFOUNDED = int(Outcome.MALFORMED), int(Outcome.UNDO_UNFOUNDED)
MAX_OWNER = 2**63 - 1


def judge(draft: Draft, operations: bytes) -> tuple[bytes, bytes]:
    """Decide each operation into the draft; return the answers and the records for the log."""
    moves = read_operations(operations)
    states = draft.book.states.find_all(moves.groups, moves.owners)
    verbs = _short_ways(draft, moves, states)
    batch = Batch(draft, moves, states)
    balances, balance_of = draft.balances, draft.balances.get
    ended: list[int] = []  # The balances after the moves that are not yet written down.
    for verb, state, amount in zip(verbs, states, moves.amounts, strict=True):
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
        batch.write_down(ended)
        batch.judge_next()
    batch.write_down(ended)
    return b"".join(batch.answers), b"".join(batch.records)


class Batch:
    """Operations, with the answers and records of those that are judged already."""

    def __init__(self, draft: Draft, moves: Moves, states: Sequence[AccountState]) -> None:
        self.answers: list[bytes] = []
        self.records: list[bytes] = []
        self._draft, self._moves, self._states = draft, moves, states
        self._judged = 0

    def write_down(self, ended: list[int]) -> None:
        """Take in the moves that were done since, and forget the balances after them."""
        if not ended:
            return
        draft, moves = self._draft, self._moves
        part = slice(self._judged, self._judged + len(ended))
        remember(draft.memory, draft.position, moves, self._states, part)
        rows = moves.operations[part.start * OPERATION.size : part.stop * OPERATION.size]
        self.records.append(pack_done(rows, moves.amounts[part], ended))
        last = draft.position + len(ended)
        self.answers.append(pack_answers(draft.position, last))
        self._judged, draft.position = part.stop, last
        ended.clear()

    def judge_next(self) -> None:
        """Judge the next one as any operation is."""
        row = OPERATION.unpack_from(self._moves.operations, self._judged * OPERATION.size)
        self.answers.append(ANSWER.pack(*_judge(self._draft, row, self.records)))
        self._judged += 1


def _short_ways(draft: Draft, moves: Moves, states: Sequence[AccountState]) -> bytes:
    """The verbs of those whose key and account nothing has touched that is not durable.

    And 0 for the others, and for those whose key is known or repeated or retired.
    """
    keys, book, memory = moves.keys, draft.book, draft.memory
    lowest = key_of(draft.floor)
    if (
        len(set(keys)) == len(keys)  # Which also hashes all before the first is looked up.
        and book.are_new(keys)
        and memory.keys().isdisjoint(keys)
        and not (draft.statuses or REFUND in moves.operations[VERB_AT :: OPERATION.size])
        and (not draft.floor or min(keys, default=lowest) >= lowest)
    ):
        return moves.verbs
    # An undo may bury another key, which shows only when it is judged.
    asked = rows(OPERATION, moves.operations)
    seen = {undone_by(row[0], row[3]) for row in asked if row[1] == REFUND}
    verbs = bytearray(moves.verbs)
    for at, (key, state) in enumerate(zip(keys, states, strict=True)):
        known = key in memory or key in book.memory or key in seen
        if known or key < lowest or state in draft.statuses:
            verbs[at] = 0
        seen.add(key)
    return bytes(verbs)


def _judge(draft: Draft, row: tuple[Any, ...], records: list[bytes]) -> tuple[int, int]:
    """Decide any operation; return its outcome and the position of the record that stores it."""
    key, verb, mode, undoes, account, size = row
    amount = int.from_bytes(size)
    if key < key_of(draft.floor):
        return RETIRED, 0
    stored = draft.find(key)
    if stored is not None:
        return _repeat(draft, stored, (verb, undoes, account, amount))
    delta, status, balance = 0, draft.status(account), draft.balance(account)
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


def _strange(draft: Draft, account: bytes) -> int:
    """Why an account may not be opened. One that is open was looked at when it was opened."""
    _, asset_id, owner = ACCOUNT.unpack(account)
    if not 0 < owner <= MAX_OWNER:
        return Outcome.INVALID_OWNER
    return 0 if asset_id in draft.assets else Outcome.INVALID_ASSET


def _is_operation(verb: int, undoes: int, key: bytes) -> bool:
    """A refund names another operation, and nothing else names one."""
    if verb == REFUND:
        return undone_by(key, undoes) != key
    return verb in (DEBIT, CREDIT) and not undoes


def _repeat(draft: Draft, stored: int, asked: Asked) -> tuple[int, int]:
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
        return Outcome.INVALID_AMOUNT
    if status == ABSENT:
        return Outcome.SOURCE_ACCOUNT_NOT_FOUND
    if status == FROZEN:
        return Outcome.ACCOUNT_FROZEN
    if status == DISABLED:
        return Outcome.ACCOUNT_DISABLED
    if balance < amount:
        return Outcome.INSUFFICIENT_BALANCE
    return DONE


def credit(status: int, balance: int, amount: int) -> int:
    if not 0 < amount <= MAX_AMOUNT:
        return Outcome.INVALID_AMOUNT
    if status == DISABLED:
        return Outcome.ACCOUNT_DISABLED
    if balance + amount > MAX_AMOUNT:
        return Outcome.BALANCE_OVERFLOW
    return DONE


def refund(
    draft: Draft, original: bytes, account: bytes, amount: int, expect_done: int
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
        return Outcome.BALANCE_OVERFLOW, 0
    return DONE, amount


def set_status(draft: Draft, body: bytes) -> tuple[bytes, int]:
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


def retire(draft: Draft, body: bytes, latest: int) -> bytes:
    """The store's floor. It only rises, and not above what our own clock calls long ago."""
    floor = int.from_bytes(body)
    if floor << VERSION_BITS <= draft.floor or floor > latest:
        return b""
    draft.note_floor(floor)
    return body


def bind(draft: Draft, body: bytes) -> bytes:
    """The first store that comes is the one that is served."""
    if draft.binding.store:
        return b""
    draft.note_binding(unpack_binding(body))
    return body


def rebind(draft: Draft, body: bytes) -> bytes:
    """By an operator: the store lives elsewhere, or another one takes its place."""
    before, binding = msgspec.structs.astuple(unpack_rebinding(body))
    if draft.binding.store != before or draft.binding == binding:
        return b""
    draft.note_binding(binding)
    return pack(binding)


def add_assets(draft: Draft, body: bytes) -> bytes:
    """Assets are only ever added."""
    fresh = {asset for (asset,) in rows(ASSET, body)} - draft.assets
    if not fresh:
        return b""
    draft.note_assets(fresh)
    return pack_assets(fresh)
