"""Balances and the memory of every operation: pure, and the same on replay as when it happened.

A batch is judged into a `Draft`, which nobody sees. Once the draft's records are durable it is
applied. Replay writes the records of the log into the book itself, by the same `Pages.note`, and
judges nothing: the log holds decisions.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, TypeAlias

from tidegate.core.wire import KEY, RECORD, Binding, Outcome
from tidegate.trading_core.columns import Moves, read_records
from tidegate.trading_core.memory import (
    ABSENT,
    ACTIVE,
    AMOUNT,
    CREDIT,
    DEBIT,
    DONE,
    FINGERPRINT,
    NEXT,
    REFUND,
    TOMBSTONE,
    UNDOES,
    UNDONE_BIT,
    VERB,
    VERSION_BITS,
    AccountState,
    GroupTotal,
    Memory,
    MoveRun,
    answer_of,
    number_in,
    numbers,
    remember,
)

GROUP = 5  # The first bytes of an account: its book and asset.
MANY = 50_000  # Accounts that are no longer all in the processor's cache.

NOBODY = AccountState(0, GroupTotal())  # Stands where there is no account. It is never opened.

Asked: TypeAlias = tuple[int, int, bytes, int]  # Verb, undoes, account and amount.


class Inconsistent(Exception):
    """A record does not follow from the state before it: the log is not of this history."""


class Pages(ABC):
    """Where a decided operation is written: into a draft, or on replay into the book itself."""

    position: int
    memory: Memory

    @abstractmethod
    def find(self, key: bytes) -> int | None:
        """What is remembered of an operation."""

    @abstractmethod
    def state(self, account: bytes) -> AccountState | None: ...

    @abstractmethod
    def open(self, account: bytes) -> AccountState:
        """The state of an account, whose number is its own from now on."""

    @abstractmethod
    def balance_of(self, state: AccountState) -> int: ...

    @abstractmethod
    def status_of(self, state: AccountState) -> int: ...

    @abstractmethod
    def set_balance(self, state: AccountState, balance: int) -> None: ...

    @abstractmethod
    def set_status(self, state: AccountState, status: int) -> None: ...

    def balance(self, account: bytes) -> int:
        state = self.state(account)
        return 0 if state is None else self.balance_of(state)

    def status(self, account: bytes) -> int:
        state = self.state(account)
        return ABSENT if state is None else self.status_of(state)

    def note(self, key: bytes, asked: Asked, outcome: int, delta: int, balance: int) -> None:
        """Take in one decided operation."""
        verb, undoes, account, amount = asked
        state = self.open(account)
        self.position = position = self.position + 1
        what = amount * AMOUNT + state.number + position * NEXT
        self.memory[key] = what | undoes << UNDOES | verb << VERB | outcome
        if verb == REFUND and undoes_something(outcome):
            original = undone_by(key, undoes)
            if outcome == DONE:
                found = self.find(original)
                if found is None:
                    raise Inconsistent(f"record {position} undoes what was never done")
                self.memory[original] = found | UNDONE_BIT
            else:
                self.memory[original] = what | DEBIT << VERB | Outcome.UNDONE
        if delta:
            self.set_balance(state, balance)
            if verb == CREDIT and self.status_of(state) == ABSENT:
                self.set_status(state, ACTIVE)


class Book(Pages):
    """What is durable. It changes only by `apply`, and by `replay` before anybody is served."""

    def __init__(self) -> None:
        self.position = 0
        self.states: dict[bytes, AccountState] = {}  # In the order of their numbers.
        self.groups: dict[bytes, GroupTotal] = {}
        self.memory = {}
        self.floor = 0  # Keys below it are retired. It never falls.
        # Floors of an earlier format, per store. The lowest of them counts.
        self.old_floors: dict[str, int] = {}
        self.binding = Binding()  # Nobody yet: the first store that comes.
        self.assets: frozenset[int] = frozenset()

    @property
    def accounts(self) -> dict[bytes, int]:
        """The number of each account. A copy, as are the balances, statuses and totals."""
        return {account: index for index, account in enumerate(self.states)}

    @property
    def balances(self) -> list[int]:
        """By the account's number."""
        return [state.balance for state in self.states.values()]

    @property
    def statuses(self) -> list[int]:
        """By the account's number."""
        return [state.status for state in self.states.values()]

    @property
    def totals(self) -> dict[bytes, int]:
        return {name: group.total for name, group in self.groups.items()}

    def find(self, key: bytes) -> int | None:
        return number_in(self.memory, key)

    def remembered(self) -> Iterator[tuple[bytes, int]]:
        """What is remembered of each operation, in the order in which they were decided."""
        return numbers(self.memory)

    def state(self, account: bytes) -> AccountState | None:
        return self.states.get(account)

    def look_up(self, accounts: Sequence[bytes]) -> tuple[AccountState, ...]:
        """The states of those accounts that are open, and NOBODY for the others.

        Among many accounts each look-up waits for main memory. The processor waits for several
        at once if it has little else to do between them: so all are hashed first.
        """
        return self._find_all(accounts) or tuple(
            [self.states.get(account, NOBODY) for account in accounts]
        )

    def open_all(self, accounts: Sequence[bytes]) -> tuple[AccountState, ...]:
        return self._find_all(accounts) or tuple(map(self.open, accounts))

    def _find_all(self, accounts: Sequence[bytes]) -> tuple[AccountState, ...]:
        """The states of all of them; of none if one is not open."""
        if len(accounts) > 1 and len(self.states) >= MANY:
            deque(map(hash, accounts), 0)
            with suppress(KeyError):
                found: tuple[AccountState, ...] = itemgetter(*accounts)(self.states)
                return found
        return ()

    def are_new(self, keys: Sequence[bytes]) -> bool:
        """Whether nothing is remembered under any of these keys."""
        deque(map(hash, keys), 0)
        return self.memory.keys().isdisjoint(keys)

    def open(self, account: bytes) -> AccountState:
        state = self.states.get(account)
        if state is None:
            group = self.groups.get(account[:GROUP])
            if group is None:
                group = self.groups[account[:GROUP]] = GroupTotal()
            state = AccountState(len(self.states) << FINGERPRINT, group)
            self.states[account] = state
        return state

    def balance_of(self, state: AccountState) -> int:
        return state.balance

    def status_of(self, state: AccountState) -> int:
        return state.status

    def set_balance(self, state: AccountState, balance: int) -> None:
        state.balance = balance

    def set_status(self, state: AccountState, status: int) -> None:
        state.status = status

    def apply(self, draft: "Draft") -> None:
        self.position = draft.position
        for account, state in draft.opened.items():
            state.group = self.groups.setdefault(account[:GROUP], state.group)
            self.states[account] = state
        for state, balance in draft.balances.items():
            state.group.total += balance - state.balance
            state.balance = balance
        for state, status in draft.statuses.items():
            state.status = status
        self.memory.update(draft.memory)
        self.binding, self.assets = draft.binding, draft.assets
        if draft.floor > self.floor:
            self.floor, lowest = draft.floor, key_of(draft.floor)
            # Rebuilt, because deleting leaves a dict at its greatest size.
            self.memory = {k: v for k, v in self.memory.items() if k >= lowest}

    def replay(self, records: bytes) -> None:
        """Take in operations as the log has them. Nothing is judged; each balance must follow.

        The totals are counted when the whole log is read.
        """
        moves = read_records(records)
        states = self.open_all(moves.accounts)
        first = last = 0  # Of the plain moves that are not yet remembered.
        for verb, state, amount, after in zip(
            moves.verbs, states, moves.amounts, moves.balances, strict=True
        ):
            # What `note` does with a plain move, without a call for each.
            if verb == CREDIT and amount and state.balance + amount == after:
                state.balance = after
                if state.status == ABSENT:
                    state.status = ACTIVE
            elif verb == DEBIT and amount and state.balance - amount == after:
                state.balance = after
            else:
                self._remember(moves, states, slice(first, last))
                self._replay(RECORD.unpack_from(records, last * RECORD.size))
                first = last + 1
            last += 1
        self._remember(moves, states, slice(first, last))

    def _remember(self, moves: Moves, states: tuple[AccountState, ...], part: slice) -> None:
        keys = moves.keys[part]
        run = MoveRun(self.position, keys, states[part], moves.amounts[part], moves.verbs[part])
        remember(self.memory, run)
        self.position += len(keys)

    def _replay(self, row: tuple[Any, ...]) -> None:
        """Any record."""
        key, verb, _, undoes, account, size, outcome, change, after = row
        delta, balance = int.from_bytes(change, signed=True), int.from_bytes(after)
        if self.balance(account) + delta != balance:
            raise unfit(self.position + 1)
        self.note(key, (verb, undoes, account, int.from_bytes(size)), outcome, delta, balance)

    def recount(self) -> None:
        """The totals, afresh from the balances."""
        for name, total in group_totals(self):
            self.groups[name].total = total

    def answer(self, key: bytes) -> tuple[int, int]:
        """What is stored under a key: outcome and position."""
        if key < key_of(self.floor):
            return Outcome.RETIRED, 0
        stored = self.find(key)
        return (Outcome.NOTHING, 0) if stored is None else answer_of(stored)


