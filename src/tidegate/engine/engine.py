"""The engine: its request queue, its lanes, and the callers that wait for the end of a transfer."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self
from uuid import UUID

from tidegate.core.answers import Alarm
from tidegate.core.flow import Flow
from tidegate.core.kind import Transfer
from tidegate.core.ports import (
    Admission,
    LocalSystem,
    Store,
    StoreUnavailable,
    System,
    Tx,
)
from tidegate.core.refusals import Refusal
from tidegate.core.request import CheckedRequest, Request
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.batch_timer import MANY_CALLERS
from tidegate.engine.clock_repair import repair_clock
from tidegate.engine.context import DetachedBatches, EngineContext
from tidegate.engine.due_scan import DueScan
from tidegate.engine.end_waiters import EndWaiters
from tidegate.engine.inbox_reader import NAME as INBOX
from tidegate.engine.inbox_reader import Form, InboxReader
from tidegate.engine.kind_rules import KindRules, RulesOf
from tidegate.engine.lane import MAX_BATCH, Lane
from tidegate.engine.pending_request import Receipt, RequestResult
from tidegate.engine.request_queue import QUEUE_LOOPS, RequestQueue
from tidegate.engine.ring import RING_SIZE, BusyOwners, Ring
from tidegate.store.flow_checks import checksums

POLL_S = 0.25
STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineParts(Generic[Tx]):
    """The parts of an engine and its settings."""

    store: Store[Tx]
    flows: Mapping[str, Flow]
    outside: Iterable[System]
    local: Iterable[LocalSystem[Tx]]
    clock: Callable[[], float]
    dice: random.Random
    alert: Callable[[Alert], None]
    scan_s: float = 1.0
    ring_size: int = RING_SIZE
    loops_per_lane: int = 2
    many_callers: int = MANY_CALLERS  # With fewer callers, requests are written at once.
    admission: Admission[Tx] | None = None
    worker: str = "engine"
    forms: Mapping[str, Form] = field(default_factory=dict)  # Of the flows taken from the inbox.
    # Called with the transfers whose end was recorded.
    ended: Callable[[Sequence[Transfer]], None] = lambda _: None
    rules_of: RulesOf = KindRules


class Engine(Generic[Tx]):
    """`async with Engine(parts) as engine`, then `await engine.transfer(request)`."""

    def __init__(self, parts: EngineParts[Tx]) -> None:
        outside = {system.name: system for system in parts.outside}
        local = {system.name: system for system in parts.local}
        assert not outside.keys() & local.keys(), "two systems have the same name"
        self.parts = parts
        self.waiting = EndWaiters()
        irreversible = frozenset(
            [s.name for s in outside.values() if not s.reversible]
            + [s.name for s in local.values() if not s.reversible]
        )
        self.context = EngineContext(
            store=parts.store,
            flows=parts.flows,
            tables=checksums(parts.flows.values()),
            outside=outside,
            local=local,
            remembering=_with_methods(outside, "remember"),
            clock=parts.clock,
            dice=parts.dice,
            alert=parts.alert,
            ended=self._ended,
            wake_lanes=self._wake_lanes,
            rings={name: Ring(parts.ring_size) for name in (*outside, *local)},
            busy_owners=BusyOwners(self._owners_freed),
            irreversible=irreversible,
            rules=parts.rules_of(parts.flows, irreversible),
            listeners=_with_methods(local, "moved", "refused"),
            admission=parts.admission,
            worker=parts.worker,
            detached=DetachedBatches(self._loop_ended),
        )
        self.request_queue = RequestQueue(self.context, parts.many_callers, self.waiting.follow)
        self.inbox = InboxReader(self.context, parts.forms, parts.scan_s)
        self.lanes = {name: Lane(name, self.context) for name in self.context.rings}
        self.scan = DueScan(self.context, self.lanes, parts.scan_s)
        self._tasks: list[asyncio.Task[None]] = []
        # Done when a loop of the engine has failed: the program that runs it should exit.
        self.died: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        loops = [self.request_queue.run() for _ in range(QUEUE_LOOPS)]
        for lane in self.lanes.values():
            loops += [lane.run() for _ in range(self.parts.loops_per_lane)]
        loops.append(self.scan.run())
        if self.parts.forms:
            loops.append(self.inbox.run())
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        self._polling = asyncio.create_task(self._poll_ends())
        self._clock_repair = asyncio.create_task(repair_clock(self.context))
        for task in (*self._tasks, self._polling, self._clock_repair):
            task.add_done_callback(self._loop_ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self, grace_s: float = STOP_S) -> None:
        """Finish the batches that have begun, begin no others, and release the leases.

        Work that does not finish in time is cancelled, which is as safe as a crash.
        """
        self.request_queue.stop()
        self.inbox.stop()
        self.scan.stop()
        for lane in self.lanes.values():
            lane.stop()
        _, late = await asyncio.wait(self._tasks, timeout=grace_s)
        cancelled = (*late, self._polling, self._clock_repair)
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        self.request_queue.die("a stop was requested")
        await self.context.detached.stop(grace_s)
        for lane in self.lanes.values():
            await lane.drain()

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        """Report a loop that has failed. A loop without a bug ends only when it is stopped."""
        if not task.cancelled() and (fault := task.exception()):
            if not self.died.done():
                self.died.set_result(fault)
            self.request_queue.die(repr(fault))
            self.waiting.release()
            message = f"a loop of the engine died: {fault!r}"
            self.parts.alert(Alert(Alarm.CRITICAL, AlertCode.ENGINE_DIED, message))

    async def submit(self, request: Request, veto: Refusal | None = None) -> Receipt | Refusal:
        """Create a transfer, once per cid. Return as soon as it is durable.

        With a veto, a known request gets its transfer, and a new one is refused with the veto.
        """
        return await self.request_queue.submit(request, veto)

    async def transfer(
        self, request: Request, wait_s: float = 0.5, veto: Refusal | None = None
    ) -> Receipt | Refusal:
        """Create a transfer and wait up to `wait_s` for its end. After that it continues."""
        pending_reply = self.request_queue.enqueue(request, veto, wait_s)
        try:
            reply = await pending_reply
        finally:
            self.request_queue.caller_left()
        if isinstance(reply, Refusal) or reply.transfer.kind.lane is None:
            return reply
        return await self._latest(reply)

    async def transfer_all(
        self, requests: Sequence[CheckedRequest], wait_s: float = 0.5
    ) -> list[RequestResult]:
        """Call `transfer` for each request. Return all results in their order.

        An exception that `transfer` would raise is returned as the result of its request.
        """
        results = await self.request_queue.submit_all(requests, wait_s)
        open_ids = [r.transfer.id for r in results if isinstance(r, Receipt) and r.transfer.lane]
        rows = await self._read(self.context.store.find, open_ids) if open_ids else ()
        latest = {row.id: row for row in rows}
        return [
            Receipt(latest[r.transfer.id], r.duplicate)
            if isinstance(r, Receipt) and r.transfer.id in latest
            else r
            for r in results
        ]

    async def wait(self, transfer: Transfer, wait_s: float) -> Transfer:
        """Wait for the end of a transfer. Return it as it is then, or after `wait_s`."""
        reply: asyncio.Future[Receipt | Refusal] = asyncio.get_running_loop().create_future()
        self.waiting.follow(reply, transfer, wait_s)
        receipt = await reply
        assert isinstance(receipt, Receipt)
        return (await self._latest(receipt)).transfer

    async def _latest(self, receipt: Receipt) -> Receipt:
        """If the transfer has not ended in the receipt, read its present state."""
        if receipt.transfer.lane is None:
            return receipt
        rows = await self._read(self.context.store.find, [receipt.transfer.id])
        return Receipt(rows[0], receipt.duplicate) if rows else receipt

    async def _poll_ends(self) -> None:
        """Find the ends that other processes have recorded, in one query for all waiters."""
        while True:
            await self.waiting.has_waiters.wait()
            await asyncio.sleep(POLL_S)
            # Ends that this process records are reported at once, mostly before they are polled.
            if ids := self.waiting.longest_waiting(MAX_BATCH, POLL_S):
                self.waiting.ended(await self._read(self.context.store.ended, ids))

    async def _read(
        self, find: Callable[[Sequence[UUID]], Awaitable[Sequence[Transfer]]], ids: Sequence[UUID]
    ) -> Sequence[Transfer]:
        """Read transfers. Without the store return none: they are durable, so it is no failure."""
        try:
            return await find(ids)
        except StoreUnavailable:
            return []

    def _ended(self, transfers: Sequence[Transfer]) -> None:
        self.parts.ended(transfers)
        self.waiting.ended(transfers)

    def _owners_freed(self) -> None:
        """A request that was passed over may be taken now."""
        self.request_queue.wake()

    def hint(self, lanes: Iterable[str]) -> None:
        """Something is due in these lanes: look now. Without a hint the next scan finds it."""
        for name in lanes:
            (self.inbox if name == INBOX else self.lanes[name]).look()

    def _wake_lanes(self, lanes: Iterable[str]) -> None:
        for name in sorted(lanes):  # Sorted, so that a simulation with the same seed is the same.
            self.lanes[name].wake()


def _with_methods(systems: Mapping[str, object], *methods: str) -> dict[str, Any]:
    """The systems that have these methods.

    An isinstance check against a protocol is ten times slower, and the simulation starts many
    workers.
    """
    return {
        name: system
        for name, system in systems.items()
        if all(callable(getattr(system, method, None)) for method in methods)
    }
