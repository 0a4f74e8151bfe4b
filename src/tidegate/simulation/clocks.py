"""Clocks that jump, and the check that long outages are recorded."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.core.ports import Outage
from tidegate.simulation.auditor import CORE
from tidegate.store.memory_store import OUTAGES

if TYPE_CHECKING:
    from tidegate.simulation.scenario import Scenario
    from tidegate.simulation.world import World

HOUR_S = 3600.0
NOTICED_S = 15.0  # Within this time a worker notices that the database's clock was set.
OLD_S = 60.0
NOTED = 3  # The failed probes that must be recorded for a transfer that has waited OLD_S.


def disturb_clocks(scene: "Scenario") -> None:
    """Maybe set the clock of a worker, of the database, or of the core."""
    world, behaviour, dice = scene.world, scene.behaviour, scene.world.dice
    if (living := world.living()) and dice.random() < behaviour.clock_jumps:
        scene.events["clock"] += 1
        dice.choice(living).skew_s = dice.choice((-HOUR_S, 0.0, HOUR_S))
    if behaviour.database_clock_jumps and dice.random() < behaviour.database_clock_jumps:
        scene.events["database clock"] += 1
        set_clock(world, dice.choice((-HOUR_S, 0.0, HOUR_S)))
        if behaviour.retiring:
            world.disturbed, world.host.skew_s = True, dice.choice((-HOUR_S, 0.0, 0.0, HOUR_S))


def set_clock(world: "World", skew_s: float) -> None:
    """Set the database's clock, even while transactions are open."""
    if skew_s == world.database_skew_s:
        return
    world.note("database", f"its clock is set by {skew_s - world.database_skew_s:+.0f} s")
    world.database_skew_s, world.disturbed = skew_s, True
    # Waiting times are counted again from when a worker has noticed.
    world.auditor.clock_steps += 1
    for id_ in world.auditor.open:
        world.auditor.transfers[id_].since_s = world.loop.now_s + NOTICED_S


def check_outage_notes(world: "World") -> None:
    """For each transfer that waits for an unreachable core, failed probes must be recorded.

    There are fewer probes when the database loses claims, and a record can be lost as well.
    """
    now_s = world.loop.now_s
    lost = sum(count for (point, _), count in world.faults.items() if point == "outage")
    if world.auditor.clock_steps or all(
        now_s - worker.began_s < OLD_S for worker in world.living()
    ):
        return  # The worker that counted has died, and its replacement has just started.
    rows: dict[Any, Any] = world.tables.rows[OUTAGES]
    outages: Iterable[Outage] = rows.values()
    for id_ in sorted(world.auditor.open):
        audited = world.auditor.transfers[id_]
        if audited.transfer.lane == CORE and now_s - audited.since_s > OLD_S:
            at_us = audited.transfer.updated_us
            probes = max((outage.probes_since(at_us) for outage in outages), default=0)
            tried = max(
                sum(s > audited.since_s for s in worker.unreached_s) for worker in world.living()
            )
            # The record of the last call may not be written yet.
            if probes < min(NOTED, tried - lost - 1):
                world.auditor.report(f"{id_} waits for {CORE}, but too few probes are recorded")
