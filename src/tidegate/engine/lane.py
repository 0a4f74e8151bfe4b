"""Lanes: one loop per system, so that a slow one never delays another."""

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
from tidegate.engine.write_batch import owners_locked, pause_s

MAX_BATCH = 1024
PROBE_FIRST_S = 0.5
PROBE_CAP_S = 15.0

Expect: TypeAlias = Callable[[Iterable[int | None]], None]


class Lane(Generic[Tx]):
    """The way of one system: a ring for what was just recorded, the table for what is due."""

    def __init__(self, name: str, context: EngineContext[Tx]) -> None:
        self.name = name
        self.context = context
        self.ring = context.rings[name]
        self.failures = 0  # Calls in a row without a word: while there are any, it is closed.
        self.unanswered = 0  # Calls since the last answer, however often it was opened meanwhile.
        self.well = True  # The last ask raised nothing: if the next does, a row is to blame.
        self._hinted = False  # Something is due, or may be: the table is to be looked at.
        self._probing = False
        self._work = Wakeup()
        self._stopping = False

    @property
    def closed(self) -> bool:
        return self.failures > 0

    def wake(self) -> None:
        self._work.ring()

    def look(self) -> None:
        """Something is due. Who waits for a system that is away is not to try it sooner."""
        self._hinted = True
        if not self.closed:
            self._work.ring()

    def stop(self) -> None:
        self._stopping = True
        self._work.ring()

    async def run(self) -> None:
        """For ever: take a batch, step. A crash at any point leaves rows that are simply due."""
        tries = 0
        while not self._stopping:
            try:
                await self._turn()
                tries = 0
            except StoreUnavailable as fault:
                cause = f"store unavailable: {fault}"
                self._alert(Alarm.NONE, AlertCode.STORE_UNAVAILABLE, cause)
                await self._rest(pause_s(tries, self.context.dice))
                tries += 1

    async def drain(self) -> None:
        """Leave no lease behind: what was handed over and not asked about is due now."""
        while left := self.ring.pop(MAX_BATCH, self.context.clock()):
            await self._release(left)

    async def _release(self, batch: list[Transfer]) -> None:
        # A lease that cannot be given back runs out by itself.
        with contextlib.suppress(StoreUnavailable):
            await self.context.store.release(batch)

    async def _turn(self) -> None:
        # Silenced before looking: whoever adds work after the look rings again.
        self._work.silence()
        if self.closed:
            await self._probe()
            return
        if not (self._hinted or len(self.ring)):
            await self._rest()
            return
        with self.context.busy_owners.expecting() as expect:
            if batch := await self._batch(expect):
                await self._step(batch)

    async def _batch(self, expect: Expect) -> list[Transfer]:
        """From the table where something is due, else from the ring."""
        if not self._hinted:
            return await self._popped(expect)
        # Before the look: a hint that comes meanwhile may be about what the look did not see. The
        # other loop of this lane must not make the same look at the same time.
        self._hinted = False
        try:
            claimed = list(
                await self.context.store.claim(self.name, MAX_BATCH, self.context.tables)
            )
        except BaseException:
            self._hinted = True  # Nothing is known of what is due. Whoever rests goes on resting.
            raise
        if len(claimed) == MAX_BATCH:
            self.look()  # There is more, for the other loop too.
        return claimed or await self._popped(expect)

    async def _popped(self, expect: Expect) -> list[Transfer]:
        batch = self.ring.pop(MAX_BATCH, self.context.clock())
        if not batch:
            return []
        expect(owners_locked(self.context, batch))
        asked = list(await self.context.store.askable(batch, self.context.tables))
        if len(asked) < len(batch):
            kept = {transfer.id for transfer in asked}
            await self._release([transfer for transfer in batch if transfer.id not in kept])
        return asked

    async def _step(self, batch: list[Transfer]) -> None:
        try:
            self.well = await step(self.context, self.name, batch, split=self.well)
        except Unreachable as fault:
            self._close(str(fault))
            await self._release(batch)
            await self.drain()
            await self._note(str(fault))
            return
        if self.closed:
            self._open()
        # That the client raised something is no sign of life: the outage is not over yet.
        if self.unanswered and self.well:
            await self._answered()

    def _open(self) -> None:
        self.failures = 0
        self.ring.open = True
        self.look()

    def _close(self, reason: str) -> None:
        """No claims and no attempts until one probe is answered; one page for the whole lane."""
        if not self.unanswered:
            self._alert(Alarm.PAGE, AlertCode.LANE_UNREACHABLE, f"unreachable: {reason}")
        self.failures += 1
        self.unanswered += 1
        self.ring.open = False

    async def _note(self, reason: str) -> None:
        """Once per probe, for all transfers that wait: their own rows are not written.

        Kept until the system answers. That a probe found nothing to ask proves nothing.
        """
        context = self.context
        with contextlib.suppress(StoreUnavailable):
            await context.store.note_outage(self.name, context.worker, self.unanswered, reason)

    async def _answered(self) -> None:
        self.unanswered = 0
        self._alert(
            Alarm.NONE, AlertCode.LANE_UNREACHABLE, "cleared: reachable again", cleared=True
        )
        # A note that cannot be deleted counts no longer than two minutes.
        with contextlib.suppress(StoreUnavailable):
            await self.context.store.end_outage(self.name, self.context.worker)

    async def _probe(self) -> None:
        """One row at a time, until the system says anything; then all that is due goes on."""
        if self._probing:
            await self._rest(PROBE_CAP_S)  # Ended when the lane opens.
            return
        self._probing = True
        try:
            delay = min(PROBE_FIRST_S * 2 ** min(self.failures - 1, 10), PROBE_CAP_S)
            await self._rest(delay * (0.75 + self.context.dice.random() / 4))
            tables = self.context.tables
            batch = [] if self._stopping else await self.context.store.claim(self.name, 1, tables)
            if batch:
                await self._step(list(batch))
            else:
                # Others have finished what was due. The next row will tell how the system is, and
                # nobody is paged about it a second time.
                self._open()
        finally:
            self._probing = False

    def _alert(self, alarm: Alarm, code: AlertCode, cause: str, *, cleared: bool = False) -> None:
        self.context.alert(Alert(alarm, code, cause, self.name, cleared=cleared))

    async def _rest(self, seconds: float | None = None) -> None:
        """Until there is work, or the time is over."""
        if not self._stopping:
            await self._work.rest(seconds)
