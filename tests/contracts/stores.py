"""The two stores of the store contract, and the operations that its tests use."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias
from uuid import UUID

from tests.conftest import SCHEMA
from tests.moves import moves_of
from tidegate.core.answers import Answer
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.flow import Flow
from tidegate.core.kind import Party, Transfer
from tidegate.core.ports import RequestKey, Store
from tidegate.core.request import Request, transfer_of
from tidegate.core.transfer import Move
from tidegate.flows import FLOWS
from tidegate.store.flow_checks import checksums
from tidegate.store.memory_store import MemoryStore
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits

FLOW = FLOWS["internal_transfer"]
OTHER = FLOWS["external_withdrawal"]
OURS = checksums([FLOW])
_numbers = itertools.count(1)

AnyStore: TypeAlias = Store[Any]
Scenario: TypeAlias = Callable[[AnyStore], Awaitable[None]]
RunScenario: TypeAlias = Callable[[Scenario], None]
OpenStore: TypeAlias = Callable[[str], AbstractAsyncContextManager[AnyStore]]


@asynccontextmanager
async def postgres(database: str) -> AsyncIterator[AnyStore]:
    async with PostgresStore(database, SCHEMA, StoreLimits(lease_s=0.3)) as store:
        yield store


@asynccontextmanager
async def twin(_: str) -> AsyncIterator[AnyStore]:
    yield MemoryStore(time.time, lease_s=0.3)


def scenario_runner(open_store: OpenStore, database: str) -> RunScenario:
    async def opened_and_run(scenario: Scenario) -> None:
        async with open_store(database) as store:
            await scenario(store)

    return lambda scenario: asyncio.run(opened_and_run(scenario))


def new_transfer(lane: str = "venue", owner: int = 1, flow: Flow = FLOW) -> Transfer:
    parties = {"source": Party(lane, "SPOT", owner), "target": Party("other", "BOOK", owner)}
    id_ = UUID(int=int(time.time() * 1000) << 80 | next(_numbers))
    return transfer_of(Request(owner, flow.name, parties, 3, 100), flow, id_)


def key_of(transfer: Transfer, cid: str | None = None) -> RequestKey:
    return RequestKey(transfer.owner, cid or str(transfer.id), b"print", transfer.id)


def created(transfer: Transfer) -> Move:
    return Move(None, transfer)


async def insert(store: AnyStore, *transfers: Transfer, cid: str | None = None) -> None:
    async with store.transaction() as tx:
        await store.reserve(tx, [key_of(t, cid) for t in transfers])
        await store.write(tx, moves_of([created(t) for t in transfers]), [False] * len(transfers))


async def reserve(store: AnyStore, *keys: RequestKey) -> None:
    async with store.transaction() as tx:
        await store.reserve(tx, keys)


async def answer(store: AnyStore, transfers: Sequence[Transfer], answer: Answer) -> int:
    """Decide and record, as the engine does. Return how many were still at their version."""
    async with store.transaction() as tx:
        unmoved = await store.lock(tx, transfers)
        moves = [decide(FLOW, t, answer, DecisionContext()) for t in unmoved]
        if moves:
            await store.write(tx, moves_of(moves), [False] * len(moves))
    return len(moves)


async def find_one(store: AnyStore, id_: UUID) -> Transfer:
    [found] = await store.find([id_])
    return found
