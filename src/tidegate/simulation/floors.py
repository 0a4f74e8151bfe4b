"""Retirement in a world of seconds: floors rise while clocks are set."""

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
ROUND_S = 20.0  # Longer than any transaction lives here, as ten minutes are in earnest.
RETIRING_S = 75.0  # How long a seed lasts in which there are some rounds.
RETIRED = "retired"


async def retire_for_ever(node: "SimWorker", core: TradingCoreClient) -> None:
    world = node.world
    retirement = Retirement(node.store, core.retire, node.clock, node.alert, HORIZON)
    while True:
        await sleep(world.dice.uniform(ROUND_S, ROUND_S * 1.2))
        with suppress(Unreachable, StoreFault):
            floor = await retirement.round()
            if floor is not None:
                world.meddling[RETIRED] += 1
                world.note(node.name, f"the core has retired below {floor}")
