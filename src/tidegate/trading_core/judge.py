"""Which operations are done and which are refused: the rules, in a fixed order."""

from tidegate.core.money import MAX_AMOUNT
from tidegate.core.wire import (
    ANSWER,
    FLOOR,
    OPERATION,
    RECORD,
    STATUS,
    VOID,
    Book,
    Outcome,
    Status,
    rows,
)
from tidegate.trading_core.book import (
    ABSENT,
    ACCOUNT_BITS,
    AMOUNT,
    CREDIT,
    DEBIT,
    DONE,
    FINGERPRINT,
    REFUND,
    UNDONE_BIT,
    VERSION_BITS,
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
VERSIONS = (1 << VERSION_BITS) - 1


def judge(draft: Draft, operations: bytes) -> tuple[bytes, bytes]:
    """Decide each operation into the draft; return the answers and the records for the log."""
    answers, records = [], []
    whole, find = int.from_bytes, draft.find
    answer, record = ANSWER.pack, RECORD.pack
    for raw, verb, mode, undoes, account, size in rows(OPERATION, operations):
        key, amount = whole(raw), whole(size)
        if key < draft.floor:
            answers.append(answer(RETIRED, 0))
            continue
        stored = find(key)
        if stored is not None:
            answers.append(answer(*_repeat(draft, stored, (verb, undoes, account, amount))))
            continue
        if mode == VOID and account[0] in BOOKS and 0 < amount <= MAX_AMOUNT:
            # Nothing is known of it, and from now on nothing can become of it.
            outcome, delta = UNDONE, 0
        elif verb == CREDIT and not undoes and account[0] in BOOKS:
            outcome, delta = credit(draft, account, amount)
        elif verb == DEBIT and not undoes and account[0] in BOOKS:
            outcome, delta = debit(draft, account, amount)
        elif verb == REFUND and undoes != key & VERSIONS and account[0] in BOOKS:
            original = key >> VERSION_BITS << VERSION_BITS | undoes
            outcome, delta = refund(draft, original, account, amount, mode)
        else:
            outcome, delta = MALFORMED, 0
        if outcome >= STORED:
            answers.append(answer(outcome, 0))
            continue
        balance = draft.balance(account) + delta
        draft.note(key, (verb, undoes, account, amount), outcome, delta, balance)
        change, after = delta.to_bytes(16, signed=True), balance.to_bytes(16)
        records.append(
            record(raw, verb, mode, undoes, account, size, outcome, change, after),
        )
        answers.append(answer(outcome, draft.position))
    return b"".join(answers), b"".join(records)


def _repeat(draft: Draft, stored: int, asked: tuple[int, int, bytes, int]) -> tuple[int, int]:
    """The stored answer, if the question is the stored one."""
    verb, undoes, account, amount = asked
    index = draft.index(account)
    if index is None or verb_of(stored) != verb:
        return KEY_REUSED, 0
    if stored >> FINGERPRINT != amount << AMOUNT | undoes << ACCOUNT_BITS | index:
        return KEY_REUSED, 0
    return answer_of(stored)


def debit(draft: Draft, account: bytes, amount: int) -> tuple[int, int]:
    if not 0 < amount <= MAX_AMOUNT:
        return Outcome.INVALID_AMOUNT, 0
    status = draft.status(account)
    if status == ABSENT:
        return Outcome.SOURCE_ACCOUNT_NOT_FOUND, 0
    if status == FROZEN:
        return Outcome.ACCOUNT_FROZEN, 0
    if status == DISABLED:
        return Outcome.ACCOUNT_DISABLED, 0
    if draft.balance(account) < amount:
        return Outcome.INSUFFICIENT_BALANCE, 0
    return DONE, -amount


def credit(draft: Draft, account: bytes, amount: int) -> tuple[int, int]:
    if not 0 < amount <= MAX_AMOUNT:
        return Outcome.INVALID_AMOUNT, 0
    if draft.status(account) == DISABLED:
        return Outcome.ACCOUNT_DISABLED, 0
    if draft.balance(account) > MAX_AMOUNT - amount:
        return Outcome.BALANCE_OVERFLOW, 0
    return DONE, amount


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


def set_status(draft: Draft, body: bytes) -> bytes:
    """An administrator's word on an account. Said twice, it is recorded once."""
    account, status = STATUS.unpack(body)
    if draft.status(account) == status:
        return b""
    draft.note_status(account, status)
    return body


def retire(draft: Draft, body: bytes) -> bytes:
    """A store's floor. It only rises; the first one registers the store."""
    floor, store = int.from_bytes(body[: FLOOR.size]), body[FLOOR.size :].decode()
    known = draft.floors.get(store, draft.book.floors.get(store))
    if known is not None and floor <= known:
        return b""
    draft.note_floor(store, floor)
    return body
