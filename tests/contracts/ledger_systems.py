"""Benches of the ledger and of its in-memory twin."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.conftest import SCHEMA
from tests.contracts.bench_setup import ASSET, BenchSetup
from tests.contracts.fault_injection import DyingCaller, DyingSession
from tests.engine.proxy import Proxy, proxied
from tidegate.certify import LocalSystemAdapter
from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.ports import MemoryTransaction, SqlTransaction, StoreUnavailable, System
from tidegate.core.transfer import Question
from tidegate.store.memory_store import MemoryStore
from tidegate.store.postgres import PostgresStore
from tidegate.systems.ledger import Ledger, LedgerStatus, MemoryLedger
from tidegate.systems.ledger.memory import ACCOUNTS, OPERATIONS


class LedgerBench:
    """The ledger on PostgreSQL. Each ask runs in its own transaction."""

    book, asset_id, in_order = "FUNDING", ASSET, True

    def __init__(self, address: str, proxy: Proxy) -> None:
        self.address, self.proxy, self.ledger = address, proxy, Ledger()
        self.store = PostgresStore(address, SCHEMA)
        self.system: System = LocalSystemAdapter(self.store, self.ledger)

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        return await self.system.ask(questions)

    async def query(self, question: Question) -> Answer | None:
        return (await self.ledger.query(self.store, [question]))[0]

    async def balance(self, owner: int) -> int:
        balances = await self.ledger.balances(self.store, owner)
        return balances[Account(owner, self.book, ASSET)].available

    async def set_status(self, owner: int, status: str) -> None:
        account = Account(owner, self.book, ASSET)
        assert await self.ledger.set_status(self.store, account, LedgerStatus(status))

    async def freeze(self, owner: int) -> None:
        await self.set_status(owner, "FROZEN")

    async def disable(self, owner: int) -> None:
        await self.set_status(owner, "DISABLED")

    async def restart(self) -> None:
        await self.store.__aexit__()
        self.store = PostgresStore(self.address, SCHEMA)
        self.system = LocalSystemAdapter(self.store, self.ledger)
        await self.store.__aenter__()

    @asynccontextmanager
    async def killed_before(self) -> AsyncIterator[None]:
        """The server terminates the session just before the commit."""

        async def die(tx: SqlTransaction) -> None:
            await tx.fetch("SELECT pg_terminate_backend(pg_backend_pid())", {})

        self.system = LocalSystemAdapter(self.store, DyingSession(self.ledger, die))
        yield
        self.system = LocalSystemAdapter(self.store, self.ledger)

    @asynccontextmanager
    async def killed_after(self) -> AsyncIterator[None]:
        self.system = DyingCaller(self.system)
        yield
        await self.restart()

    @asynccontextmanager
    async def reply_lost(self) -> AsyncIterator[None]:
        """The proxy drops the reply to COMMIT."""
        before, self.proxy.swallow = self.proxy.swallowed, 1
        yield
        assert self.proxy.swallowed == before + 1


class MemoryLedgerBench:
    """The in-memory twin of the ledger."""

    book, asset_id, in_order = "FUNDING", ASSET, True

    def __init__(self) -> None:
        self.store, self.ledger = MemoryStore(time.monotonic), MemoryLedger()
        self.system: System = LocalSystemAdapter(self.store, self.ledger)

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        return await self.system.ask(questions)

    async def query(self, question: Question) -> Answer | None:
        return self.ledger.query(self.store.tables.rows[OPERATIONS], question)

    async def balance(self, owner: int) -> int:
        row = self.store.tables.rows[ACCOUNTS][Account(owner, self.book, ASSET)]
        return int(row.available)

    async def set_status(self, owner: int, status: str) -> None:
        rows, account = self.store.tables.rows[ACCOUNTS], Account(owner, self.book, ASSET)
        rows[account] = rows[account]._replace(status=LedgerStatus(status))

    async def freeze(self, owner: int) -> None:
        await self.set_status(owner, "FROZEN")

    async def disable(self, owner: int) -> None:
        await self.set_status(owner, "DISABLED")

    async def restart(self) -> None:
        self.store = MemoryStore(time.monotonic, self.store.tables)
        self.system = LocalSystemAdapter(self.store, self.ledger)

    @asynccontextmanager
    async def killed_before(self) -> AsyncIterator[None]:
        async def die(tx: MemoryTransaction) -> None:
            raise StoreUnavailable("the session was ended")

        self.system = LocalSystemAdapter(self.store, DyingSession(self.ledger, die))
        yield
        await self.restart()

    @asynccontextmanager
    async def killed_after(self) -> AsyncIterator[None]:
        self.system = DyingCaller(self.system)
        yield
        await self.restart()


@asynccontextmanager
async def ledger(setup: BenchSetup) -> AsyncIterator[LedgerBench]:
    async with proxied(setup.database, setup.directory) as (address, proxy):
        bench = LedgerBench(address, proxy)
        await bench.store.__aenter__()
        try:
            yield bench
        finally:
            await bench.store.__aexit__()


@asynccontextmanager
async def ledger_twin(_: BenchSetup) -> AsyncIterator[MemoryLedgerBench]:
    yield MemoryLedgerBench()
