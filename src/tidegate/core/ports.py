"""The interfaces that the engine needs: stores with transfers, and systems with money."""

from collections.abc import Awaitable, Callable, Container, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable
from uuid import UUID

import msgspec

from tidegate.core.account import Account as Account  # noqa: PLC0414  Re-exported.
from tidegate.core.answers import Answer
from tidegate.core.ids import NO_FLOOR
from tidegate.core.kind import Transfer
from tidegate.core.moves import Moves
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.core.transfer import Move, Question


class KnownRequest(NamedTuple):
    """The stored request of a key. Without a transfer, the inbox has reserved the key."""

    fingerprint: bytes
    id: UUID
    transfer: Transfer | None
    refusal: str | None = None  # Why the request of the inbox was refused.


class KeyLookup(NamedTuple):
    """The time for new ids in µs, and the stored request of each key that was looked up."""

    at_us: int
    known: Sequence[KnownRequest | None]


class InboxRequest(NamedTuple):
    """A request that a program has put into the inbox. It contains no parties."""

    id: UUID  # The id of the transfer that it becomes.
    owner: int
    flow: str
    asset_id: int
    amount: int
    terms: Mapping[str, str]
    space: str
    cid: str | None
    expires_us: int | None
    expired: bool
    attempts: int


class RequestKey(msgspec.Struct, frozen=True, gc=False):
    """A caller's key, the fingerprint of its request, and the id of its transfer."""

    owner: int
    text: str
    fingerprint: bytes
    transfer_id: UUID


class Outage(NamedTuple):
    """A lane whose system is unreachable, as reported by the process that has tried most often."""

    lane: str
    since_us: int
    attempts: int
    probed_us: Sequence[int]  # The times of the latest attempts.
    reason: str

    def probes_since(self, at_us: int) -> int:
        """How many attempts were made after this time: that of the last answer of a transfer."""
        if at_us <= self.since_us:
            return self.attempts
        return sum(probed_us > at_us for probed_us in self.probed_us)


MAX_HALTS = 100  # In one list of halts.


class Halt(NamedTuple):
    """An order that stops all money, by an actor for a reason. Money moves when no halt is left."""

    id: int
    reason: str
    actor: str
    at_us: int


class StoreFault(Exception):
    """The store could not execute a request. It may or may not have had an effect."""

    retryable = False


class StoreUnavailable(StoreFault):
    """A deadlock, a timeout, a lost connection or a lost COMMIT: try the same request again."""

    retryable = True

    def __init__(self, message: str, *, silent: bool = False) -> None:
        super().__init__(message)
        self.silent = silent  # There was no reply: it may have an effect, now or later.


class NoSession(StoreUnavailable):
    """No database session was free in time. Nothing was sent."""