class Draft(Pages):
    """What a batch would change. Each operation in it sees those before it."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.position = book.position
        self.floor = book.floor
        self.opened: dict[bytes, AccountState] = {}  # In the order of their numbers.
        self.balances: dict[AccountState, int] = {}
        self.statuses: dict[AccountState, int] = {}
        self.memory = {}
        self.binding, self.assets = book.binding, book.assets

    def find(self, key: bytes) -> int | None:
        found = number_in(self.memory, key)
        return number_in(self.book.memory, key) if found is None else found

    def state(self, account: bytes) -> AccountState | None:
        found = self.book.states.get(account)
        return self.opened.get(account) if found is None else found

    def open(self, account: bytes) -> AccountState:
        state = self.state(account)
        if state is None:
            number = len(self.book.states) + len(self.opened)
            state = self.opened[account] = AccountState(number << FINGERPRINT, GroupTotal())
        return state

    def balance_of(self, state: AccountState) -> int:
        return self.balances.get(state, state.balance)

    def status_of(self, state: AccountState) -> int:
        return self.statuses.get(state, state.status)

    def set_balance(self, state: AccountState, balance: int) -> None:
        self.balances[state] = balance

    def set_status(self, state: AccountState, status: int) -> None:
        self.statuses[state] = status

    def note_status(self, account: bytes, status: int) -> None:
        state = self.open(account)
        self.position += 1
        self.statuses[state] = status

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


def key_of(number: int) -> bytes:
    """A floor as the keys are, which are compared as bytes."""
    return number.to_bytes(KEY.size)


def undone_by(key: bytes, undoes: int) -> bytes:
    """The key of what an undo undoes: another version of the same transfer."""
    return KEY.pack(key[: -VERSION_BITS // 8], undoes)


def unfit(position: int) -> Inconsistent:
    return Inconsistent(f"record {position} does not fit the balance before it")


def undoes_something(outcome: int) -> bool:
    return outcome in (DONE, TOMBSTONE)


def group_totals(book: Book) -> Iterator[tuple[bytes, int]]:
    """The sums, counted afresh from the balances: what the running totals must equal."""
    sums: dict[bytes, int] = {}
    for account, state in book.states.items():
        group = account[:GROUP]
        sums[group] = sums.get(group, 0) + state.balance
    return iter(sums.items())
