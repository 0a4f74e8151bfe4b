"""What the engine needs from the world: stores that hold transfers, systems that hold money."""

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
    """What a store knows of a key. Without a transfer, the key was reserved by the inbox."""

    fingerprint: bytes
    id: UUID
    transfer: Transfer | None
    refusal: str | None = None  # Why the inbox's request was refused.


class KeyLookup(NamedTuple):
    """The time for new ids in µs, and what the store knows under each key that was asked for."""

    at_us: int
    known: Sequence[KnownRequest | None]


class InboxRequest(NamedTuple):
    """A request that a program has put into the inbox. Nobody names parties there."""

    id: UUID  # Of the transfer that it becomes.
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
    """A caller's key, what it stands for, and the transfer that it becomes."""

    owner: int
    text: str
    fingerprint: bytes
    transfer_id: UUID


class Outage(NamedTuple):
    """A lane whose system is unreachable now, as told by the process that has tried most often."""

    lane: str
    since_us: int
    attempts: int
    probed_us: Sequence[int]  # When the newest attempts were made.
    reason: str

    def probes_since(self, at_us: int) -> int:
        """How many attempts count for a transfer whose last answer is of this time."""
        if at_us <= self.since_us:
            return self.attempts
        return sum(probed_us > at_us for probed_us in self.probed_us)


MAX_HALTS = 100  # Shown at once.


class Halt(NamedTuple):
    """Who has stopped all money, and why. It moves again when no halt is in force."""

    id: int
    reason: str
    actor: str
    at_us: int


class StoreFault(Exception):
    """The store could not do it. What was asked may or may not have happened."""

    retryable = False


class StoreUnavailable(StoreFault):
    """Try the same thing again: a deadlock, a timeout, a lost connection, a lost COMMIT."""

    retryable = True

    def __init__(self, message: str, *, silent: bool = False) -> None:
        super().__init__(message)
        self.silent = silent  # There was no reply: it may have happened, or may happen yet.


class NoSession(StoreUnavailable):
    """No session with the database could be had in time. Nothing was sent."""


