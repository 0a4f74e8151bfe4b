"""Balances and the memory of every operation: pure, and the same on replay as when it happened.

A batch is judged into a `Draft`, which nobody sees. Once the draft's records are durable it is
applied. Replay fills a draft from the records of the log by the same `Draft.note`, and judges
nothing: the log holds decisions.
"""

import struct
from collections.abc import Iterator

from tidegate.core.wire import RECORD, Outcome, Status, Verb, rows

# The hot loop compares plain numbers: an enum member costs a lookup and a call.
DEBIT, CREDIT, REFUND = int(Verb.DEBIT), int(Verb.CREDIT), int(Verb.REFUND)
DONE, TOMBSTONE = int(Outcome.DONE), int(Outcome.TOMBSTONE)
ACTIVE, ABSENT = int(Status.ACTIVE), int(Status.ABSENT)

# One remembered operation is one int: amount | undoes 32 | account 40 | position 48 | verb 2 |
# undone 1 | outcome 5. As a value in a dict it takes 48 bytes while the amount is below 2**52.
POSITION_BITS, ACCOUNT_BITS, UNDOES_BITS = 48, 40, 32
FINGERPRINT = POSITION_BITS + 8  # What lies above this bit is the account, undoes and amount.
AMOUNT = ACCOUNT_BITS + UNDOES_BITS
OUTCOMES, UNDONE_BIT, VERB = 31, 32, 6
POSITIONS = (1 << POSITION_BITS) - 1
VERSION_BITS = 32  # An operation's key is one int as well: transfer id, then version.

# A record as replay reads it: without its mode, and with its delta as two numbers, because to
# read signed bytes costs more than all the other fields.
LOGGED = struct.Struct(">20sBxI13s16sBqQ16s")
assert LOGGED.size == RECORD.size

GROUP = 5  # The first bytes of an account: its book and asset.


class Inconsistent(Exception):
    """A record does not follow from the state before it: the log is not of this history."""


class Book:
    """What is durable. It changes only by `apply`."""

    def __init__(self) -> None:
        self.position = 0
        self.accounts: dict[bytes, int] = {}
        self.balances: list[int] = []
        self.statuses = bytearray()
        self.groups: list[bytes] = []  # Whose total each account is part of.
        self._groups: dict[bytes, bytes] = {}  # One copy of each, whose hash is known.
        self.totals: dict[bytes, int] = {}
        self.memory: dict[int, int] = {}
        self.floors: dict[str, int] = {}  # Per registered store, an id.
        self.floor = 0  # Keys below it are retired. It never falls.

    def open(self, account: bytes) -> None:
        """Give an account the next number."""
        group = account[:GROUP]
        self.accounts[account] = len(self.balances)
        self.balances.append(0)
        self.statuses.append(ABSENT)
        self.groups.append(self._groups.setdefault(group, group))
        self.totals.setdefault(group, 0)

    def apply(self, draft: "Draft") -> None:
        self.position = draft.position
        for account in draft.accounts:
            self.open(account)
        balances, groups, totals = self.balances, self.groups, self.totals
        for index, balance in draft.balances.items():
            totals[groups[index]] += balance - balances[index]
            balances[index] = balance
        for index, status in draft.statuses.items():
            self.statuses[index] = status
        self.memory.update(draft.memory)
        self.floors.update(draft.floors)
        if draft.floor > self.floor:
            self.floor = draft.floor
            # Rebuilt, because deleting leaves a dict at its greatest size.
            self.memory = {k: v for k, v in self.memory.items() if k >= draft.floor}

    def balance(self, account: bytes) -> int:
        index = self.accounts.get(account)
        return 0 if index is None else self.balances[index]

    def status(self, account: bytes) -> int:
        index = self.accounts.get(account)
        return ABSENT if index is None else self.statuses[index]

    def answer(self, key: int) -> tuple[int, int]:
        """What is stored under a key: outcome and position."""
        if key < self.floor:
            return Outcome.RETIRED, 0
        stored = self.memory.get(key)
        return (Outcome.NOTHING, 0) if stored is None else answer_of(stored)