class NotWritable(StoreUnavailable):
    """The database accepts no writes: its disk is full, or it is read-only. Nothing changed."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class LockTimeout(StoreUnavailable):
    """Another session held a lock for too long. Nothing changed."""


class CommitUnknown(StoreUnavailable):
    """The reply to COMMIT was lost: the transaction may be committed, now or later."""

    def __init__(self, message: str, xid: str | None) -> None:
        super().__init__(message, silent=True)
        self.xid = xid


class KeyTaken(StoreFault):
    """Another session has reserved one of these keys: roll back and look the keys up."""


class BelowFloor(StoreFault):
    """An id is below the floor, so systems may have forgotten it. Nothing was written."""


BRIEF_S = 0.2  # How long to wait for a lock that another session is known to hold.


class TransactionStart(NamedTuple):
    """What a transaction reads at its start: the time, whether money is halted, the floor."""

    at_us: int
    halted: bool
    floor: UUID = NO_FLOOR
    xid: str | None = None  # Its number, to ask later whether it was committed.


class Transaction(Protocol):
    """One open transaction. Its clock does not advance, and others see it after the commit."""

    async def begun(self) -> TransactionStart: ...

    async def wait_briefly(self) -> None:
        """From now on, wait only BRIEF_S for locks: another session is known to hold one."""


Tx = TypeVar("Tx", bound=Transaction)
Tx_contra = TypeVar("Tx_contra", bound=Transaction, contravariant=True)


class SqlTransaction(Transaction, Protocol):
    """The transaction in which a system with tables in our database answers."""

    async def fetch(self, statement: str, values: Mapping[str, object]) -> list[Any]: ...

    async def post(self, statement: str, values: Mapping[str, object]) -> None:
        """Send a statement without waiting for rows. If it fails, the transaction fails."""


class MemoryTransaction(Transaction, Protocol):
    """The transaction in which the twin of a local system answers: tables of rows by key."""

    @property
    def held(self) -> Container[tuple[str, Hashable]]:
        """The rows that this transaction has locked or inserted."""

    def get(self, table: str, key: Hashable) -> Any: ...

    def put(self, table: str, key: Hashable, row: object) -> None: ...

    async def lock(self, table: str, keys: Sequence[Hashable]) -> None:
        """Lock the rows in this order, and hold them until the transaction ends."""

    async def insert(self, table: str, key: Hashable, row: object) -> bool:
        """Insert as a unique index does: wait for rival inserts. Return False if the key exists."""

    async def pause(self) -> None:
        """Let other tasks run, as they do while a statement is sent to the server."""


FlowChecksums: TypeAlias = Mapping[str, str]  # Of each flow that a process runs, by its name.
# Runs when the lock statement has been sent, while its reply is still on its way.
AfterLock: TypeAlias = Callable[[], Awaitable[None]]


async def no_action() -> None:
    """The default: do nothing after the lock."""


class Inbox(Protocol[Tx_contra]):
    """Requests of programs with database access. Each becomes a transfer or is refused."""

    async def claim(self, flows: FlowChecksums, limit: int) -> Sequence[InboxRequest]:
        """Lease waiting requests of flows whose installed table is the caller's. None if halted."""

    async def take(
        self, tx: Tx_contra, ids: Sequence[UUID], after_lock: AfterLock = no_action
    ) -> Sequence[UUID]:
        """Lock the requests in this order. Return those that are not decided yet."""

    async def decide(self, tx: Tx_contra, outcomes: Mapping[UUID, str | None]) -> None:
        """Write the outcome of locked requests: None for a created transfer, or a refusal."""

    async def postpone(self, ids: Sequence[UUID], reason: str, delay_s: float) -> None:
        """Write why the requests could not be decided now, and make them due after the delay."""

    async def forget(self, older_s: float, limit: int) -> int:
        """Delete requests that were decided long ago. Return how many."""


