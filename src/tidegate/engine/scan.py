"""What is due is looked for once per process, for all of its lanes together."""

from collections.abc import Mapping
from typing import Generic

from tidegate.core.answers import Alarm
from tidegate.core.ports import StoreUnavailable, Tx
from tidegate.engine.alerts import Alert, Code
from tidegate.engine.bell import Bell
from tidegate.engine.context import Means
from tidegate.engine.lanes import Lane
from tidegate.engine.write import pause_s


class Scan(Generic[Tx]):
    """Tells lanes that something is due in them. They claim it themselves, when they can ask.

    One look that mostly finds nothing, instead of one per lane. It keeps time by no clock that
    anybody can set.
    """

    def __init__(self, means: Means[Tx], lanes: Mapping[str, Lane[Tx]], scan_s: float) -> None:
        self.means, self.lanes, self.scan_s = means, lanes, scan_s
        self._stopping = False
        self._bell = Bell()

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
                self.means.alert(Alert(Alarm.NONE, Code.STORE_UNAVAILABLE, cause))
                await self._rest(pause_s(failures, self.means.dice))
                failures += 1
            else:
                await self._rest(self.scan_s)

    async def _look(self) -> None:
        means = self.means
        for name in await means.store.due(list(self.lanes), means.tables):
            self.lanes[name].look()

    async def _rest(self, seconds: float) -> None:
        await self._bell.rest(seconds)