class Draft:
    """What a batch would change. Each operation in it sees those before it."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.position = book.position
        self.floor = book.floor
        self.accounts: dict[bytes, int] = {}  # New ones, in the order of their numbers.
        self.balances: dict[int, int] = {}  # By the account's number, as are the statuses.
        self.statuses: dict[int, int] = {}
        self.memory: dict[int, int] = {}
        self.floors: dict[str, int] = {}

    def find(self, key: int) -> int | None:
        found = self.memory.get(key)
        return self.book.memory.get(key) if found is None else found

    def index(self, account: bytes) -> int | None:
        found = self.book.accounts.get(account)
        return self.accounts.get(account) if found is None else found

    def balance(self, account: bytes) -> int:
        index = self.index(account)
        found = 0 if index is None else self.balances.get(index)
        return self.book.balance(account) if found is None else found

    def status(self, account: bytes) -> int:
        index = self.index(account)
        found = ABSENT if index is None else self.statuses.get(index)
        return self.book.status(account) if found is None else found

    def open(self, account: bytes) -> int:
        """The number of an account, which is its own from now on."""
        index = self.index(account)
        if index is None:
            index = self.accounts[account] = len(self.book.balances) + len(self.accounts)
            self.balances[index], self.statuses[index] = 0, ABSENT
        return index

    def note(
        self, key: int, asked: tuple[int, int, bytes, int], outcome: int, delta: int, balance: int
    ) -> None:
        """Take in one decided operation. `asked` is its verb, undoes, account and amount."""
        verb, undoes, account, amount = asked
        index = self.open(account)
        self.position = position = self.position + 1
        what = (amount << AMOUNT | index) << FINGERPRINT | position << 8
        self.memory[key] = what | undoes << (ACCOUNT_BITS + FINGERPRINT) | verb << VERB | outcome
        if verb == REFUND and undoes_something(outcome):
            original = key >> VERSION_BITS << VERSION_BITS | undoes
            if outcome == DONE:
                found = self.find(original)
                if found is None:
                    raise Inconsistent(f"record {position} undoes what was never done")
                self.memory[original] = found | UNDONE_BIT
            else:
                self.memory[original] = what | DEBIT << VERB | Outcome.UNDONE
        if delta:
            self.balances[index] = balance
            if verb == CREDIT and self.status(account) == ABSENT:
                self.statuses[index] = ACTIVE

    def note_status(self, account: bytes, status: int) -> None:
        index = self.open(account)
        self.position += 1
        self.statuses[index] = status

    def note_floor(self, store: str, floor: int) -> None:
        """A store will not ask about ids below `floor` again. The lowest of all stores counts."""
        self.position += 1
        self.floors[store] = floor
        lowest = min({**self.book.floors, **self.floors}.values())
        self.floor = max(self.floor, lowest << VERSION_BITS)

    def replay(self, records: bytes) -> None:
        """Take in operations as the log has them. Nothing is judged, all is checked."""
        book, memory, balances, whole = self.book, self.memory, self.balances, int.from_bytes
        index_of, moved = book.accounts.get, balances.get
        position, statuses, still = self.position, book.statuses, book.balances
        for raw, verb, undoes, account, size, outcome, high, low, after in rows(LOGGED, records):
            key, amount, balance = whole(raw), whole(size), whole(after)
            delta = high << 64 | low if high else low
            index = index_of(account)
            if index is None or outcome != DONE or verb == REFUND or not statuses[index]:
                self.position = position
                if self.balance(account) + delta != balance:
                    raise self._unfit()
                self.note(key, (verb, undoes, account, amount), outcome, delta, balance)
                position = self.position
                continue
            # What `note` does with a plain move on an open account, without a call for each.
            before = moved(index)
            if (still[index] if before is None else before) + delta != balance:
                raise self._unfit()
            position += 1
            told = position << 8 | verb << VERB | DONE
            memory[key] = (amount << AMOUNT | index) << FINGERPRINT | told
            balances[index] = balance
        self.position = position

    def _unfit(self) -> Inconsistent:
        return Inconsistent(f"record {self.position + 1} does not fit the balance before it")


def undoes_something(outcome: int) -> bool:
    return outcome in (DONE, TOMBSTONE)


def answer_of(stored: int) -> tuple[int, int]:
    return stored & OUTCOMES, stored >> 8 & POSITIONS


def verb_of(stored: int) -> int:
    return stored >> VERB & 3


def group_totals(book: Book) -> Iterator[tuple[bytes, int]]:
    """The sums, counted afresh from the balances: what the running totals must equal."""
    sums: dict[bytes, int] = {}
    for account, index in book.accounts.items():
        group = account[:GROUP]
        sums[group] = sums.get(group, 0) + book.balances[index]
    return iter(sums.items())
