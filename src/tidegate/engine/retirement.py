"""Retirement: the core may forget the operations of transfers that ended long ago."""

from collections.abc import Awaitable, Callable
from uuid import UUID

from tidegate.core.answers import Alarm
from tidegate.core.ids import Horizon
from tidegate.core.ports import Floors
from tidegate.engine.alerts import Alert, AlertCode


class Retirement:
    """Rounds of it, minutes apart.

    A floor is stored first, so that no new id is made below it, and is sent in the next round. A
    birth whose transaction began before the floor was stored has ended by then. If it is still
    open, the floor that is sent stays below it.
    """

    def __init__(
        self,
        floors: Floors,
        retire: Callable[[UUID], Awaitable[UUID]],
        clock: Callable[[], float],
        alert: Callable[[Alert], None],
        horizon: Horizon = Horizon(),  # noqa: B008  It is frozen.
    ) -> None:
        self._horizon = horizon
        self._floors, self._retire, self._clock, self._alert = floors, retire, clock, alert
        self._stored: UUID | None = None

    async def round(self) -> UUID | None:
        """Store a new floor and send the last one; return the floor of the core, if it was told."""
        # Two clocks must agree, because a floor that is too high cannot be taken back.
        latest = self._horizon.latest(self._clock())
        lowest = min(await self._floors.lowest(self._horizon.horizon_s), latest)
        stored, kept = await self._floors.raise_to(lowest), None
        if self._stored is not None:
            floor = min(self._stored, lowest)
            kept = await self._retire(floor)
            if kept < floor:
                cause = f"the core refused the floor {floor}: its clock is behind ours"
                self._alert(Alert(Alarm.PAGE, AlertCode.FLOOR_REFUSED, cause))
        # Only now: a round that failed is repeated soon, and this floor is not old enough then.
        self._stored = stored
        return kept
