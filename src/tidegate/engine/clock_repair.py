"""The database's clock may be set back. What was leased before then must not wait for it."""

import asyncio

from tidegate.core.answers import Alarm
from tidegate.core.ports import Store, StoreFault, Tx
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.context import EngineContext

EVERY_S = 5.0
MENDED = 10_000  # Rows in one statement.
LATE_S = 60.0
LATE_ROUNDS, FIRST_ROUNDS = 12, 2


async def keep_clock(context: EngineContext[Tx]) -> None:
    """For ever: notice a step back, make due what would wait, and tell somebody.

    To be asked too early harms no transfer: the version decides, and a system that knows when it
    wants to be asked says so again.
    """
    # What is due far away is looked at a few times more: after a step, because a transaction that
    # began before it still writes the old time; and at the start, because whoever saw a step may
    # have died of it.
    rounds = FIRST_ROUNDS
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            behind_s = await _mend(context.store, LATE_S if rounds else None)
        except StoreFault:
            continue  # Whoever asks the store for work tells of it.
        rounds = max(rounds - 1, 0)
        if behind_s > 0:
            rounds = LATE_ROUNDS
            cause = f"the database's clock was set back by {behind_s:.0f} s"
            context.alert(Alert(Alarm.PAGE, AlertCode.CLOCK_SET_BACK, cause))


async def _mend(store: Store[Tx], beyond_s: float | None) -> float:
    behind_s, mended = await store.mend_clock(beyond_s, MENDED)
    while behind_s > 0 and mended == MENDED:
        _, mended = await store.mend_clock(0.0, MENDED)
    return behind_s