class Store(Protocol[Tx]):
    """The engine's tables. Each method takes a batch. A single transfer is a batch of one."""

    @property
    def inbox(self) -> Inbox[Tx]: ...

    @property
    def lease_s(self) -> float: ...

    def transaction(self) -> AbstractAsyncContextManager[Tx]:
        """Commit at the end of the block; roll back if it raises."""

    async def due(self, lanes: Sequence[str], flows: FlowChecksums) -> Sequence[str]:
        """The lanes in which a claim may return rows now, by the rules of `claim`.

        Another process may hold the row. A row that no process holds is always reported.
        """

    async def claim(self, lane: str, limit: int, flows: FlowChecksums) -> Sequence[Transfer]:
        """Lease due rows of a lane, count the attempt, and commit. While halted, lease none.

        A flow counts only if its installed table is the caller's. Rows of other flows are left
        for a process that has them.
        """

    async def lock(
        self, tx: Tx, transfers: Sequence[Transfer], after_lock: AfterLock = no_action
    ) -> Sequence[Transfer]:
        """Lock the rows in id order. Return those still at their version: the given sequence, if
        all are. Another process may have claimed a row since it was read and had no answer: then
        the row has the attempts and retries of that process, so that a late answer keeps them.

        `after_lock` runs in any case, before it is known which rows are returned.
        """

    async def reserve(self, tx: Tx, keys: Sequence[RequestKey]) -> None:
        """Insert keys. If one exists, raise KeyTaken here or at a later statement."""

    async def write(self, tx: Tx, moves: Moves, leased: Sequence[bool]) -> Sequence[Transfer]:
        """Create transfers, or apply moves of locked rows, with their history. All or none.

        Raise BelowFloor if a new id is below the floor at the start of the transaction. `leased`
        marks the rows that stay leased to the caller, because it will ask about them next.
        """

    async def aborted(self, xids: Sequence[str | None]) -> bool:
        """Whether each of these transactions is known to be rolled back."""

    async def look(self, keys: Sequence[tuple[int, str]]) -> KeyLookup:
        """Look up keys, each an (owner, key), and return the time for new ids.

        Ids with this time are above the floor of the store, even if its clock is behind.
        """

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        """The transfers with these ids. Unknown ids are left out."""

    async def ended(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        """The transfers with these ids that have ended."""

    async def release(self, transfers: Sequence[Transfer]) -> None:
        """Make leased rows due now, unless their version has changed."""

    async def note_outage(self, lane: str, worker: str, attempts: int, reason: str) -> None:
        """Record that a process could not reach the system of a lane, so many times in a row.

        This writes one small row per lane and process, and none of the waiting transfers.
        """

    async def end_outage(self, lane: str, worker: str) -> None:
        """Record that the system has answered this process."""

    async def outages(self) -> Sequence[Outage]:
        """The lanes that are unreachable now. One that is not recorded for a while has ended."""

    async def askable(
        self, transfers: Sequence[Transfer], flows: FlowChecksums
    ) -> Sequence[Transfer]:
        """The leased rows that may be asked about now, by the rules of `claim`."""

    async def mend_clock(self, beyond_s: float | None, limit: int) -> tuple[float, int]:
        """Return by how many seconds the store's clock was set back since the last call, usually
        0, and how many rows were made due.

        If it was set back, open rows that are not due yet become due now: at most `limit` rows.
        With `beyond_s`, rows that are due later than that become due in any case.
        """

    async def halted(self) -> bool: ...

    async def halt(self, reason: str, actor: str) -> int:
        """Add a halt to those in force. Return its number."""

    async def halts(self) -> Sequence[Halt]:
        """The halts in force, oldest first, at most MAX_HALTS."""

    async def resume(
        self, reason: str, actor: str, ids: Sequence[int] | None = None
    ) -> Sequence[Halt]:
        """End the halts with these ids, or all in force. Return those that were ended."""


class Floors(Protocol):
    """The floor of a store: transfers with ids below it have ended, and may be forgotten."""

    async def lowest(self, horizon_s: float) -> UUID:
        """The oldest transfer that has not ended, or the horizon if that is older."""

    async def raise_to(self, floor: UUID) -> UUID:
        """Store a floor, unless a higher one is stored. Return the stored floor."""


class System(Protocol):
    """A system outside our database, asked between two commits. Questions may be repeated."""

    @property
    def name(self) -> str: ...

    @property
    def reversible(self) -> bool:
        """Whether the system can undo its own DEBIT and HOLD."""

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        """Answer each question, in order. A Done or Rejected for a key never changes.

        Raise Unreachable if the system did not reply at all. Other exceptions count as Unknown.
        """


@runtime_checkable
class Remembering(Protocol[Tx_contra]):
    """A system that stores its own state in the transaction that records its answers."""

    async def remember(self, tx: Tx_contra) -> None: ...


class Listener(Protocol[Tx_contra]):
    """A system with its own record of the transfers in which it has a role.

    It is called for every move, in the transaction that writes the move, so that the two records
    never differ.
    """

    async def moved(self, tx: Tx_contra, moves: Sequence[Move]) -> None: ...

    async def refused(
        self, tx: Tx_contra, requests: Sequence[tuple[InboxRequest, Refusal]]
    ) -> None:
        """Requests of the inbox that were refused, whatever their parties would have been."""


class Admission(Protocol[Tx_contra]):
    """Judges new transfers in the transaction that creates them. Replays are not judged."""

    async def admit(
        self, tx: Tx_contra, requests: Sequence[Request]
    ) -> Sequence[Refusal | None]: ...


class LocalSystem(Protocol[Tx_contra]):
    """A system in our own database. It answers inside the transaction that records the answer."""

    @property
    def name(self) -> str: ...

    @property
    def reversible(self) -> bool: ...

    async def lock(
        self, tx: Tx_contra, accounts: Sequence[Account], next_: Sequence[Question] = ()
    ) -> None:
        """Lock every account that the batch may touch, in this order, before any is read.

        The state for the `next_` questions may be read right after the lock, in one round trip.
        """

    async def ask(self, tx: Tx_contra, questions: Sequence[Question]) -> Sequence[Answer]: ...
