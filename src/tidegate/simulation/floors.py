"""Retirement of operations in the simulation: the floor rises while clocks jump."""

from contextlib import suppress
from typing import TYPE_CHECKING

from tidegate.core.answers import Unreachable
from tidegate.core.ids import Horizon
from tidegate.core.ports import StoreFault
from tidegate.engine.retirement import Retirement
from tidegate.simulation.loop import sleep
from tidegate.systems.trading import TradingCoreClient

if TYPE_CHECKING:
    from tidegate.simulation.world import SimWorker

HORIZON = Horizon(20.0, 5.0)
ROUND_S = 20.0  # Longer than any transaction here, like the ten minutes in production.
RETIRING_S = 75.0  # The length of a seed with retirement: time for some rounds.
RETIRED = "retired"


async def retire_periodically(worker: "SimWorker", core: TradingCoreClient) -> None:
    world = worker.world
    retirement = Retirement(worker.store, core.retire, worker.clock, worker.alert, HORIZON)
    while True:
        await sleep(world.dice.uniform(ROUND_S, ROUND_S * 1.2))
        with suppress(Unreachable, StoreFault):
            floor = await retirement.round()
            if floor is not None:
                world.events[RETIRED] += 1
                world.note(worker.name, f"the core has retired below {floor}")
