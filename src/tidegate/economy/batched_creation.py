"""The way into the pool: wishes that come at the same time are created in one transaction.

A lone wish does not wait. Those that come while a batch is on its way are the next batch. A wish
without a cid is created by itself: if its caller gives up, its transaction must end with it. In a
batch it would be created all the same, and a caller who asks again would pay twice.
"""

import asyncio
import math
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout, TooManyRequests

from tidegate.economy.gateway import (
    EXPIRES_HOURS,
    MISMATCH,
    PendingTransferGateway,
    PoolTransferRequest,
    create_many,
    values_of,
)

MAX_BATCH = 256
MAX_UNDER_WAY = 2  # Batches. More would be smaller ones.
# The database has refused a batch, so that nothing of it was committed: by itself each may succeed.
REFUSED = frozenset({MISMATCH, "40001", "40P01", "55P03"})


class PendingCreation(NamedTuple):
    """A wish, and whoever waits for its id."""

    wish: PoolTransferRequest
    values: Mapping[str, object]
    made: "asyncio.Future[UUID]"
    late: asyncio.TimerHandle  # It has waited too long for its batch to begin.

    def answer(self, id_: UUID) -> None:
        if not self.made.done():  # Whoever asked may have gone.
            self.made.set_result(id_)

    def fail(self, ended: "asyncio.Future[Any]") -> None:
        """As whatever should have answered it has failed."""
        fault = None if ended.cancelled() else ended.exception()
        if self.made.done():
            return
        if fault is None:
            self.made.cancel()
        else:
            self.made.set_exception(fault)


class BatchedCreation:
    """As many may wait, and for as long, as the pool of sessions lets them wait for a session."""

    def __init__(self, pool: AsyncConnectionPool[Any], gateway: PendingTransferGateway) -> None:
        self._pool, self._gateway = pool, gateway
        self._waiting: deque[PendingCreation] = deque()
        self._batches: set[asyncio.Task[None]] = set()
        self._singles: set[asyncio.Task[UUID]] = set()
        self._seeking = False  # A batch waits for a session, and will take what waits then.

    async def create(self, wish: PoolTransferRequest) -> UUID:
        values = values_of(wish)
        if not _may_be_batched(wish):
            return await self._create(wish)
        pool = self._pool
        if pool.max_waiting and len(self._waiting) >= pool.max_waiting + pool.max_size:
            raise TooManyRequests(f"{len(self._waiting)} transfers wait to be created")
        loop = asyncio.get_running_loop()
        made: asyncio.Future[UUID] = loop.create_future()
        late = loop.call_later(pool.timeout, _give_up, made, pool.timeout)
        self._waiting.append(PendingCreation(wish, values, made, late))
        self._begin()
        return await made

    def _begin(self) -> None:
        if self._waiting and not self._seeking and len(self._batches) < MAX_UNDER_WAY:
            self._seeking = True
            batch: list[PendingCreation] = []
            going_on = asyncio.create_task(self._together(batch))
            self._batches.add(going_on)
            going_on.add_done_callback(partial(self._ended, batch))

    def _ended(self, batch: list[PendingCreation], ended: "asyncio.Task[None]") -> None:
        self._batches.discard(ended)
        fault = None if ended.cancelled() else ended.exception()
        if isinstance(fault, PoolTimeout) and not batch:
            self._seeking = False  # Those who have waited that long themselves were told.
        elif fault or ended.cancelled():
            # Without a session, what waits for one is told so, as it would be told by the pool.
            for asked in batch or self._taken():
                asked.fail(ended)
        if not ended.cancelled():
            self._begin()

    def _taken(self) -> list[PendingCreation]:
        self._seeking = False
        taken: list[PendingCreation] = []
        while self._waiting and len(taken) < MAX_BATCH:
            asked = self._waiting.popleft()
            asked.late.cancel()
            if not asked.made.done():
                taken.append(asked)
        self._begin()
        return taken

    async def _together(self, batch: list[PendingCreation]) -> None:
        """Create what waits when there is a session; what cannot be, goes on by itself."""
        ids: list[UUID | None] = []
        try:
            async with self._pool.connection() as connection:
                batch += self._taken()
                if len(batch) == 1:
                    ids = [await self._create_on(connection, batch[0].wish)]
                elif batch:
                    ids = await create_many(connection, [asked.values for asked in batch])
        except psycopg.Error as fault:
            if len(batch) < 2 or not _is_refused(fault):
                raise  # Of a connection that is lost nobody knows what became of the batch.
            ids = [None] * len(batch)
        for asked, id_ in zip(batch, ids, strict=True):
            if id_ is None:
                self._alone(asked)
            else:
                asked.answer(id_)

    def _alone(self, asked: PendingCreation) -> None:
        """No batch waits for it: it may wait for a key that somebody holds."""
        going_on = asyncio.create_task(self._create(asked.wish))
        self._singles.add(going_on)
        going_on.add_done_callback(partial(self._answered, asked))

    def _answered(self, asked: PendingCreation, ended: "asyncio.Task[UUID]") -> None:
        self._singles.discard(ended)
        if ended.cancelled() or ended.exception():
            asked.fail(ended)
        else:
            asked.answer(ended.result())

    async def _create(self, wish: PoolTransferRequest) -> UUID:
        async with self._pool.connection() as connection:
            return await self._create_on(connection, wish)

    async def _create_on(
        self, connection: psycopg.AsyncConnection[Any], wish: PoolTransferRequest
    ) -> UUID:
        return await self._gateway.create_pending_transfer(connection, **wish)


def _may_be_batched(wish: PoolTransferRequest) -> bool:
    """Whether a repeat is safe, and the driver can send it: else it would fail those beside it."""
    cid, hours = wish.get("cid"), wish.get("expires_hours", EXPIRES_HOURS)
    fit = type(cid) is str and cid.isascii() and "\0" not in cid
    return fit and type(hours) in (int, float) and math.isfinite(hours)


def _give_up(made: "asyncio.Future[UUID]", seconds: float) -> None:
    if not made.done():
        made.set_exception(PoolTimeout(f"no session for a new transfer within {seconds:.2f} s"))


def _is_refused(fault: psycopg.Error) -> bool:
    refused = isinstance(fault, psycopg.DataError | psycopg.IntegrityError)
    return refused or fault.sqlstate in REFUSED
