"""Looks for due transfers, once per process for all of its lanes together."""

from collections.abc import Mapping
from typing import Generic

from tidegate.core.answers import Alarm
from tidegate.core.ports import StoreUnavailable, Tx
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.context import EngineContext
from tidegate.engine.lane import Lane
from tidegate.engine.wakeup import Wakeup
from tidegate.engine.write_batch import retry_delay_s


class DueScan(Generic[Tx]):
    """Notifies each lane that has due transfers. The lane claims them when it is ready.

    One statement for all lanes replaces one per lane: most scans find nothing. The interval is
    measured by the event loop's clock, which does not change when the system time is set.
    """

    def __init__(
        self, context: EngineContext[Tx], lanes: Mapping[str, Lane[Tx]], scan_s: float
    ) -> None:
        self.context, self.lanes, self.scan_s = context, lanes, scan_s
        self._stopping = False
        self._wakeup = Wakeup()

    def stop(self) -> None:
        self._stopping = True
        self._wakeup.set()

    async def run(self) -> None:
        failures = 0
        while not self._stopping:
            try:
                await self._look()
                failures = 0
            except StoreUnavailable as fault:
                message = f"the database is unavailable, the scan tries again: {fault}"
                self.context.alert(Alert(Alarm.NONE, AlertCode.STORE_UNAVAILABLE, message))
                await self._wakeup.wait(retry_delay_s(failures, self.context.dice))
                failures += 1
            else:
                await self._wakeup.wait(self.scan_s)

    async def _look(self) -> None:
        context = self.context
        for name in await context.store.due(list(self.lanes), context.tables):
            self.lanes[name].look()
