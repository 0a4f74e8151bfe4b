"""Engines on PostgreSQL or in memory, with an outside venue whose answers a test can replace."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

from tests.conftest import SCHEMA
from tests.engine.venue import Venue
from tests.moves import steps_of
from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.flow import Flow
from tidegate.core.kind import Party, Transfer
from tidegate.core.moves import Moves
from tidegate.core.ports import LocalSystem, Store, StoreFault
from tidegate.core.request import Request
from tidegate.core.transfer import Question
from tidegate.engine.alerts import Alert
from tidegate.engine.engine import Engine, EngineParts
from tidegate.engine.pending_request import Receipt
from tidegate.engine.ring import RING_SIZE
from tidegate.flows import FLOWS
from tidegate.store.flow_checks import checksum
from tidegate.store.memory_store import MemoryStore
from tidegate.store.memory_tables import MemoryTables
from tidegate.store.memory_transaction import TwinTransaction
from tidegate.store.migrate import migrate
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, Ledger, LedgerStatus, MemoryLedger
from tidegate.systems.ledger.judge import LedgerBalance

ASSET, OWNER, SPOT = 3, 7, "SPOT"
WAIT_S = 20.0
_seeds = itertools.count(1_000)
LEASE_S = 1.0

Execute: TypeAlias = Callable[[], list[Answer]]
Twist: TypeAlias = Callable[[Sequence[Question], Execute], Awaitable[Sequence[Answer]]]


class Outside:
    """The venue as an outside system. A test sets `twist` to replace or delay its answers."""

    name = "venue"

    def __init__(self, venue: Venue, *, reversible: bool = True) -> None:
        self.venue = venue
        self.reversible = reversible
        self.twist: Twist | None = None
        self.calls: list[Sequence[Question]] = []

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        self.calls.append(questions)
        if self.twist is None:
            await asyncio.sleep(0)
            return self.venue.execute(questions)
        return await self.twist(questions, lambda: self.venue.execute(questions))


class Refusing(MemoryStore):
    """The in-memory store, which refuses to record the answers of one transfer."""

    refused: UUID | None = None

    async def write(
        self, tx: TwinTransaction, moves: Moves, leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        if any(
            step.entry_forms and transfer.id == self.refused
            for transfer, step in zip(moves.transfers, steps_of(moves), strict=True)
        ):
            raise StoreFault("23514: a check of the history is violated")
        return await super().write(tx, moves, leased)


@dataclass
class Rig:
    """One store and one venue, on which a test starts engines."""

    store: Store[Any]
    ledger: LocalSystem[Any]
    outside: Outside
    alerts: list[Alert] = field(default_factory=list)
    flows: Mapping[str, Flow] = field(default_factory=lambda: dict(FLOWS))

    def parts(self, seed: int = 1, ring_size: int = RING_SIZE) -> EngineParts[Any]:
        return EngineParts(
            store=self.store,
            flows=self.flows,
            outside=[self.outside],
            local=[self.ledger],
            clock=time.monotonic,
            dice=random.Random(seed),
            alert=self.alerts.append,
            scan_s=0.05,
            ring_size=ring_size,
            worker=f"engine {seed}",
        )

    def engine(self, seed: int = 1, ring_size: int = RING_SIZE) -> Engine[Any]:
        return Engine(self.parts(seed, ring_size))

    def install(self, database: str, flow: Flow) -> None:
        """Install a flow in the store. Engines that are made later know it."""
        if isinstance(self.store, MemoryStore):
            self.store.tables.flows[flow.name] = checksum(flow)
        else:
            migrate(database, SCHEMA, [flow])
        self.flows = {**self.flows, flow.name: flow}

    def raise_on_thirteen(self) -> None:
        """Make the ledger raise when a batch asks about an amount of 13."""
        ask = self.ledger.ask

        async def raising(tx: object, questions: Sequence[Question]) -> Sequence[Answer]:
            if any(question.amount == 13 for question in questions):
                raise KeyError("thirteen")
            return await ask(tx, questions)

        self.ledger.ask = raising  # type: ignore[method-assign]

    async def endow(self, amount: int, owner: int = OWNER) -> None:
        """Deposit an amount to FUNDING, and set the same balance in the venue."""
        assert (await self.deposit(amount, owner)).state == "COMPLETED"
        self.venue_account(owner, LedgerBalance(amount, 0, LedgerStatus.ACTIVE))

    async def deposit(self, amount: int, owner: int = OWNER) -> Transfer:
        parties = {
            "source": Party("ledger", OUTSIDE, owner),
            "target": Party("ledger", FUNDING, owner),
            "suspense": Party("ledger", SUSPENSE, owner),
        }
        # A seed of its own: two engines with the same seed create equal ids in one millisecond.
        async with self.engine(next(_seeds)) as engine:
            receipt = await engine.transfer(Request(owner, "deposit", parties, ASSET, amount))
        assert isinstance(receipt, Receipt)
        return receipt.transfer

    def venue_account(self, owner: int, balance: LedgerBalance | None = None) -> LedgerBalance:
        account = Account(owner, SPOT, ASSET)
        if balance is not None:
            self.outside.venue.accounts[account] = balance
        return self.outside.venue.accounts[account]

    async def funding(self, owner: int = OWNER) -> int:
        return (await self.books(owner))[FUNDING].available

    async def books(self, owner: int = OWNER) -> dict[str, LedgerBalance]:
        if isinstance(self.store, PostgresStore):
            balances = await Ledger().balances(self.store, owner)
            return {account.book: balance for account, balance in balances.items()}
        rows = self.store.tables.rows["ledger_accounts"]  # type: ignore[attr-defined]
        return {a.book: balance for a, balance in rows.items() if a.owner == owner}

    async def set_status(
        self, status: LedgerStatus, owner: int = OWNER, book: str = FUNDING
    ) -> None:
        account = Account(owner, book, ASSET)
        if book == SPOT:
            self.venue_account(owner, self.venue_account(owner)._replace(status=status))
        elif isinstance(self.store, PostgresStore):
            assert await Ledger().set_status(self.store, account, status)
        else:
            rows = self.store.tables.rows["ledger_accounts"]  # type: ignore[attr-defined]
            rows[account] = rows[account]._replace(status=status)

    async def ended(self, transfers: Sequence[Transfer]) -> list[Transfer]:
        """Wait until all transfers have ended, for WAIT_S at most."""
        until_s = time.monotonic() + WAIT_S
        while time.monotonic() < until_s:
            found = await self.store.find([t.id for t in transfers])
            # A transfer may be accepted before its COMMIT is visible: then it is not found yet.
            if len(found) == len(transfers) and all(t.lane is None for t in found):
                return list(found)
            await asyncio.sleep(0.02)
        raise AssertionError(f"{len(found)}, not ended: {[t for t in found if t.lane][:3]}")


def request(direction: str, amount: int, cid: str | None = None, owner: int = OWNER) -> Request:
    """`in`: FUNDING → SPOT, `out`: SPOT → FUNDING."""
    funding, spot = Party("ledger", FUNDING, owner), Party("venue", SPOT, owner)
    source, target = (funding, spot) if direction == "in" else (spot, funding)
    parties = {"source": source, "target": target}
    return Request(owner, "internal_transfer", parties, ASSET, amount, cid)


async def made(engine: Engine[Any], wanted: Request) -> Transfer:
    """Submit a request and return its transfer."""
    result = await engine.submit(wanted)
    assert isinstance(result, Receipt), result
    return result.transfer


@asynccontextmanager
async def rigged(kind: str, database: str) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        if kind == "twin":
            store = Refusing(time.time, MemoryTables(), lease_s=LEASE_S)
            yield Rig(store, MemoryLedger(), Outside(Venue()))
        else:
            limits = StoreLimits(lease_s=LEASE_S, lock_s=2.0, pool_wait_s=5.0)
            postgres = await stack.enter_async_context(PostgresStore(database, SCHEMA, limits))
            yield Rig(postgres, Ledger(), Outside(Venue()))


Scene: TypeAlias = Callable[[Rig], Awaitable[None]]
Play: TypeAlias = Callable[[Scene], None]


def player(kind: str, database: str) -> Play:
    """Return a function that runs a scene on a new rig."""

    async def run(scene: Scene) -> None:
        async with rigged(kind, database) as rig:
            await rig.endow(1_000)
            await scene(rig)

    return lambda scene: asyncio.run(run(scene))
