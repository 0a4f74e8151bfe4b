"""What is due is looked for once per process, for all of its lanes together."""

from collections.abc import Mapping
from typing import Generic

from tidegate.core.answers import Alarm
from tidegate.core.ports import StoreUnavailable, Tx
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.context import EngineContext
from tidegate.engine.lane import Lane
from tidegate.engine.wakeup import Wakeup
from tidegate.engine.write_batch import pause_s


class DueScan(Generic[Tx]):
    """Tells lanes that something is due in them. They claim it themselves, when they can ask.

    One look that mostly finds nothing, instead of one per lane. It keeps time by no clock that
    anybody can set.
    """

    def __init__(
        self, context: EngineContext[Tx], lanes: Mapping[str, Lane[Tx]], scan_s: float
    ) -> None:
        self.context, self.lanes, self.scan_s = context, lanes, scan_s
        self._stopping = False
        self._bell = Wakeup()

    def stop(self) -> None:
        self._stopping = True
        self._bell.ring()

    async def run(self) -> None:
        failures = 0
        while not self._stopping:
            try:
                await self._look()
                failures = 0
            except StoreUnavailable as fault:
                cause = f"store unavailable: {fault}"
                self.context.alert(Alert(Alarm.NONE, AlertCode.STORE_UNAVAILABLE, cause))
                await self._rest(pause_s(failures, self.context.dice))
                failures += 1
            else:
                await self._rest(self.scan_s)

    async def _look(self) -> None:
        context = self.context
        for name in await context.store.due(list(self.lanes), context.tables):
            self.lanes[name].look()

    async def _rest(self, seconds: float) -> None:
        await self._bell.rest(seconds)
