"""Retirement: lets the core forget the operations of transfers that ended long ago."""

from collections.abc import Awaitable, Callable
from uuid import UUID

from tidegate.core.answers import Alarm
from tidegate.core.ids import Horizon
from tidegate.core.ports import Floors
from tidegate.engine.alerts import Alert, AlertCode


class Retirement:
    """Raises the floor in rounds that are minutes apart.

    A round stores a new floor, so that no new id is created below it. The next round sends that
    floor to the core. By then, a creation whose transaction began before the floor was stored has
    ended. If the created transfer is still open, the floor that is sent stays below it.
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
        """Store a new floor and send the previous one. Return the core's floor if one was sent."""
        # Both clocks must allow the floor, because a floor that is too high cannot be lowered.
        latest = self._horizon.latest(self._clock())
        lowest = min(await self._floors.lowest(self._horizon.horizon_s), latest)
        stored, core_floor = await self._floors.raise_to(lowest), None
        if self._stored is not None:
            floor = min(self._stored, lowest)
            core_floor = await self._retire(floor)
            if core_floor < floor:
                cause = (
                    f"the core does not forget transfers below {floor}: the clock of its machine is"
                    " more than an hour behind the clock of this machine; set the clocks right"
                )
                self._alert(Alert(Alarm.PAGE, AlertCode.FLOOR_REFUSED, cause))
        # Set last: a failed round is repeated soon, and this floor would not be old enough then.
        self._stored = stored
        return core_floor
