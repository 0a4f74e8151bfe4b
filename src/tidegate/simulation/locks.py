"""Foreign sessions that are idle in a transaction and hold a row that workers need."""

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

HELD_S = (3.0, 9.0)  # Longer than a lock timeout, often several times.
POLL_S = 0.5
TRANSFERS_HELD = 0.3  # The share of held rows that are open transfers. The others are accounts.


def disturb_locks(scene: "Scenario") -> None:
    """Maybe let a foreign session lock an account or an open transfer."""
    world, dice = scene.world, scene.world.dice
    if scene.behaviour.lock_holds and dice.random() < scene.behaviour.lock_holds:
        table, key = ACCOUNTS, _some_account(scene)
        if world.auditor.open and dice.random() < TRANSFERS_HELD:
            table, key = TRANSFERS, dice.choice(sorted(world.auditor.open))
        world.in_background(hold(world, table, key, dice.uniform(*HELD_S)))


def _some_account(scene: "Scenario") -> Hashable:
    dice = scene.world.dice
    book = dice.choice((FUNDING, *MEMBERS))
    return Account(dice.choice(scene.owners), book, ASSET)


async def hold(world: "World", table: str, key: Hashable, seconds: float) -> None:
    """Hold a row from when it is free, for the given time or until the faults end."""
    world.events["held by another session"] += 1
    world.note("session", f"holds {key} of {table} for {seconds:.1f} s")
    session = TwinTransaction(world.tables, round(world.database_time() * 1_000_000), seconds)
    until_s = world.loop.now_s + seconds
    with suppress(LockTimeout):  # Another foreign session holds it for longer than the timeout.
        await session.lock(table, [key])
        while world.loop.now_s < until_s and not world.faults_ended:
            await sleep(POLL_S)
    session.end()
    world.note("session", f"releases {key}")
