"""Repairs lease and due times after the database's clock was set back."""

import asyncio

from tidegate.core.answers import Alarm
from tidegate.core.ports import Store, StoreFault, Tx
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.context import EngineContext

CHECK_S = 5.0
MAX_ROWS = 10_000  # Repaired by one statement.
FAR_AHEAD_S = 60.0
ROUNDS_AFTER_STEP, ROUNDS_AT_START = 12, 2


async def repair_clock(context: EngineContext[Tx]) -> None:
    """Run forever: detect that the clock was set back, make waiting rows due, and page.

    Asking a system too early does no harm: the version of a transfer decides which answer counts,
    and a system that knows when it wants to be asked repeats that time in its answer.
    """
    # In the first rounds, rows that are due far in the future are repaired even if no step is
    # detected. After a step: a transaction that began before the step still writes the old time.
    # At the start: the process that detected a step may have died before it repaired the rows.
    rounds_left = ROUNDS_AT_START
    while True:
        await asyncio.sleep(CHECK_S)
        try:
            behind_s = await _repair(context.store, FAR_AHEAD_S if rounds_left else None)
        except StoreFault:
            continue  # The lanes and the scan report that the store is unavailable.
        rounds_left = max(rounds_left - 1, 0)
        if behind_s > 0:
            rounds_left = ROUNDS_AFTER_STEP
            message = f"the database's clock was set back by {behind_s:.0f} s; "
            message += "the transfers that were leased before are due again"
            context.alert(Alert(Alarm.PAGE, AlertCode.CLOCK_SET_BACK, message))


async def _repair(store: Store[Tx], beyond_s: float | None) -> float:
    """Return by how many seconds the clock was set back, 0 if it was not."""
    behind_s, repaired = await store.mend_clock(beyond_s, MAX_ROWS)
    while behind_s > 0 and repaired == MAX_ROWS:
        _, repaired = await store.mend_clock(0.0, MAX_ROWS)
    return behind_s
