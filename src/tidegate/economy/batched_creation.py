"""Create transfers in the pool: requests that arrive at the same time share one transaction.

A single request does not wait. Requests that arrive while a batch is running form the next batch. A
request without a cid is created in its own transaction: if its caller is cancelled, the transaction
must be rolled back. In a batch it would be created anyway, and a caller that repeats it would pay
twice.
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
MAX_RUNNING_BATCHES = 2  # More batches at a time would be smaller batches.
# Errors after which nothing of the batch is committed, and each request may succeed by itself.
REFUSED = frozenset({MISMATCH, "40001", "40P01", "55P03"})


class PendingCreation(NamedTuple):
    """A request, and the future of the caller that waits for the transfer's id."""

    request: PoolTransferRequest
    values: Mapping[str, object]
    reply: "asyncio.Future[UUID]"
    timeout: asyncio.TimerHandle  # Limits the time until its batch starts.

    def answer(self, id_: UUID) -> None:
        if not self.reply.done():  # The caller may have been cancelled.
            self.reply.set_result(id_)

    def fail(self, ended: "asyncio.Future[Any]") -> None:
        """Fail in the same way as the task that should have answered."""
        fault = None if ended.cancelled() else ended.exception()
        if self.reply.done():
            return
        if fault is None:
            self.reply.cancel()
        else:
            self.reply.set_exception(fault)


class BatchedCreation:
    """Queues requests, with the limits of number and time that the session pool has."""

    def __init__(self, pool: AsyncConnectionPool[Any], gateway: PendingTransferGateway) -> None:
        self._pool, self._gateway = pool, gateway
        self._waiting: deque[PendingCreation] = deque()
        self._batches: set[asyncio.Task[None]] = set()
        self._singles: set[asyncio.Task[UUID]] = set()
        # A batch waits for a session. It takes its requests from the queue when it has one.
        self._awaiting_session = False

    async def create(self, request: PoolTransferRequest) -> UUID:
        values = values_of(request)
        if not _may_be_batched(request):
            return await self._create(request)
        pool = self._pool
        if pool.max_waiting and len(self._waiting) >= pool.max_waiting + pool.max_size:
            raise TooManyRequests(f"{len(self._waiting)} transfers wait to be created")
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[UUID] = loop.create_future()
        timeout = loop.call_later(pool.timeout, _time_out, reply, pool.timeout)
        self._waiting.append(PendingCreation(request, values, reply, timeout))
        self._start_batch()
        return await reply

    def _start_batch(self) -> None:
        running = len(self._batches)
        if self._waiting and not self._awaiting_session and running < MAX_RUNNING_BATCHES:
            self._awaiting_session = True
            batch: list[PendingCreation] = []
            task = asyncio.create_task(self._create_batch(batch))
            self._batches.add(task)
            task.add_done_callback(partial(self._batch_ended, batch))

    def _batch_ended(self, batch: list[PendingCreation], ended: "asyncio.Task[None]") -> None:
        self._batches.discard(ended)
        fault = None if ended.cancelled() else ended.exception()
        if isinstance(fault, PoolTimeout) and not batch:
            self._awaiting_session = False  # Requests that waited as long have timed out already.
        elif fault or ended.cancelled():
            # If the batch got no session, fail the queued requests, as the pool would.
            for pending in batch or self._take_batch():
                pending.fail(ended)
        if not ended.cancelled():
            self._start_batch()

    def _take_batch(self) -> list[PendingCreation]:
        self._awaiting_session = False
        batch: list[PendingCreation] = []
        while self._waiting and len(batch) < MAX_BATCH:
            pending = self._waiting.popleft()
            pending.timeout.cancel()
            if not pending.reply.done():
                batch.append(pending)
        self._start_batch()
        return batch

    async def _create_batch(self, batch: list[PendingCreation]) -> None:
        """Create the queued requests in one transaction, and the refused ones by themselves."""
        ids: list[UUID | None] = []
        try:
            async with self._pool.connection() as connection:
                batch += self._take_batch()
                if len(batch) == 1:
                    ids = [await self._create_on(connection, batch[0].request)]
                elif batch:
                    ids = await create_many(connection, [pending.values for pending in batch])
        except psycopg.Error as fault:
            if len(batch) < 2 or not _is_refused(fault):
                raise  # After a lost connection the batch may have been committed.
            ids = [None] * len(batch)
        for pending, id_ in zip(batch, ids, strict=True):
            if id_ is None:
                self._create_alone(pending)
            else:
                pending.answer(id_)

    def _create_alone(self, pending: PendingCreation) -> None:
        """Create it in a task of its own: it may wait for a key that another session holds."""
        task = asyncio.create_task(self._create(pending.request))
        self._singles.add(task)
        task.add_done_callback(partial(self._single_ended, pending))

    def _single_ended(self, pending: PendingCreation, ended: "asyncio.Task[UUID]") -> None:
        self._singles.discard(ended)
        if ended.cancelled() or ended.exception():
            pending.fail(ended)
        else:
            pending.answer(ended.result())

    async def _create(self, request: PoolTransferRequest) -> UUID:
        async with self._pool.connection() as connection:
            return await self._create_on(connection, request)

    async def _create_on(
        self, connection: psycopg.AsyncConnection[Any], request: PoolTransferRequest
    ) -> UUID:
        return await self._gateway.create_pending_transfer(connection, **request)


def _may_be_batched(request: PoolTransferRequest) -> bool:
    """Whether a repeat is safe and the driver accepts the values: else the whole batch fails."""
    cid, hours = request.get("cid"), request.get("expires_hours", EXPIRES_HOURS)
    valid_cid = type(cid) is str and cid.isascii() and "\0" not in cid
    return valid_cid and type(hours) in (int, float) and math.isfinite(hours)


def _time_out(reply: "asyncio.Future[UUID]", seconds: float) -> None:
    if not reply.done():
        reply.set_exception(PoolTimeout(f"no session for a new transfer within {seconds:.2f} s"))


def _is_refused(fault: psycopg.Error) -> bool:
    refused = isinstance(fault, psycopg.DataError | psycopg.IntegrityError)
    return refused or fault.sqlstate in REFUSED
