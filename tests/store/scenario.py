"""An engine on real PostgreSQL, and an outside system whose answers the test chooses."""

import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from msgspec.structs import replace
from psycopg import sql

from tests.conftest import SCHEMA
from tidegate.core.answers import Answer, Done, Rejected, Unknown
from tidegate.core.kind import Party, Transfer
from tidegate.core.request import Request
from tidegate.core.transfer import Question
from tidegate.engine.alerts import Alert
from tidegate.engine.engine import Engine, EngineParts
from tidegate.engine.pending_request import Receipt
from tidegate.flows import FLOWS
from tidegate.store.pipeline import Pipeline
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.store.transaction import PostgresTransaction
from tidegate.systems.guild import POINT, Allowance, Checks, book_of, payment
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, Ledger

USDT, ETH = 3, 2
WAIT_S = 20.0
BOUNDS = StoreLimits(pool_wait_s=5.0)

Judge = Callable[[Question], Answer]


def agreeing(_: Question) -> Answer:
    return Done()


def refusing(_: Question) -> Answer:
    return Rejected("ACCOUNT_FROZEN")


def silent(_: Question) -> Answer:
    return Unknown("timeout")


class Remote:
    """An outside system with sticky answers: the first final answer under a key is kept."""

    name = "remote"
    reversible = True

    def __init__(self, judge: Judge = agreeing) -> None:
        self.judge = judge
        self.answers: dict[tuple[UUID, int], Answer] = {}
        self.asked: list[Question] = []

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        self.asked += questions
        return [self._answer(question) for question in questions]

    def _answer(self, question: Question) -> Answer:
        key = (question.transfer_id, question.version)
        answer = self.answers.get(key) or self.judge(question)
        if not isinstance(answer, Unknown):
            self.answers[key] = answer
        return answer


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The database, the outside system and the options of an engine."""

    database: str
    remote: Remote = field(default_factory=Remote)
    schema: str = SCHEMA
    bounds: StoreLimits = BOUNDS
    scan_s: float = 0.05
    pipe: type[Pipeline] = Pipeline
    alerts: list[Alert] = field(default_factory=list)
    store: type[PostgresStore] = PostgresStore


@asynccontextmanager
async def running(setup: EngineSetup) -> AsyncIterator[Engine[PostgresTransaction]]:
    store = setup.store(setup.database, setup.schema, setup.bounds)
    store.pipe = setup.pipe
    async with store:
        await store.verify(FLOWS.values())
        parts = EngineParts(
            store=store,
            flows=FLOWS,
            outside=[setup.remote],
            local=[Ledger(), Allowance(), Checks()],
            clock=time.monotonic,
            dice=random.Random(7),
            alert=setup.alerts.append,
            scan_s=setup.scan_s,
        )
        async with Engine(parts) as engine:
            yield engine


def deposit(owner: int, amount: int, cid: str | None = None, asset_id: int = USDT) -> Request:
    parties = {
        "source": Party("ledger", OUTSIDE, owner),
        "target": Party("ledger", FUNDING, owner),
        "suspense": Party("ledger", SUSPENSE, owner),
    }
    return Request(owner, "deposit", parties, asset_id, amount, cid)


def internal(owner: int, source: Party, target: Party, amount: int) -> Request:
    parties = {"source": source, "target": target}
    return Request(owner, "internal_transfer", parties, USDT, amount)


def issue(guild: int, member: int, amount: int) -> Request:
    target = Party("ledger", book_of(member), guild)
    return replace(
        deposit(guild, amount, asset_id=POINT),
        parties={**deposit(guild, amount).parties, "target": target},
    )


def pool_payment(guild: int, payer: int, payee: int, amount: int) -> Request:
    """From one member of a guild to another, through the pool."""
    parties = payment(guild, payer, payee)
    return Request(guild, "pool_transfer", parties, POINT, amount, lives_s=3600.0)


def to_savings(owner: int, amount: int) -> Request:
    """Between two books of the ledger: both answers are in the same transaction."""
    source, target = Party("ledger", FUNDING, owner), Party("ledger", "SAVINGS", owner)
    return internal(owner, source, target, amount)


def to_remote(owner: int, amount: int) -> Request:
    source, target = Party("ledger", FUNDING, owner), Party("remote", "SPOT", owner)
    return internal(owner, source, target, amount)


def from_remote(owner: int, amount: int) -> Request:
    source, target = Party("remote", "SPOT", owner), Party("ledger", FUNDING, owner)
    return internal(owner, source, target, amount)


async def run_to_end(engine: Engine[PostgresTransaction], request: Request) -> Transfer:
    """Request a transfer, and return it when it has ended."""
    receipt = await engine.transfer(request, WAIT_S)
    assert isinstance(receipt, Receipt), receipt
    assert receipt.transfer.lane is None, receipt
    return receipt.transfer


async def submitted(engine: Engine[PostgresTransaction], request: Request) -> Transfer:
    """Request a transfer, and return it as it was created."""
    receipt = await engine.submit(request)
    assert isinstance(receipt, Receipt), receipt
    return receipt.transfer


@contextmanager
def superuser(database: str, schema: str = SCHEMA) -> Iterator[psycopg.Connection]:
    """A session with all permissions, in the schema of a store."""
    with psycopg.connect(database, autocommit=True) as connection:
        path = sql.SQL("SET search_path TO {}, tidegate, economy").format(sql.Identifier(schema))
        connection.execute(path)
        yield connection


def rows(database: str, statement: str, *values: object, schema: str = SCHEMA) -> list[Any]:
    with superuser(database, schema) as connection:
        return connection.execute(statement, values or None).fetchall()


def balances(database: str, owner: int, schema: str = SCHEMA) -> dict[str, int]:
    """The available amount in each book of an owner, in the smallest unit of its one asset."""
    found = rows(
        database,
        "SELECT book, available::text FROM ledger_accounts WHERE owner = %s",
        owner,
        schema=schema,
    )
    return {book: int(available) for book, available in found}
