"""Balances and the memory of every operation: pure, and the same on replay as when it happened.

A batch is judged into a `BookDraft`, which nobody sees. Once the draft's records are durable it is
applied. Replay writes the records of the log into the book itself, by the same `Pages.note`, and
judges nothing: the log holds decisions.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from tidegate.core.wire import KEY, OPERATION, RECORD, Binding, CoreOutcome
from tidegate.trading_core.accounts import ABSENT, Accounts, AccountState, GroupTotal
from tidegate.trading_core.move_columns import (
    ACTIVE,
    CREDIT,
    DEBIT,
    DONE,
    REFUND,
    TOMBSTONE,
    MoveColumns,
    read_records,
)
from tidegate.trading_core.operation_memory import (
    NEXT,
    UNDONE_BIT,
    VERB,
    VERSION_BITS,
    Memory,
    MoveRun,
    answer_of,
    fingerprint,
    number_of_move,
    remember,
)

DONE_IF_NOT = bytes([DONE, *range(1, 256)])  # What is no refusal here is done.

AskedOperation: TypeAlias = tuple[int, int, bytes, int]  # Verb, undoes, account and amount.


class LogInconsistent(Exception):
    """A record does not follow from the state before it: the log is not of this history."""


class BookWriter(ABC):
    """Where a decided operation is written: into a draft, or on replay into the book itself."""

    position: int
    memory: Memory

    @abstractmethod
    def find(self, key: bytes) -> int | None:
        """What is remembered of an operation."""

    def number_in(self, run: MoveRun, key: bytes) -> int:
        """What is remembered of one move of a run, as of any operation."""
        index, row = run.find(key)
        if run.is_numbered:
            return int.from_bytes(row[KEY.size :])
        _, verb, _, _, account, amount = OPERATION.unpack(row)
        told = verb << VERB | (run.outcomes[index] if run.outcomes else DONE)
        state = self.state(account)
        assert state is not None, "money was moved, so there is an account"
        return number_of_move(state, int.from_bytes(amount), run.before + 1 + index, told)

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

    def status_and_balance(self, account: bytes) -> tuple[int, int]:
        state = self.state(account)
        return (ABSENT, 0) if state is None else (self.status_of(state), self.balance_of(state))

    def note(
        self, key: bytes, asked: AskedOperation, outcome: int, delta: int, balance: int
    ) -> None:
        """Take in one decided operation."""
        verb, undoes, account, amount = asked
        state = self.open(account)
        self.position = position = self.position + 1
        what = fingerprint(state, undoes, amount) + position * NEXT
        self.memory[key] = what | verb << VERB | outcome
        if verb == REFUND and undoes_something(outcome):
            original = undone_by(key, undoes)
            if outcome == DONE:
                found = self.find(original)
                if found is None:
                    raise LogInconsistent(f"record {position} undoes what was never done")
                self.memory[original] = found | UNDONE_BIT
            else:
                what = fingerprint(state, 0, amount) + position * NEXT
                self.memory[original] = what | DEBIT << VERB | CoreOutcome.UNDONE
        if delta:
            self.set_balance(state, balance)
            if verb == CREDIT and self.status_of(state) == ABSENT:
                self.set_status(state, ACTIVE)


class Book(BookWriter):
    """What is durable. It changes only by `apply`, and by `replay` before anybody is served."""

    def __init__(self) -> None:
        self.position = 0
        self.states = Accounts()
        self.memory = {}
        self.floor = 0  # Keys below it are retired. It never falls.
        # Floors of an earlier format, per store. The lowest of them counts.
        self.old_floors: dict[str, int] = {}
        self.binding = Binding()  # Nobody yet: the first store that comes.
        self.assets: frozenset[int] = frozenset()

    @property
    def accounts(self) -> dict[bytes, int]:
        """The number of each account. A copy, as are the balances, statuses and totals."""
        return {account: index for index, account in enumerate(dict(self.states.items()))}

    @property
    def balances(self) -> list[int]:
        """By the account's number."""
        return [state.balance for state in self.states]

    @property
    def statuses(self) -> list[int]:
        """By the account's number."""
        return [state.status for state in self.states]

    @property
    def totals(self) -> dict[bytes, int]:
        return {name: group.total.total for name, group in self.states.groups.items()}

    def find(self, key: bytes) -> int | None:
        kept = self.memory.get(key)
        return self.number_in(kept, key) if isinstance(kept, MoveRun) else kept

    def state(self, account: bytes) -> AccountState | None:
        return self.states.find(account)

    def are_new(self, keys: Sequence[bytes]) -> bool:
        """Whether nothing is remembered under any of these keys."""
        return self.memory.keys().isdisjoint(keys)

    def open(self, account: bytes) -> AccountState:
        state = self.states.find(account)
        if state is None:
            state = AccountState(len(self.states), GroupTotal(b""))
            self.states.add(account, state)
        return state

    def balance_of(self, state: AccountState) -> int:
        return state.balance

    def status_of(self, state: AccountState) -> int:
        return state.status

    def set_balance(self, state: AccountState, balance: int) -> None:
        state.balance = balance

    def set_status(self, state: AccountState, status: int) -> None:
        state.status = status

    def apply(self, draft: "BookDraft") -> None:
        self.position = draft.position
        for account, state in draft.opened.items():
            self.states.add(account, state)
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
        states = self.states.open_all(moves.groups, moves.owners)
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
            elif not moves.refusals or not moves.refusals[last] or state.balance != after:
                self._remember(moves, states, first, last)
                self._replay(RECORD.unpack_from(records, last * RECORD.size))
                first = last + 1
            last += 1
        self._remember(moves, states, first, last)

    def _remember(
        self, moves: MoveColumns, states: Sequence[AccountState], first: int, last: int
    ) -> None:
        outcomes = moves.refusals[first:last]
        outcomes = outcomes.translate(DONE_IF_NOT) if any(outcomes) else b""
        remember(self.memory, self.position, moves.part(first, last), states[first:last], outcomes)
        self.position += last - first

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
            self.states.groups[name].total.total = total

    def answer(self, key: bytes) -> tuple[int, int]:
        """What is stored under a key: outcome and position."""
        if key < key_of(self.floor):
            return CoreOutcome.RETIRED, 0
        stored = self.find(key)
        return (CoreOutcome.NOTHING, 0) if stored is None else answer_of(stored)


class BookDraft(BookWriter):
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
        kept = self.memory.get(key)
        if kept is None:
            return self.book.find(key)
        return self.number_in(kept, key) if isinstance(kept, MoveRun) else kept

    def state(self, account: bytes) -> AccountState | None:
        found = self.book.states.find(account)
        return self.opened.get(account) if found is None else found

    def open(self, account: bytes) -> AccountState:
        state = self.state(account)
        if state is None:
            number = len(self.book.states) + len(self.opened)
            state = self.opened[account] = AccountState(number, GroupTotal(b""))
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


def unfit(position: int) -> LogInconsistent:
    return LogInconsistent(f"record {position} does not fit the balance before it")


def undoes_something(outcome: int) -> bool:
    return outcome in (DONE, TOMBSTONE)


def group_totals(book: Book) -> Iterator[tuple[bytes, int]]:
    """The sums, counted afresh from the balances: what the running totals must equal."""
    sums: dict[bytes, int] = {}
    for state in book.states:
        group = state.group.name
        sums[group] = sums.get(group, 0) + state.balance
    return iter(sums.items())
