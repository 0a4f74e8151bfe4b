"""Locks of strangers: a session that is idle in a transaction holds a row that others need."""

from collections.abc import Hashable
from contextlib import suppress
from typing import TYPE_CHECKING

from tidegate.core.account import Account
from tidegate.core.ports import LockTimeout
from tidegate.simulation.loop import sleep
from tidegate.simulation.workload import ASSET, MEMBERS
from tidegate.store.memory_tables import TRANSFERS
from tidegate.store.memory_transaction import TwinTransaction
from tidegate.systems.ledger import FUNDING
from tidegate.systems.ledger.memory import ACCOUNTS

if TYPE_CHECKING:
    from tidegate.simulation.scenario import Scenario
    from tidegate.simulation.world import World

HELD_S = (3.0, 9.0)  # Longer than a lock is waited for, often several times.
LOOK_S = 0.5
TRANSFERS_HELD = 0.3  # So often it is the row of an open transfer.


def meddle_with_locks(scene: "Scenario") -> None:
    world, dice = scene.world, scene.world.dice
    if scene.mood.holds and dice.random() < scene.mood.holds:
        table, key = ACCOUNTS, _some_account(scene)
        if world.auditor.open and dice.random() < TRANSFERS_HELD:
            table, key = TRANSFERS, dice.choice(sorted(world.auditor.open))
        world.later(hold(world, table, key, dice.uniform(*HELD_S)))


def _some_account(scene: "Scenario") -> Hashable:
    dice = scene.world.dice
    book = dice.choice((FUNDING, *MEMBERS))
    return Account(dice.choice(scene.owners), book, ASSET)


async def hold(world: "World", table: str, key: Hashable, seconds: float) -> None:
    """As soon as nobody else has it, and until people end the session when all heals."""
    world.meddling["held by a stranger"] += 1
    world.note("stranger", f"holds {key} of {table} for {seconds:.1f} s")
    stranger = TwinTransaction(world.tables, round(world.database_time() * 1_000_000), seconds)
    until_s = world.loop.now_s + seconds
    with suppress(LockTimeout):  # Another stranger holds it for long.
        await stranger.lock(table, [key])
        while world.loop.now_s < until_s and not world.healed:
            await sleep(LOOK_S)
    stranger.end()
    world.note("stranger", f"lets go of {key}")
