"""Which operations are done and which are refused: the rules, in a fixed order."""

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
    ACCOUNT_BITS,
    ACTIVE,
    AMOUNT,
    CREDIT,
    CREDITED,
    DEBIT,
    DEBITED,
    DONE,
    FINGERPRINT,
    REFUND,
    UNDONE_BIT,
    VERSION_BITS,
    Asked,
    Draft,
    answer_of,
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
VERSIONS = (1 << VERSION_BITS) - 1


def judge(draft: Draft, operations: bytes) -> tuple[bytes, bytes]:
    """Decide each operation into the draft; return the answers and the records for the log."""
    book, floor, whole = draft.book, draft.floor, int.from_bytes
    memory, balances, position = draft.memory, draft.balances, draft.position
    noted, moved, put = memory.get, balances.get, draft.statuses.get
    answers: list[bytes] = []
    records: list[bytes] = []
    answer, record = ANSWER.pack, RECORD.pack
    asked = list(rows(OPERATION, operations))
    keys = [whole(row[0]) for row in asked]
    # Looked up all together, which was measured to be faster where there are a million accounts.
    indexes = list(map(book.accounts.get, [row[4] for row in asked]))
    stored = list(map(book.memory.get, keys))
    for row, key, index, known in zip(asked, keys, indexes, stored, strict=True):
        raw, verb, mode, undoes, account, size = row
        amount = whole(size)
        # Most are new, and are plain moves of money on an open account. They are judged by the
        # rules that all are judged by, but without a call for each thing that the rules look at.
        if index is not None and not (known or mode or undoes or key < floor or noted(key)):
            balance, status = moved(index), put(index)
            if balance is None:
                balance = book.balances[index]
            if status is None:
                status = book.statuses[index]
            if verb == CREDIT:
                outcome, delta, told = credit(status, balance, amount), amount, CREDITED
            elif verb == DEBIT:
                outcome, delta, told = debit(status, balance, amount), -amount, DEBITED
            else:
                outcome = MALFORMED
            if outcome == DONE and status == ACTIVE:
                position += 1
                balances[index] = balance = balance + delta
                memory[key] = (amount << AMOUNT | index) << FINGERPRINT | position << 8 | told
                change = size if delta > 0 else delta.to_bytes(16, signed=True)
                after = balance.to_bytes(16)
                records.append(record(raw, verb, 0, 0, account, size, DONE, change, after))
                answers.append(answer(DONE, position))
                continue
        draft.position = position
        answers.append(answer(*_judge(draft, row, records)))
        position = draft.position
    draft.position = position
    return b"".join(answers), b"".join(records)


def _judge(draft: Draft, row: tuple[Any, ...], records: list[bytes]) -> tuple[int, int]:
    """Decide any operation; return its outcome and the position of the record that stores it."""
    raw, verb, mode, undoes, account, size = row
    key, amount = int.from_bytes(raw), int.from_bytes(size)
    if key < draft.floor:
        return RETIRED, 0
    stored = draft.find(key)
    if stored is not None:
        return _repeat(draft, stored, (verb, undoes, account, amount))
    delta = 0
    if account[0] not in BOOKS or not _is_operation(verb, undoes, key):
        outcome = MALFORMED
    elif mode == VOID and 0 < amount <= MAX_AMOUNT:
        # Nothing is known of it, and from now on nothing can become of it.
        outcome = UNDONE
    elif verb != REFUND and (strange := _strange(draft, account)):
        outcome = strange
    elif verb == CREDIT:
        outcome = credit(draft.status(account), draft.balance(account), amount)
        delta = amount if outcome == DONE else 0
    elif verb == DEBIT:
        outcome = debit(draft.status(account), draft.balance(account), amount)
        delta = -amount if outcome == DONE else 0
    else:
        original = key >> VERSION_BITS << VERSION_BITS | undoes
        outcome, delta = refund(draft, original, account, amount, mode)
    if outcome >= STORED:
        return outcome, 0
    balance = draft.balance(account) + delta
    draft.note(key, (verb, undoes, account, amount), outcome, delta, balance)
    change, after = delta.to_bytes(16, signed=True), balance.to_bytes(16)
    records.append(RECORD.pack(raw, verb, mode, undoes, account, size, outcome, change, after))
    return outcome, draft.position


def _strange(draft: Draft, account: bytes) -> int:
    """Why an account may not be opened. One that is open was looked at when it was opened."""
    if draft.status(account) != ABSENT:
        return 0
    _, asset_id, owner = ACCOUNT.unpack(account)
    if not 0 < owner <= MAX_OWNER:
        return Outcome.INVALID_OWNER
    return 0 if asset_id in draft.assets else Outcome.INVALID_ASSET


def _is_operation(verb: int, undoes: int, key: int) -> bool:
    """A refund names another operation, and nothing else names one."""
    if verb == REFUND:
        return undoes != key & VERSIONS
    return verb in (DEBIT, CREDIT) and not undoes


def _repeat(draft: Draft, stored: int, asked: Asked) -> tuple[int, int]:
    """The stored answer, if the question is the stored one."""
    verb, undoes, account, amount = asked
    index = draft.index(account)
    if index is None or verb_of(stored) != verb:
        return KEY_REUSED, 0
    if stored >> FINGERPRINT != amount << AMOUNT | undoes << ACCOUNT_BITS | index:
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
    draft: Draft, original: int, account: bytes, amount: int, expect_done: int
) -> tuple[int, int]:
    """Undo a DEBIT, once. The account's status is not asked: the money is its owner's."""
    stored = draft.find(original)
    if stored is None:
        return (UNFOUNDED if expect_done else TOMBSTONE), 0
    index = draft.index(account)
    if verb_of(stored) != DEBIT or index is None:
        return KEY_REUSED, 0
    if stored >> FINGERPRINT != amount << AMOUNT | index:
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
    if strange := _strange(draft, account):
        return b"", strange
    if draft.status(account) == status:
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