class NotWritable(StoreUnavailable):
    """The database takes no writes: its disk is full, or it is read-only. Nothing has happened."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class LockTimeout(StoreUnavailable):
    """Another session held a lock for too long. Nothing has happened."""


class CommitUnknown(StoreUnavailable):
    """The reply to COMMIT was lost: it may have happened, or may happen yet."""

    def __init__(self, message: str, xid: str | None) -> None:
        super().__init__(message, silent=True)
        self.xid = xid


class KeyTaken(StoreFault):
    """Another session reserved one of these keys first: roll back and look again."""


class BelowFloor(StoreFault):
    """An id is below the floor: systems may have forgotten it. Nothing was written."""


BRIEF_S = 0.2  # For a lock that somebody is known to hold.


class TransactionStart(NamedTuple):
    """What a transaction knows from its beginning: the time, a halt, and the floor of ids."""

    at_us: int
    halted: bool
    floor: UUID = NO_FLOOR
    xid: str | None = None  # Its number, by which its fate can be asked for.


class Transaction(Protocol):
    """One open transaction. Its clock stands still; nothing in it is seen until it commits."""

    async def begun(self) -> TransactionStart: ...

    async def wait_briefly(self) -> None:
        """From now on, give up soon when another session holds a lock: it is known to."""


Tx = TypeVar("Tx", bound=Transaction)
Tx_contra = TypeVar("Tx_contra", bound=Transaction, contravariant=True)


class SqlTransaction(Transaction, Protocol):
    """What a system with tables in our database is given to answer in."""

    async def fetch(self, statement: str, values: Mapping[str, object]) -> list[Any]: ...

    async def post(self, statement: str, values: Mapping[str, object]) -> None:
        """A statement without rows to wait for: if it fails, so does the transaction."""


class MemoryTransaction(Transaction, Protocol):
    """What the twin of a local system is given to answer in: tables of rows by key."""

    @property
    def held(self) -> Container[tuple[str, Hashable]]:
        """The rows that are locked in it, and those that it inserted."""

    def get(self, table: str, key: Hashable) -> Any: ...

    def put(self, table: str, key: Hashable, row: object) -> None: ...

    async def lock(self, table: str, keys: Sequence[Hashable]) -> None:
        """Wait for each row in turn, and hold it until the transaction ends."""

    async def insert(self, table: str, key: Hashable, row: object) -> bool:
        """As a unique index does: wait for who inserts the same; False if the key is there."""

    async def pause(self) -> None:
        """Where a statement would go to the server: others may run meanwhile."""


FlowChecksums: TypeAlias = Mapping[
    str, str
]  # The checksum of each flow that a process runs, by name.
Behind: TypeAlias = Callable[[], Awaitable[None]]


async def nothing() -> None:
    """Nothing is to be done behind a lock."""


class Inbox(Protocol[Tx_contra]):
    """Requests of programs with access to the database. Each becomes a transfer, or is refused."""

    async def claim(self, flows: FlowChecksums, limit: int) -> Sequence[InboxRequest]:
        """Lease what waits for one of these flows, if the installed table of that flow is the
        caller's own. Nothing while halted.
        """

    async def take(
        self, tx: Tx_contra, ids: Sequence[UUID], behind: Behind = nothing
    ) -> Sequence[UUID]:
        """Lock requests, in order; return those that are not decided yet."""

    async def decide(self, tx: Tx_contra, outcomes: Mapping[UUID, str | None]) -> None:
        """Write what became of locked requests: None for one that was created, or a refusal."""

    async def postpone(self, ids: Sequence[UUID], reason: str, delay_s: float) -> None:
        """They could not be decided now: write why, and when they are due again."""

    async def forget(self, older_s: float, limit: int) -> int:
        """Delete requests that were decided long ago; return how many."""


class Store(Protocol[Tx]):
    """The engine's tables. Everything takes a batch; a single transfer is a batch of one."""

    @property
    def inbox(self) -> Inbox[Tx]: ...

    @property
    def lease_s(self) -> float: ...

    def transaction(self) -> AbstractAsyncContextManager[Tx]:
        """Commit at the end of the block, roll back if it raises."""

    async def due(self, lanes: Sequence[str], flows: FlowChecksums) -> Sequence[str]:
        """Those of the lanes in which a claim may find something now, by the same rules.

        Somebody may hold it. Rows that nobody holds are never passed over.
        """

    async def claim(self, lane: str, limit: int, flows: FlowChecksums) -> Sequence[Transfer]:
        """Lease what is due in a lane, count the attempt, and commit. Nothing while halted.

        Only rows of flows whose installed table is the caller's: others are left for a process
        that knows them.
        """

    async def lock(
        self, tx: Tx, transfers: Sequence[Transfer], behind: Behind = nothing
    ) -> Sequence[Transfer]:
        """Lock the rows, in id order; return those still at the version that was asked about: the
        same sequence, if nothing has changed. Others may have claimed a row since it was read, and
        had no answer: then it comes with their attempts and retries, so that a late answer does
        not take them back.

        What is done behind the lock happens in any case, before anybody knows which those are.
        """

    async def reserve(self, tx: Tx, keys: Sequence[RequestKey]) -> None:
        """Insert keys; KeyTaken, here or at a later statement, if one of them exists."""

    async def write(self, tx: Tx, moves: Moves, leased: Sequence[bool]) -> Sequence[Transfer]:
        """Create transfers and apply moves of locked rows, with their history. All or none.

        BelowFloor if a new id is below the floor that stood when the transaction began.
        Of each it is told whether it is leased to the caller, who will ask about it next.
        """

    async def aborted(self, xids: Sequence[str | None]) -> bool:
        """Whether every one of these transactions is known never to have happened."""

    async def look(self, keys: Sequence[tuple[int, str]]) -> KeyLookup:
        """What is known under each key, and the time for new ids.

        Ids of that time are above the store's floor, even if its clock is behind it.
        """

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        """The transfers with these ids, as they stand; unknown ids are left out."""

    async def ended(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        """Those of them that have ended."""

    async def release(self, transfers: Sequence[Transfer]) -> None:
        """Make leased rows due now, if they are still at their version."""

    async def note_outage(self, lane: str, worker: str, attempts: int, reason: str) -> None:
        """The system of a lane was unreachable for a process, so often in a row by now.

        One small row per lane and process: nothing is written about the transfers that wait.
        """

    async def end_outage(self, lane: str, worker: str) -> None:
        """The system has answered this process."""

    async def outages(self) -> Sequence[Outage]:
        """The lanes that are unreachable now. What nobody has noted for a while is over."""

    async def askable(
        self, transfers: Sequence[Transfer], flows: FlowChecksums
    ) -> Sequence[Transfer]:
        """Those of leased rows that may be asked about now, by the same rules as in a claim."""

    async def mend_clock(self, beyond_s: float | None, limit: int) -> tuple[float, int]:
        """By how many seconds the store's clock was set back since anybody looked; mostly 0.

        If it was, what is open and not due yet is due now, at most so many rows; it may be told
        to do that in any case for what is due after so many seconds. Also, how many rows it was.
        """

    async def halted(self) -> bool: ...

    async def halt(self, reason: str, actor: str) -> int:
        """Halt, besides whatever halt is in force; return the number of this one."""

    async def halts(self) -> Sequence[Halt]:
        """The halts in force, oldest first, at most MAX_HALTS."""

    async def resume(
        self, reason: str, actor: str, ids: Sequence[int] | None = None
    ) -> Sequence[Halt]:
        """End the halts named, or all in force; return those that were ended."""


class Floors(Protocol):
    """The floor of a store: every id below it is over, and may be forgotten."""

    async def lowest(self, horizon_s: float) -> UUID:
        """The oldest transfer that has not ended, or the horizon if that is older."""

    async def raise_to(self, floor: UUID) -> UUID:
        """Keep a floor durably, unless a higher one is kept; return the one that is."""


class System(Protocol):
    """A system outside. It is asked between two commits, and may be asked anything twice."""

    @property
    def name(self) -> str: ...

    @property
    def reversible(self) -> bool:
        """Whether it can undo a DEBIT or a HOLD of its own."""

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        """Answer each question, in order. A final answer under a key never changes.

        Raise Unreachable when there was no word at all; whatever else is raised is Unknown, too.
        """


@runtime_checkable
class Remembering(Protocol[Tx_contra]):
    """A system of which the store remembers something in the transaction that records answers."""

    async def remember(self, tx: Tx_contra) -> None: ...


class Listener(Protocol[Tx_contra]):
    """A system that keeps a record of its own of the transfers in which it plays a role.

    It is told of every move in the transaction that writes it, so that the two records never
    differ.
    """

    async def moved(self, tx: Tx_contra, moves: Sequence[Move]) -> None: ...

    async def refused(
        self, tx: Tx_contra, requests: Sequence[tuple[InboxRequest, Refusal]]
    ) -> None:
        """Requests of the inbox that did not become transfers, whoever they were for."""


class Admission(Protocol[Tx_contra]):
    """Who may be born: judged in the transaction of the birth. Replays do not get here."""

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
        """Lock every account that the batch may touch, in the order given, before any is read.

        What will be asked next may be looked up behind the lock, without a wait in between.
        """

    async def ask(self, tx: Tx_contra, questions: Sequence[Question]) -> Sequence[Answer]: ...
