"""Balances and the memory of every operation: pure, and the same on replay as when it happened.

A batch is judged into a `Draft`, which nobody sees. Once the draft's records are durable it is
applied. Replay fills a draft from the records of the log by the same `Draft.note`, and judges
nothing: the log holds decisions.
"""

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
        self.totals: dict[bytes, int] = {}
        self.memory: dict[int, int] = {}
        self.floors: dict[str, int] = {}  # Per registered store, an id.
        self.floor = 0  # Keys below it are retired. It never falls.

    def apply(self, draft: "Draft") -> None:
        self.position = draft.position
        for account in draft.accounts:
            self.accounts[account] = len(self.balances)
            self.balances.append(0)
            self.statuses.append(ABSENT)
        for account, balance in draft.balances.items():
            self.balances[self.accounts[account]] = balance
        for account, status in draft.statuses.items():
            self.statuses[self.accounts[account]] = status
        for group, total in draft.totals.items():
            self.totals[group] = self.totals.get(group, 0) + total
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
        self.balances: dict[bytes, int] = {}
        self.statuses: dict[bytes, int] = {}
        self.totals: dict[bytes, int] = {}
        self.memory: dict[int, int] = {}
        self.floors: dict[str, int] = {}

    def find(self, key: int) -> int | None:
        found = self.memory.get(key)
        return self.book.memory.get(key) if found is None else found

    def balance(self, account: bytes) -> int:
        found = self.balances.get(account)
        return self.book.balance(account) if found is None else found

    def status(self, account: bytes) -> int:
        found = self.statuses.get(account)
        return self.book.status(account) if found is None else found

    def index(self, account: bytes) -> int | None:
        found = self.book.accounts.get(account)
        return self.accounts.get(account) if found is None else found

    def note(
        self, key: int, asked: tuple[int, int, bytes, int], outcome: int, delta: int, balance: int
    ) -> None:
        """Take in one decided operation. `asked` is its verb, undoes, account and amount."""
        verb, undoes, account, amount = asked
        index = self.index(account)
        if index is None:
            index = self.accounts[account] = len(self.book.balances) + len(self.accounts)
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
            self.balances[account] = balance
            group = account[:GROUP]
            self.totals[group] = self.totals.get(group, 0) + delta
            if verb == CREDIT and self.status(account) == ABSENT:
                self.statuses[account] = ACTIVE

    def note_status(self, account: bytes, status: int) -> None:
        if self.index(account) is None:
            self.accounts[account] = len(self.book.balances) + len(self.accounts)
        self.position += 1
        self.statuses[account] = status

    def note_floor(self, store: str, floor: int) -> None:
        """A store will not ask about ids below `floor` again. The lowest of all stores counts."""
        self.position += 1
        self.floors[store] = floor
        lowest = min({**self.book.floors, **self.floors}.values())
        self.floor = max(self.floor, lowest << VERSION_BITS)

    def replay(self, records: bytes) -> None:
        """Take in operations as the log has them. Nothing is judged, all is checked."""
        whole, signed = int.from_bytes, _signed
        for raw, verb, _, undoes, account, amount, outcome, change, after in rows(RECORD, records):
            delta, balance = signed(change), whole(after)
            if self.balance(account) + delta != balance:
                raise Inconsistent(f"record {self.position + 1} does not fit the balance before it")
            asked = (verb, undoes, account, whole(amount))
            self.note(whole(raw), asked, outcome, delta, balance)


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


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, signed=True)
