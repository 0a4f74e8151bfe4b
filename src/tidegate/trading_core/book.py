"""Balances and the memory of every operation: pure, and the same on replay as when it happened.

A batch is judged into a `Draft`, which nobody sees. Once the draft's records are durable it is
applied. Replay writes the records of the log into the book itself, by the same `Pages.note`, and
judges nothing: the log holds decisions.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from tidegate.core.wire import RECORD, Binding, Outcome, Status, Verb, rows

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
CREDITED, DEBITED = CREDIT << VERB | DONE, DEBIT << VERB | DONE
POSITIONS = (1 << POSITION_BITS) - 1
VERSION_BITS = 32  # An operation's key is one int as well: transfer id, then version.

# A record of a plain move as replay reads it, because to read bytes as a number costs more than
# all the other fields: amount and balance in two halves, whose upper ones must be nothing.
PLAIN = struct.Struct(">20sB5x13sQQB16xQQ")
assert PLAIN.size == RECORD.size

GROUP = 5  # The first bytes of an account: its book and asset.


Asked: TypeAlias = tuple[int, int, bytes, int]  # Verb, undoes, account and amount.


class Inconsistent(Exception):
    """A record does not follow from the state before it: the log is not of this history."""


class Pages(ABC):
    """Where a decided operation is written: into a draft, or on replay into the book itself."""

    position: int
    balances: dict[int, int] | list[int]  # By the account's number, as are the statuses.
    statuses: dict[int, int] | bytearray
    memory: dict[int, int]

    @abstractmethod
    def find(self, key: int) -> int | None:
        """What is remembered of an operation."""

    @abstractmethod
    def status(self, account: bytes) -> int: ...

    @abstractmethod
    def open(self, account: bytes) -> int:
        """The number of an account, which is its own from now on."""

    def note(self, key: int, asked: Asked, outcome: int, delta: int, balance: int) -> None:
        """Take in one decided operation."""
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


class Book(Pages):
    """What is durable. It changes only by `apply`, and by `replay` before anybody is served."""

    balances: list[int]
    statuses: bytearray

    def __init__(self) -> None:
        self.position = 0
        self.accounts: dict[bytes, int] = {}
        self.balances = []
        self.statuses = bytearray()
        self.groups: list[bytes] = []  # Whose total each account is part of.
        self._groups: dict[bytes, bytes] = {}  # One copy of each, whose hash is known.
        self.totals: dict[bytes, int] = {}
        self.memory = {}
        self.floor = 0  # Keys below it are retired. It never falls.
        # Floors of an earlier format, per store. The lowest of them counts.
        self.old_floors: dict[str, int] = {}
        self.binding = Binding()  # Nobody yet: the first store that comes.
        self.assets: frozenset[int] = frozenset()

    def open(self, account: bytes) -> int:
        index = self.accounts.get(account)
        if index is None:
            group = account[:GROUP]
            index = self.accounts[account] = len(self.balances)
            self.balances.append(0)
            self.statuses.append(ABSENT)
            self.groups.append(self._groups.setdefault(group, group))
            self.totals.setdefault(group, 0)
        return index

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
        self.binding, self.assets = draft.binding, draft.assets
        if draft.floor > self.floor:
            self.floor = draft.floor
            # Rebuilt, because deleting leaves a dict at its greatest size.
            self.memory = {k: v for k, v in self.memory.items() if k >= draft.floor}

    def find(self, key: int) -> int | None:
        return self.memory.get(key)

    def replay(self, records: bytes) -> None:
        """Take in operations as the log has them. Nothing is judged; each balance must follow.

        The totals are counted when the whole log is read.
        """
        memory, balances, statuses = self.memory, self.balances, self.statuses
        index_of, whole, start = self.accounts.get, int.from_bytes, self.position
        position = start
        for raw, verb, account, high, amount, outcome, above, balance in rows(PLAIN, records):
            index = index_of(account)
            if index is not None and outcome == DONE and statuses[index] and not (high or above):
                # What `note` does with a plain move on an open account, without a call for each.
                told = 0
                if verb == CREDIT and balances[index] + amount == balance:
                    told = CREDITED
                elif verb == DEBIT and balances[index] - amount == balance:
                    told = DEBITED
                if told:
                    position += 1
                    told |= position << 8
                    memory[whole(raw)] = (amount << AMOUNT | index) << FINGERPRINT | told
                    balances[index] = balance
                    continue
            self.position = position
            self._replay(RECORD.unpack_from(records, (position - start) * RECORD.size))
            position = self.position
        self.position = position

    def _replay(self, row: tuple[Any, ...]) -> None:
        """Any record."""
        raw, verb, _, undoes, account, size, outcome, change, after = row
        delta, balance = int.from_bytes(change, signed=True), int.from_bytes(after)
        if self.balance(account) + delta != balance:
            raise unfit(self.position + 1)
        asked = (verb, undoes, account, int.from_bytes(size))
        self.note(int.from_bytes(raw), asked, outcome, delta, balance)

    def recount(self) -> None:
        """The totals, afresh from the balances."""
        self.totals = dict(group_totals(self))

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


class Draft(Pages):
    """What a batch would change. Each operation in it sees those before it."""

    balances: dict[int, int]
    statuses: dict[int, int]

    def __init__(self, book: Book) -> None:
        self.book = book
        self.position = book.position
        self.floor = book.floor
        self.accounts: dict[bytes, int] = {}  # New ones, in the order of their numbers.
        self.balances = {}
        self.statuses = {}
        self.memory = {}
        self.binding, self.assets = book.binding, book.assets

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
        index = self.index(account)
        if index is None:
            index = self.accounts[account] = len(self.book.balances) + len(self.accounts)
            self.balances[index], self.statuses[index] = 0, ABSENT
        return index

    def note_status(self, account: bytes, status: int) -> None:
        index = self.open(account)
        self.position += 1
        self.statuses[index] = status

    def note_floor(self, floor: int) -> None:
        """The store will not ask about ids below `floor` again."""
        self.position += 1
        self.floor = max(self.floor, floor << VERSION_BITS)

    def note_old_floor(self, store: str, floor: int) -> None:
        """As an earlier program recorded it, of one of several stores."""
        self.book.old_floors[store] = floor
        self.note_floor(min(self.book.old_floors.values()))

    def note_binding(self, binding: Binding) -> None:
        self.position += 1
        self.binding = binding

    def note_assets(self, assets: Iterable[int]) -> None:
        self.position += 1
        self.assets = self.assets.union(assets)


def unfit(position: int) -> Inconsistent:
    return Inconsistent(f"record {position} does not fit the balance before it")


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
