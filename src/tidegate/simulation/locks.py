"""Locks of strangers: a session that is idle in a transaction holds somebody's account."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from tidegate.core.ports import Account, LockTimeout
from tidegate.simulation.people import ASSET, MEMBERS
from tidegate.store.memory import Twin
from tidegate.systems.ledger import FUNDING
from tidegate.systems.ledger.memory import ACCOUNTS

if TYPE_CHECKING:
    from tidegate.simulation.scenario import Scenario
    from tidegate.simulation.world import World

HELD_S = (3.0, 9.0)  # Longer than a lock is waited for, often several times.
LOOK_S = 0.1


def meddle_with_locks(scene: "Scenario") -> None:
    world, dice = scene.world, scene.world.dice
    if scene.mood.holds and dice.random() < scene.mood.holds:
        book = dice.choice((FUNDING, *MEMBERS))
        account = Account(dice.choice(scene.owners), book, ASSET)
        world.later(hold(world, account, dice.uniform(*HELD_S)))


async def hold(world: "World", account: Account, seconds: float) -> None:
    """As soon as nobody else has it, and until people end the session when all heals."""
    world.meddling["held by a stranger"] += 1
    world.note("stranger", f"holds {account.owner} {account.book} for {seconds:.1f} s")
    stranger = Twin(world.tables, round(world.database_time() * 1_000_000), seconds)
    until_s = world.loop.now_s + seconds
    with suppress(LockTimeout):  # Another stranger holds it for long.
        await stranger.lock(ACCOUNTS, [account])
        while world.loop.now_s < until_s and not world.healed:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
    stranger.end()
    world.note("stranger", f"lets go of {account.owner} {account.book}")
