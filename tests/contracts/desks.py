"""Every account system behind one counter, so that one suite can be put to all of them."""

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from msgspec.structs import replace

from tests.conftest import SCHEMA
from tests.systems.http import account_service as remote
from tidegate.core import wire
from tidegate.core.answers import Answer, Done
from tidegate.core.flow import Verb
from tidegate.core.ports import Account
from tidegate.core.transfer import Party, Question
from tidegate.store.memory import MemoryStore
from tidegate.store.postgres import PostgresStore
from tidegate.systems.http import HttpAccounts, HttpSettings
from tidegate.systems.ledger import Ledger, MemoryLedger, Status
from tidegate.systems.ledger.judge import account_of
from tidegate.systems.ledger.memory import ACCOUNTS, OPERATIONS
from tidegate.systems.trading import Caller, Trading, dial
from tidegate.trading_core.core import Core
from tidegate.trading_core.disk import RealDisk
from tidegate.trading_core.pipe import connect_to

ASSET, OWNER = 3, 7
_numbers = itertools.count(1)


class Place(NamedTuple):
    """What a desk may be set up with."""

    database: str
    directory: Path


class Desk(Protocol):
    book: str

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]: ...

    async def query(self, question: Question) -> Answer | None: ...

    async def balance(self, owner: int) -> int: ...

    async def set_status(self, owner: int, status: str) -> None: ...


Opening: TypeAlias = Callable[[Place], AbstractAsyncContextManager[Desk]]


def question(desk: Desk, verb: Verb, amount: int, owner: int = OWNER) -> Question:
    """A new question about a new transfer."""
    party = Party("desk", desk.book, owner)
    return Question(UUID(int=next(_numbers) << 80), 0, verb, party, ASSET, amount)


async def fund(desk: Desk, amount: int, owner: int = OWNER) -> None:
    credit = replace(question(desk, Verb.CREDIT, amount, owner), opens=True)
    [answer] = await desk.ask([credit])
    assert isinstance(answer, Done)


class LedgerDesk:
    """The ledger on PostgreSQL, each ask a transaction of its own."""

    book = "FUNDING"

    def __init__(self, store: PostgresStore) -> None:
        self.store, self.ledger = store, Ledger()

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        async with self.store.transaction() as tx:
            await self.ledger.lock(tx, sorted({account_of(q) for q in questions}))
            return await self.ledger.ask(tx, questions)

    async def query(self, question: Question) -> Answer | None:
        return (await self.ledger.query(self.store, [question]))[0]

    async def balance(self, owner: int) -> int:
        balances = await self.ledger.balances(self.store, owner)
        return balances[Account(owner, self.book, ASSET)].available

    async def set_status(self, owner: int, status: str) -> None:
        account = Account(owner, self.book, ASSET)
        assert await self.ledger.set_status(self.store, account, Status(status))


class MemoryDesk:
    """The ledger's twin."""

    book = "FUNDING"

    def __init__(self) -> None:
        self.store, self.ledger = MemoryStore(time.monotonic), MemoryLedger()

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        async with self.store.transaction() as tx:
            await self.ledger.lock(tx, sorted({account_of(q) for q in questions}))
            return await self.ledger.ask(tx, questions)

    async def query(self, question: Question) -> Answer | None:
        return self.ledger.query(self.store.tables.rows[OPERATIONS], question)

    async def balance(self, owner: int) -> int:
        row = self.store.tables.rows[ACCOUNTS][Account(owner, self.book, ASSET)]
        return int(row.available)

    async def set_status(self, owner: int, status: str) -> None:
        rows, account = self.store.tables.rows[ACCOUNTS], Account(owner, self.book, ASSET)
        rows[account] = rows[account]._replace(status=Status(status))


class CoreDesk:
    """The trading core through its client."""

    book = "SPOT"

    def __init__(self, client: Trading) -> None:
        self.client = client

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        return await self.client.ask(questions)

    async def query(self, question: Question) -> Answer | None:
        return (await self.client.query([(question.transfer_id, question.version)]))[0]

    async def balance(self, owner: int) -> int:
        return (await self.client.balance(owner, self.book, ASSET)).amount

    async def set_status(self, owner: int, status: str) -> None:
        await self.client.set_status(owner, self.book, ASSET, wire.Status[status])


class HttpDesk:
    """A remote account service over real sockets, certified as sticky."""

    book = "FUNDING"

    def __init__(self, service: remote.AccountService, accounts: HttpAccounts) -> None:
        self.service, self.accounts = service, accounts

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        return await self.accounts.ask(questions)

    async def query(self, question: Question) -> Answer | None:
        return await self.accounts.query(question)

    async def balance(self, owner: int) -> int:
        return self.service.bank.balances[remote.Account(owner, self.book, str(ASSET))]

    async def set_status(self, owner: int, status: str) -> None:
        account, frozen = remote.Account(owner, self.book, str(ASSET)), self.service.bank.frozen
        (frozen.discard if status == "ACTIVE" else frozen.add)(account)


@asynccontextmanager
async def ledger(place: Place) -> AsyncIterator[Desk]:
    async with PostgresStore(place.database, SCHEMA) as store:
        yield LedgerDesk(store)


@asynccontextmanager
async def ledger_twin(_: Place) -> AsyncIterator[Desk]:
    yield MemoryDesk()


def _client(connect: Callable[[], object]) -> Trading:
    async def nothing_known() -> None:
        return None

    return Trading("core", connect, Caller("store", "test"), nothing_known)  # type: ignore[arg-type]


@asynccontextmanager
async def core_in_memory(place: Place) -> AsyncIterator[Desk]:
    """The core's own code in this process, without sockets: as a simulator runs it."""
    core = await Core.open(RealDisk(place.directory), bytes(range(16)))
    running = asyncio.ensure_future(core.run())
    client = _client(connect_to(core))
    yield CoreDesk(client)
    await client.close()
    core.stop()
    await running


@asynccontextmanager
async def core_process(place: Place) -> AsyncIterator[Desk]:
    """The real process over a Unix socket."""
    address = f"unix:{place.directory / 'core.socket'}"
    command = [sys.executable, "-m", "tidegate.trading_core", "--listen", address]
    command += ["--data", str(place.directory)]
    child = subprocess.Popen(  # noqa: ASYNC220  It must be there before anything else runs.
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith(b"trading core ready")
        client = _client(dial(address))
        yield CoreDesk(client)
        await client.close()
    finally:
        child.terminate()
        child.communicate()


@asynccontextmanager
async def http(_: Place) -> AsyncIterator[Desk]:
    async with remote.account_service(sticky=True) as service:
        settings = HttpSettings(name="remote", base_url=service.url, certified_sticky=True)
        async with HttpAccounts(settings) as accounts:
            yield HttpDesk(service, accounts)


DESKS: dict[str, Opening] = {
    "ledger": ledger,
    "ledger twin": ledger_twin,
    "core in memory": core_in_memory,
    "core process": core_process,
    "http": http,
}
