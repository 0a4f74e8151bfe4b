"""Which operations are done and which are refused: the rules, in a fixed order."""

import struct
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
from tidegate.trading_core.book import (
    ABSENT,
    ACTIVE,
    AMOUNT,
    CREDIT,
    CREDITED,
    DEBIT,
    DEBITED,
    DONE,
    FINGERPRINT,
    NEXT,
    REFUND,
    UNDOES,
    UNDONE_BIT,
    VERSION_BITS,
    Asked,
    Draft,
    answer_of,
    key_of,
    undone_by,
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
CARRY = 2**64  # What no longer fits in the lower half of an amount.
FEW = 32  # Answers for which it does not pay to write them together.
# A plain move as the short way reads and writes it: amounts in two halves, as numbers.
PLAIN_OPERATION = struct.Struct(">20sHI13sQQ")
PLAIN_RECORD = struct.Struct(">20sH4x13s8xQBqQ8xQ")
PLAIN_CREDIT, PLAIN_DEBIT = CREDIT << 8, DEBIT << 8  # Verb and mode.

assert (PLAIN_OPERATION.size, PLAIN_RECORD.size) == (OPERATION.size, RECORD.size)


def judge(draft: Draft, operations: bytes) -> tuple[bytes, bytes]:
    """Decide each operation into the draft; return the answers and the records for the log."""
    book, memory, balances, changed = draft.book, draft.memory, draft.balances, draft.statuses
    durable, lowest = book.memory, key_of(draft.floor)
    moved, record = balances.get, PLAIN_RECORD.pack
    answers: list[bytes] = []
    records: list[bytes] = []
    asked = list(rows(PLAIN_OPERATION, operations))
    are_new = book.are_new([row[0] for row in asked])
    states = book.look_up([row[3] for row in asked])
    answered, at = draft.position, draft.position * NEXT
    for (key, verb, undoes, account, high, amount), state in zip(asked, states, strict=True):
        # Most are new, and are plain moves of money on an open account. They are judged by the
        # rules that all are judged by, but without a call for each thing that the rules look at.
        if (
            state is not None
            and (are_new or key not in durable)
            and not (undoes or key < lowest or key in memory or (changed and state in changed))
        ):
            if high:
                amount |= high << 64  # noqa: PLW2901
            balance, status = moved(state, state.balance), state.status
            if verb == PLAIN_CREDIT:
                outcome = credit(status, balance, amount)
                after, told, sign, change = balance + amount, CREDITED, 0, amount
            elif verb == PLAIN_DEBIT:
                outcome = debit(status, balance, amount)
                after, told, sign, change = balance - amount, DEBITED, -1, CARRY - amount
            else:
                outcome = MALFORMED
            if outcome == DONE and status == ACTIVE:
                at += NEXT
                balances[state] = after
                memory[key] = amount * AMOUNT + state.number + at + told
                if high or after >= CARRY:
                    records.append(_wide_record((key, verb, account, amount), balance, after))
                else:
                    records.append(record(key, verb, account, amount, DONE, sign, change, after))
                continue
        draft.position = at // NEXT
        answers.append(_done(answered, draft.position))
        size = (high << 64 | amount).to_bytes(16)
        row = (key, verb >> 8, verb & 255, undoes, account, size)
        answers.append(ANSWER.pack(*_judge(draft, row, records)))
        answered, at = draft.position, draft.position * NEXT
    draft.position = at // NEXT
    answers.append(_done(answered, draft.position))
    return b"".join(answers), b"".join(records)


def _wide_record(move: tuple[bytes, int, bytes, int], before: int, after: int) -> bytes:
    """The record of a plain move whose numbers need more than their lower halves."""
    key, verb, account, amount = move
    change, size = (after - before).to_bytes(16, signed=True), amount.to_bytes(16)
    return RECORD.pack(key, verb >> 8, 0, 0, account, size, DONE, change, after.to_bytes(16))


def _done(after: int, last: int) -> bytes:
    """The answers to operations that are done, whose records follow each other.

    Written byte by byte of all of them together, at half the cost of packing one after another.
    """
    if last - after < FEW:
        return b"".join([ANSWER.pack(DONE, position) for position in range(after + 1, last + 1)])
    positions = struct.pack(f">{last - after}Q", *range(after + 1, last + 1))
    answers = bytearray(ANSWER.pack(DONE, 0) * (last - after))
    for i in range(8):
        answers[i + 1 :: ANSWER.size] = positions[i::8]
    return bytes(answers)


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
    if stored >> FINGERPRINT << FINGERPRINT != amount * AMOUNT + state.number + (undoes << UNDOES):
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
    if stored >> FINGERPRINT << FINGERPRINT != amount * AMOUNT + state.number:
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
