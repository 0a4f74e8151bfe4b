"""What the engine needs from the world: stores that hold transfers, systems that hold money."""

from collections.abc import Awaitable, Callable, Container, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable
from uuid import UUID

from tidegate.core.answers import Answer
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.core.transfer import Move, Question, Transfer


class Account(NamedTuple):
    """One balance: the order of these is the order in which they are locked."""

    owner: int
    book: str
    asset_id: int


class Known(NamedTuple):
    """What a store knows of a (owner, cid)."""

    fingerprint: bytes
    transfer: Transfer


class Birth(NamedTuple):
    """A transfer to be inserted, under the caller's key."""

    move: Move
    cid: str
    fingerprint: bytes
    lives_s: float | None = None


class StoreFault(Exception):
    """The store could not do it. What was asked may or may not have happened."""

    retryable = False


class StoreUnavailable(StoreFault):
    """Try the same thing again: a deadlock, a timeout, a lost connection, a lost COMMIT."""

    retryable = True


class CidTaken(StoreFault):
    """Another session inserted one of these cids first: roll back and look again."""


class Begun(NamedTuple):
    """What a transaction knows from its beginning: the time, and whether the brake was on."""

    at_us: int
    halted: bool


class Transaction(Protocol):
    """One open transaction. Its clock stands still; nothing in it is seen until it commits."""

    async def begun(self) -> Begun: ...


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


Behind: TypeAlias = Callable[[], Awaitable[None]]


async def nothing() -> None:
    """Nothing is to be done behind a lock."""


class Store(Protocol[Tx]):
    """The engine's tables. Everything takes a batch; a single transfer is a batch of one."""

    @property
    def lease_s(self) -> float: ...

    def transaction(self) -> AbstractAsyncContextManager[Tx]:
        """Commit at the end of the block, roll back if it raises."""

    async def claim(self, lane: str, limit: int) -> Sequence[Transfer]:
        """Lease what is due in a lane, count the attempt, and commit. Nothing while halted."""

    async def lock(
        self, tx: Tx, transfers: Sequence[Transfer], behind: Behind = nothing
    ) -> Sequence[Transfer]:
        """Lock the rows, in id order; return those still at the version that was asked about.

        What is done behind the lock happens in any case, before anybody knows which those are.
        """

    async def record(
        self, tx: Tx, moves: Sequence[Move], leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        """Apply moves of locked rows, with their history. All of them, or a StoreFault.

        Of each it is said whether it is leased to the caller, who will ask about it next.
        """

    async def insert(
        self, tx: Tx, births: Sequence[Birth], leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        """Insert newborn transfers with their history; CidTaken if one of the keys exists."""

    async def look(
        self, keys: Sequence[tuple[int, str]]
    ) -> tuple[int, bool, Sequence[Known | None]]:
        """The store's time in µs, whether it is halted, and what it knows under each key."""

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        """The transfers with these ids, as they stand; unknown ids are left out."""

    async def ended(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        """Those of them that have ended."""

    async def release(self, transfers: Sequence[Transfer]) -> None:
        """Make leased rows due now, if they are still at their version."""

    async def halted(self) -> bool: ...

    async def halt(self, reason: str, actor: str) -> None: ...

    async def resume(self, reason: str, actor: str) -> None: ...


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


@runtime_checkable
class Witness(Protocol[Tx_contra]):
    """A system that keeps a record of its own of the transfers in which it plays a role.

    It is told of every move of them in the transaction that records it, so that the two records
    never differ.
    """

    async def witness(self, tx: Tx_contra, moves: Sequence[Move], *, born: bool) -> None: ...


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
