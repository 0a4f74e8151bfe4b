"""The engine as a whole: its lanes, its births, and those who wait for an end."""

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
from tidegate.engine.batch_timer import MANY
from tidegate.engine.clock_repair import keep_clock
from tidegate.engine.context import DetachedBatches, EngineContext
from tidegate.engine.due_scan import DueScan
from tidegate.engine.end_waiters import EndWaiters
from tidegate.engine.inbox_reader import NAME as INBOX
from tidegate.engine.inbox_reader import Form, InboxReader
from tidegate.engine.kind_rules import KindRules, RulesOf
from tidegate.engine.lane import MAX_BATCH, Lane
from tidegate.engine.pending_request import Receipt, RequestResult
from tidegate.engine.request_queue import IN_FLIGHT, RequestQueue
from tidegate.engine.ring import RING_SIZE, BusyOwners, Ring
from tidegate.store.flow_checks import checksums

POLL_S = 0.25
STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineParts(Generic[Tx]):
    """What an engine is put together from."""

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
    many: int = MANY  # Callers: with fewer, nobody waits for a batch to be worth its price.
    admission: Admission[Tx] | None = None
    worker: str = "engine"
    forms: Mapping[str, Form] = field(default_factory=dict)  # Of the flows taken from the inbox.
    # Is told of every end that is recorded.
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
            remembering=_able(outside, "remember"),
            clock=parts.clock,
            dice=parts.dice,
            alert=parts.alert,
            ended=self._ended,
            woken=self._woken,
            rings={name: Ring(parts.ring_size) for name in (*outside, *local)},
            busy_owners=BusyOwners(self._freed),
            irreversible=irreversible,
            rules=parts.rules_of(parts.flows, irreversible),
            listeners=_able(local, "moved", "refused"),
            admission=parts.admission,
            worker=parts.worker,
            detached=DetachedBatches(self._loop_ended),
        )
        self.request_queue = RequestQueue(self.context, parts.many, self.waiting.follow)
        self.inbox = InboxReader(self.context, parts.forms, parts.scan_s)
        self.lanes = {name: Lane(name, self.context) for name in self.context.rings}
        self.scan = DueScan(self.context, self.lanes, parts.scan_s)
        self._tasks: list[asyncio.Task[None]] = []
        # Done when a loop of the engine has failed: whoever runs it should end the program.
        self.died: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        loops = [self.request_queue.run() for _ in range(IN_FLIGHT)]
        for lane in self.lanes.values():
            loops += [lane.run() for _ in range(self.parts.loops_per_lane)]
        loops.append(self.scan.run())
        if self.parts.forms:
            loops.append(self.inbox.run())
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        self._polling = asyncio.create_task(self._poll())
        self._keeping = asyncio.create_task(keep_clock(self.context))
        for task in (*self._tasks, self._polling, self._keeping):
            task.add_done_callback(self._loop_ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self, grace_s: float = STOP_S) -> None:
        """Finish what is being done, begin nothing, and give leases back.

        What cannot be finished in time is dropped, which is as safe as a crash.
        """
        self.request_queue.stop()
        self.inbox.stop()
        self.scan.stop()
        for lane in self.lanes.values():
            lane.stop()
        _, late = await asyncio.wait(self._tasks, timeout=grace_s)
        aside = (*late, self._polling, self._keeping)
        for task in aside:
            task.cancel()
        await asyncio.gather(*aside, return_exceptions=True)
        self.request_queue.die("it was asked to")
        await self.context.detached.stop(grace_s)
        for lane in self.lanes.values():
            await lane.drain()

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        """A loop ends only when it is told to. Else it is a bug, and must not go unnoticed."""
        if not task.cancelled() and (fault := task.exception()):
            if not self.died.done():
                self.died.set_result(fault)
            self.request_queue.die(repr(fault))
            self.waiting.release()
            cause = f"a loop of the engine died: {fault!r}"
            self.parts.alert(Alert(Alarm.CRITICAL, AlertCode.ENGINE_DIED, cause))

    async def submit(self, request: Request, veto: Refusal | None = None) -> Receipt | Refusal:
        """Make a transfer of a request, once. Answered as soon as it is durable.

        With a veto only a request that is known already is answered by its transfer.
        """
        return await self.request_queue.submit(request, veto)

    async def transfer(
        self, request: Request, wait_s: float = 0.5, veto: Refusal | None = None
    ) -> Receipt | Refusal:
        """Make a transfer and wait a while for its end; after that it goes on by itself."""
        request_queue = self.request_queue
        answer = request_queue.ask(request, veto, wait_s)
        try:
            reply = await answer
        finally:
            request_queue.left()
        if isinstance(reply, Refusal) or reply.transfer.kind.lane is None:
            return reply
        return await self._latest(reply)

    async def transfer_all(
        self, asked: Sequence[CheckedRequest], wait_s: float = 0.5
    ) -> list[RequestResult]:
        """Many transfers, each as if it were made by itself, answered together in their order.

        What would be raised for one of them is the answer to that one.
        """
        said = await self.request_queue.submit_all(asked, wait_s)
        late = [r.transfer.id for r in said if isinstance(r, Receipt) and r.transfer.lane]
        found = {t.id: t for t in await self._look(self.context.store.find, late)} if late else {}
        return [
            Receipt(found[r.transfer.id], r.duplicate)
            if isinstance(r, Receipt) and r.transfer.id in found
            else r
            for r in said
        ]

    async def wait(self, transfer: Transfer, wait_s: float) -> Transfer:
        """The transfer at its end, or as it stands when the time is over."""
        answer: asyncio.Future[Receipt | Refusal] = asyncio.get_running_loop().create_future()
        self.waiting.follow(answer, transfer, wait_s)
        said = await answer
        assert isinstance(said, Receipt)
        return (await self._latest(said)).transfer

    async def _latest(self, receipt: Receipt) -> Receipt:
        """Who was not told of an end is told how far it is."""
        if receipt.transfer.lane is None:
            return receipt
        found = await self._look(self.context.store.find, [receipt.transfer.id])
        return Receipt(found[0], receipt.duplicate) if found else receipt

    async def _poll(self) -> None:
        """Look for ends that another process brought about, for all who wait at once."""
        while True:
            await self.waiting.anyone.wait()
            await asyncio.sleep(POLL_S)
            # What this process ends itself, it tells at once, and most often sooner than this.
            if ids := self.waiting.longest(MAX_BATCH, POLL_S):
                self.waiting.ended(await self._look(self.context.store.ended, ids))

    async def _look(
        self, find: Callable[[Sequence[UUID]], Awaitable[Sequence[Transfer]]], ids: Sequence[UUID]
    ) -> Sequence[Transfer]:
        """As the store has them now. They are durable: that we cannot look is no failure."""
        try:
            return await find(ids)
        except StoreUnavailable:
            return []

    def _ended(self, transfers: Sequence[Transfer]) -> None:
        self.parts.ended(transfers)
        self.waiting.ended(transfers)

    def _freed(self) -> None:
        """Somebody was passed over, whose turn it may be now."""
        self.request_queue.wake()

    def hint(self, lanes: Iterable[str]) -> None:
        """Somebody says that something is due: look now. Whoever says nothing is found later."""
        for name in lanes:
            (self.inbox if name == INBOX else self.lanes[name]).look()

    def _woken(self, lanes: Iterable[str]) -> None:
        for name in sorted(lanes):  # In one order in every process, for who replays a seed.
            self.lanes[name].wake()


def _able(systems: Mapping[str, object], *methods: str) -> dict[str, Any]:
    """The systems that have these methods. Asking for a protocol takes Python ten times as long,
    and workers are started often where that is tried."""
    return {
        name: system
        for name, system in systems.items()
        if all(callable(getattr(system, method, None)) for method in methods)
    }
