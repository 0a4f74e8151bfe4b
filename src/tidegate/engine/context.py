"""What every part of the engine works with, and what runs beside its loops."""

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
MAX_HELD = 8  # Of them, those that wait for accounts which are known to be held.
MAX_AT_ONCE = 4  # Of their transactions: sessions must be left for the loops.


class DetachedBatches:
    """Batches that take longer than others may wait for. They go on beside the loops."""

    def __init__(self, ended: Callable[[asyncio.Task[None]], None] = lambda _: None) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self.held = 0
        self.turn = asyncio.Semaphore(MAX_AT_ONCE)
        self._tell = ended  # Told of a task that failed otherwise than by the store.

    async def start(
        self, work: Coroutine[Any, Any, None], broken: Callable[[BaseException], None]
    ) -> None:
        """Beside the caller; with too many of them already, the caller waits."""
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
        """The same for what needs an account that is held. With too many already: not at all."""
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

    async def together(self, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Side by side, so that one does not wait for another. All have ended when this has."""
        results = await asyncio.gather(*works, return_exceptions=True)
        faults = [result for result in results if result is not None]
        # A bug before what the store could not do: it must not go unnoticed.
        for fault in sorted(faults, key=lambda each: isinstance(each, StoreUnavailable)):
            raise fault

    def _ended(self, broken: Callable[[BaseException], None], task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        bug = asyncio.CancelledError() if task.cancelled() else task.exception()
        # Without the store nothing was written: the lease runs out, and the row is due again.
        if bug is not None and not isinstance(bug, StoreUnavailable):
            broken(bug)
            self._tell(task)

    async def stop(self, grace_s: float) -> None:
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class EngineContext(Generic[Tx]):
    """All that the engine needs. Nothing in it reads a clock or throws dice of its own."""

    store: Store[Tx]
    flows: Mapping[str, Flow]
    tables: FlowChecksums  # Their checksums: rows of other tables are for other processes.
    outside: Mapping[str, System]
    local: Mapping[str, LocalSystem[Tx]]
    remembering: Mapping[str, Remembering[Tx]]
    clock: Callable[[], float]
    dice: random.Random
    alert: Callable[[Alert], None]
    ended: Callable[[Sequence[Transfer]], None]
    woken: Callable[[Iterable[str]], None]
    rings: Mapping[str, Ring]
    busy_owners: BusyOwners
    irreversible: frozenset[str]
    rules: KindRules
    worker: str = "engine"  # Its name in the store, where several processes note something.
    admission: Admission[Tx] | None = None
    listeners: Mapping[str, Listener[Tx]] = field(default_factory=dict)
    detached: DetachedBatches = field(default_factory=DetachedBatches)
    slow: dict[Account, float] = field(default_factory=dict)  # Accounts that somebody holds.
    origins: RequestKinds = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "origins", RequestKinds(self.flows, self.outside, self.local))

    def terms(self, actor: str = "") -> DecisionContext:
        """Of a whole batch: what must be asked again together stays together."""
        return DecisionContext(self.dice.random(), self.irreversible, actor)
