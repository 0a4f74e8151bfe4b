"""Balances and the memory of every operation, with no I/O; replay gives the same state again.

A batch is judged into a `BookDraft`, which no reader sees. The draft is applied to the book once
its records are durable. Replay writes the records of the log directly into the book, by the same
`BookWriter.write_operation`. It judges nothing, because the log contains decisions.
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
    POSITION_UNIT,
    UNDONE_BIT,
    VERB_SHIFT,
    VERSION_BITS,
    Memory,
    MoveRun,
    answer_of,
    entry_of_move,
    fingerprint,
    remember,
)

ZERO_TO_DONE = bytes([DONE, *range(1, 256)])  # A translation table: no refusal means done.

OperationFields: TypeAlias = tuple[int, int, bytes, int]  # Verb, undoes, account, amount.


class LogInconsistent(Exception):
    """A record does not follow from the state before it: the log is of another history."""


class BookWriter(ABC):
    """Takes decided operations: a draft, or on replay the book itself."""

    position: int
    memory: Memory

    @abstractmethod
    def find(self, key: bytes) -> int | None:
        """The entry of an operation, if it is remembered."""

    def entry_in(self, run: MoveRun, key: bytes) -> int:
        """The entry of one move of a run."""
        index, row = run.find(key)
        if run.has_entries:
            return int.from_bytes(row[KEY.size :])
        _, verb, _, _, account, amount = OPERATION.unpack(row)
        verb_and_outcome = verb << VERB_SHIFT | (run.outcomes[index] if run.outcomes else DONE)
        state = self.state(account)
        assert state is not None, "a plain move needs an account"
        position = run.before + 1 + index
        return entry_of_move(state, int.from_bytes(amount), position, verb_and_outcome)

    @abstractmethod
    def state(self, account: bytes) -> AccountState | None: ...

    @abstractmethod
    def open(self, account: bytes) -> AccountState:
        """The state of an account. A new account gets the next number."""

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

    def write_operation(
        self, key: bytes, operation: OperationFields, outcome: int, delta: int, balance: int
    ) -> None:
        """Remember one decided operation and set the balance that it leads to."""
        verb, undoes, account, amount = operation
        state = self.open(account)
        self.position = position = self.position + 1
        entry = fingerprint(state, undoes, amount) + position * POSITION_UNIT
        self.memory[key] = entry | verb << VERB_SHIFT | outcome
        if verb == REFUND and undoes_something(outcome):
            original = undone_by(key, undoes)
            if outcome == DONE:
                original_entry = self.find(original)
                if original_entry is None:
                    raise LogInconsistent(f"record {position} undoes an unknown operation")
                self.memory[original] = original_entry | UNDONE_BIT
            else:
                entry = fingerprint(state, 0, amount) + position * POSITION_UNIT
                self.memory[original] = entry | DEBIT << VERB_SHIFT | CoreOutcome.UNDONE
        if delta:
            self.set_balance(state, balance)
            if verb == CREDIT and self.status_of(state) == ABSENT:
                self.set_status(state, ACTIVE)


class Book(BookWriter):
    """The durable state. It changes only by `apply`, and by `replay` before the core serves."""

    def __init__(self) -> None:
        self.position = 0
        self.states = Accounts()
        self.memory = {}
        self.floor = 0  # Keys below it are retired. It never decreases.
        # Floors by store, from an earlier format. The lowest one applies.
        self.old_floors: dict[str, int] = {}
        self.binding = Binding()  # Empty until the first store connects.
        self.assets: frozenset[int] = frozenset()

    @property
    def accounts(self) -> dict[bytes, int]:
        """The number of each account. Like balances, statuses and totals, it is a copy."""
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
        entry = self.memory.get(key)
        return self.entry_in(entry, key) if isinstance(entry, MoveRun) else entry

    def state(self, account: bytes) -> AccountState | None:
        return self.states.find(account)

    def are_new(self, keys: Sequence[bytes]) -> bool:
        """Whether no operation is remembered under any of these keys."""
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
            # Rebuilt, because a dict does not shrink when items are deleted.
            self.memory = {k: v for k, v in self.memory.items() if k >= lowest}

    def replay(self, records: bytes) -> None:
        """Take in operations from the log. They are not judged; each balance must be consistent.

        The totals are computed once, after the whole log is read.
        """
        moves = read_records(records)
        states = self.states.open_all(moves.groups, moves.owners)
        first = last = 0  # The range of plain moves that are not yet remembered.
        for verb, state, amount, after in zip(
            moves.verbs, states, moves.amounts, moves.balances, strict=True
        ):
            # The same as `write_operation` for a plain move, but inline: a call is slower.
            if verb == CREDIT and amount and state.balance + amount == after:
                state.balance = after
                if state.status == ABSENT:
                    state.status = ACTIVE
            elif verb == DEBIT and amount and state.balance - amount == after:
                state.balance = after
            elif not moves.refusals or not moves.refusals[last] or state.balance != after:
                self._remember_moves(moves, states, first, last)
                self._replay_record(RECORD.unpack_from(records, last * RECORD.size))
                first = last + 1
            last += 1
        self._remember_moves(moves, states, first, last)

    def _remember_moves(
        self, moves: MoveColumns, states: Sequence[AccountState], first: int, last: int
    ) -> None:
        outcomes = moves.refusals[first:last]
        outcomes = outcomes.translate(ZERO_TO_DONE) if any(outcomes) else b""
        remember(self.memory, self.position, moves.part(first, last), states[first:last], outcomes)
        self.position += last - first

    def _replay_record(self, row: tuple[Any, ...]) -> None:
        """Take in a record of any kind of operation."""
        key, verb, _, undoes, account, raw_amount, outcome, change, after = row
        delta, balance = int.from_bytes(change, signed=True), int.from_bytes(after)
        if self.balance(account) + delta != balance:
            raise balance_mismatch(self.position + 1)
        operation = verb, undoes, account, int.from_bytes(raw_amount)
        self.write_operation(key, operation, outcome, delta, balance)

    def recount(self) -> None:
        """Compute the totals from the balances."""
        for name, total in group_totals(self):
            self.states.groups[name].total.total = total

    def answer(self, key: bytes) -> tuple[int, int]:
        """The answer stored under a key: outcome and position."""
        if key < key_of(self.floor):
            return CoreOutcome.RETIRED, 0
        entry = self.find(key)
        return (CoreOutcome.NOTHING, 0) if entry is None else answer_of(entry)


class BookDraft(BookWriter):
    """The changes of a batch that is not yet durable. Each operation sees those before it."""

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
        entry = self.memory.get(key)
        if entry is None:
            return self.book.find(key)
        return self.entry_in(entry, key) if isinstance(entry, MoveRun) else entry

    def state(self, account: bytes) -> AccountState | None:
        state = self.book.states.find(account)
        return self.opened.get(account) if state is None else state

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

    def write_status(self, account: bytes, status: int) -> None:
        state = self.open(account)
        self.position += 1
        self.statuses[state] = status

    def write_floor(self, floor: int) -> None:
        """Raise the floor: the store will not ask about ids below it again."""
        self.position += 1
        self.floor = max(self.floor, floor << VERSION_BITS)

    def write_old_floor(self, store: str, floor: int) -> None:
        """A floor of one of several stores, as an earlier version recorded it."""
        self.book.old_floors[store] = floor
        self.write_floor(min(self.book.old_floors.values()))

    def write_binding(self, binding: Binding) -> None:
        self.position += 1
        self.binding = binding

    def write_assets(self, assets: Iterable[int]) -> None:
        self.position += 1
        self.assets = self.assets.union(assets)


def key_of(number: int) -> bytes:
    """A number as a key. Keys are compared as bytes."""
    return number.to_bytes(KEY.size)


def undone_by(key: bytes, undoes: int) -> bytes:
    """The key of the operation that an undo reverses: another version of the same transfer."""
    return KEY.pack(key[: -VERSION_BITS // 8], undoes)


def balance_mismatch(position: int) -> LogInconsistent:
    return LogInconsistent(f"record {position} does not fit the balance before it")


def undoes_something(outcome: int) -> bool:
    return outcome in (DONE, TOMBSTONE)


def group_totals(book: Book) -> Iterator[tuple[bytes, int]]:
    """The totals computed from the balances. The running totals must equal them."""
    sums: dict[bytes, int] = {}
    for state in book.states:
        group = state.group.name
        sums[group] = sums.get(group, 0) + state.balance
    return iter(sums.items())
