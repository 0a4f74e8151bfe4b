"""What all parts of the engine share, and the tasks that run beside the engine's loops."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic

from tidegate.core.account import Account
from tidegate.core.decide import DecisionContext
from tidegate.core.flow import Flow
from tidegate.core.kind import Transfer
from tidegate.core.ports import (
    Admission,
    FlowChecksums,
    Listener,
    LocalSystem,
    Remembering,
    Store,
    StoreUnavailable,
    System,
    Tx,
)
from tidegate.engine.alerts import Alert
from tidegate.engine.kind_rules import KindRules
from tidegate.engine.request_kinds import RequestKinds
from tidegate.engine.ring import BusyOwners, Ring

MAX_DETACHED = 16
MAX_HELD = 8  # Of these, tasks that wait for accounts which are known to be locked.
MAX_AT_ONCE = 4  # Transactions of these tasks at a time: the loops need sessions, too.


class DetachedBatches:
    """Batches that take too long for the loops. They run in tasks of their own."""

    def __init__(self, on_bug: Callable[[asyncio.Task[None]], None] = lambda _: None) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self.held = 0
        self.sessions = asyncio.Semaphore(MAX_AT_ONCE)
        self._on_bug = on_bug  # Called if a task fails, other than with StoreUnavailable.

    async def start(
        self, work: Coroutine[Any, Any, None], broken: Callable[[BaseException], None]
    ) -> None:
        """Start a task. If too many run already, wait until one ends."""
        while len(self._running) >= MAX_DETACHED:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(partial(self._ended, broken))

    async def start_held(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        broken: Callable[[BaseException], None],
    ) -> bool:
        """Start a task for a locked account. If too many run already, return False."""
        if self.held >= MAX_HELD:
            return False

        async def counted() -> None:
            try:
                await work()
            finally:
                self.held -= 1

        self.held += 1
        await self.start(counted(), broken)
        return True

    async def run_all(self, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Run them concurrently. Return when all have ended."""
        results = await asyncio.gather(*works, return_exceptions=True)
        faults = [result for result in results if result is not None]
        # Raise a bug rather than StoreUnavailable, which the loops only log.
        for fault in sorted(faults, key=lambda fault: isinstance(fault, StoreUnavailable)):
            raise fault

    def _ended(self, broken: Callable[[BaseException], None], task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        bug = asyncio.CancelledError() if task.cancelled() else task.exception()
        # StoreUnavailable is no bug: nothing was written, and the rows are due after their lease.
        if bug is not None and not isinstance(bug, StoreUnavailable):
            broken(bug)
            self._on_bug(task)

    async def stop(self, grace_s: float) -> None:
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class EngineContext(Generic[Tx]):
    """What the engine works with. The clock and the random generator are arguments, too."""

    store: Store[Tx]
    flows: Mapping[str, Flow]
    tables: FlowChecksums  # Of `flows`. Rows of other flow tables are for other processes.
    outside: Mapping[str, System]
    local: Mapping[str, LocalSystem[Tx]]
    remembering: Mapping[str, Remembering[Tx]]  # Systems whose position the store records.
    clock: Callable[[], float]
    dice: random.Random
    alert: Callable[[Alert], None]
    ended: Callable[[Sequence[Transfer]], None]  # Called with transfers that have ended.
    wake_lanes: Callable[[Iterable[str]], None]
    rings: Mapping[str, Ring]
    busy_owners: BusyOwners
    irreversible: frozenset[str]  # Systems that cannot undo a debit.
    rules: KindRules
    worker: str = "engine"  # Name of this process in the store, for notes of several processes.
    admission: Admission[Tx] | None = None
    listeners: Mapping[str, Listener[Tx]] = field(default_factory=dict)
    detached: DetachedBatches = field(default_factory=DetachedBatches)
    # Accounts that another session holds locked, and until when they are treated as such.
    held_accounts: dict[Account, float] = field(default_factory=dict)
    request_kinds: RequestKinds = field(init=False)

    def __post_init__(self) -> None:
        kinds = RequestKinds(self.flows, self.outside, self.local)
        object.__setattr__(self, "request_kinds", kinds)

    def decision_context(self, actor: str = "") -> DecisionContext:
        """For a whole batch: with one random number its retries stay together in a batch."""
        return DecisionContext(self.dice.random(), self.irreversible, actor)
