"""Lanes: each system has its own loops, so that a slow system does not delay the others."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Generic, TypeAlias

from tidegate.core.answers import Alarm, Unreachable
from tidegate.core.kind import Transfer
from tidegate.core.ports import StoreUnavailable, Tx
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.context import EngineContext
from tidegate.engine.step import step
from tidegate.engine.wakeup import Wakeup
from tidegate.engine.write_batch import owners_locked, retry_delay_s

MAX_BATCH = 1024
PROBE_FIRST_S = 0.5
PROBE_CAP_S = 15.0

Expect: TypeAlias = Callable[[Iterable[int | None]], None]


class Lane(Generic[Tx]):
    """The transfers that wait for one system: handed over in the ring, or due in the table."""

    def __init__(self, name: str, context: EngineContext[Tx]) -> None:
        self.name = name
        self.context = context
        self.ring = context.rings[name]
        self.failures = 0  # Unreachable calls in a row. If there are any, the lane is closed.
        self.unanswered = 0  # Calls since the last answer. Opening the lane does not reset it.
        # The last call raised nothing. If the next one raises, one of its rows is the reason.
        self.healthy = True
        self._hinted = False  # Something may be due: claim from the table.
        self._probing = False
        self._work = Wakeup()
        self._stopping = False

    @property
    def closed(self) -> bool:
        return self.failures > 0

    def wake(self) -> None:
        self._work.set()

    def look(self) -> None:
        """Claim from the table at the next turn. A closed lane is not woken for it."""
        self._hinted = True
        if not self.closed:
            self._work.set()

    def stop(self) -> None:
        self._stopping = True
        self._work.set()

    async def run(self) -> None:
        """Take a batch and step, forever. After a crash at any point the rows are due again."""
        failures = 0
        while not self._stopping:
            try:
                await self._turn()
                failures = 0
            except StoreUnavailable as fault:
                message = f"the database is unavailable, the lane tries again: {fault}"
                self._alert(Alarm.NONE, AlertCode.STORE_UNAVAILABLE, message)
                await self._wait(retry_delay_s(failures, self.context.dice))
                failures += 1

    async def drain(self) -> None:
        """Release the leases of the ring: its transfers are due now."""
        while batch := self.ring.pop(MAX_BATCH, self.context.clock()):
            await self._release(batch)

    async def _release(self, batch: list[Transfer]) -> None:
        # If the release fails, the leases end by themselves.
        with contextlib.suppress(StoreUnavailable):
            await self.context.store.release(batch)

    async def _turn(self) -> None:
        # Cleared before the check: work that is added later sets it again.
        self._work.clear()
        if self.closed:
            await self._probe()
            return
        if not (self._hinted or len(self.ring)):
            await self._wait()
            return
        with self.context.busy_owners.expecting() as expect:
            if batch := await self._batch(expect):
                await self._step(batch)

    async def _batch(self, expect: Expect) -> list[Transfer]:
        """Claim from the table if something is due there, else take from the ring."""
        if not self._hinted:
            return await self._popped(expect)
        # Cleared before the claim: a later hint may be about a row that the claim did not see.
        # The other loop of this lane must not make the same claim at the same time.
        self._hinted = False
        try:
            claimed = list(
                await self.context.store.claim(self.name, MAX_BATCH, self.context.tables)
            )
        except BaseException:
            self._hinted = True  # Rows may still be due. The other loop is not woken for this.
            raise
        if len(claimed) == MAX_BATCH:
            self.look()  # There may be more: wake the other loop, too.
        return claimed or await self._popped(expect)

    async def _popped(self, expect: Expect) -> list[Transfer]:
        batch = self.ring.pop(MAX_BATCH, self.context.clock())
        if not batch:
            return []
        expect(owners_locked(self.context, batch))
        askable = list(await self.context.store.askable(batch, self.context.tables))
        if len(askable) < len(batch):
            ids = {transfer.id for transfer in askable}
            await self._release([transfer for transfer in batch if transfer.id not in ids])
        return askable

    async def _step(self, batch: list[Transfer]) -> None:
        try:
            self.healthy = await step(self.context, self.name, batch, split=self.healthy)
        except Unreachable as fault:
            self._close(str(fault))
            await self._release(batch)
            await self.drain()
            await self._note(str(fault))
            return
        if self.closed:
            self._open()
        # An exception of the client is no answer of the system: the outage has not ended.
        if self.unanswered and self.healthy:
            await self._answered()

    def _open(self) -> None:
        self.failures = 0
        self.ring.open = True
        self.look()

    def _close(self, reason: str) -> None:
        """Stop claims and attempts until a probe is answered. Page once for the whole lane."""
        if not self.unanswered:
            message = f"system {self.name} is unreachable: {reason}"
            self._alert(Alarm.PAGE, AlertCode.LANE_UNREACHABLE, message)
        self.failures += 1
        self.unanswered += 1
        self.ring.open = False

    async def _note(self, reason: str) -> None:
        """Record the outage once per probe, instead of in the row of each transfer that waits.

        The note is kept until the system answers, not until a probe finds no transfer to ask about.
        """
        context = self.context
        with contextlib.suppress(StoreUnavailable):
            await context.store.note_outage(self.name, context.worker, self.unanswered, reason)

    async def _answered(self) -> None:
        self.unanswered = 0
        message = f"cleared: system {self.name} is reachable again"
        self._alert(Alarm.NONE, AlertCode.LANE_UNREACHABLE, message, cleared=True)
        # If the note cannot be deleted, it counts for two minutes at most.
        with contextlib.suppress(StoreUnavailable):
            await self.context.store.end_outage(self.name, self.context.worker)

    async def _probe(self) -> None:
        """Ask about one transfer at a time. After any answer the lane opens."""
        if self._probing:
            await self._wait(PROBE_CAP_S)  # Woken when the lane opens.
            return
        self._probing = True
        try:
            delay_s = min(PROBE_FIRST_S * 2 ** min(self.failures - 1, 10), PROBE_CAP_S)
            await self._wait(delay_s * (0.75 + self.context.dice.random() / 4))
            tables = self.context.tables
            batch = [] if self._stopping else await self.context.store.claim(self.name, 1, tables)
            if batch:
                await self._step(list(batch))
            else:
                # Another process has finished what was due. Open the lane: the next transfer shows
                # whether the system answers, and an outage that continues does not page again.
                self._open()
        finally:
            self._probing = False

    def _alert(self, alarm: Alarm, code: AlertCode, message: str, *, cleared: bool = False) -> None:
        self.context.alert(Alert(alarm, code, message, self.name, cleared=cleared))

    async def _wait(self, seconds: float | None = None) -> None:
        """Wait until there is work, or for so many seconds."""
        if not self._stopping:
            await self._work.wait(seconds)
