"""Clocks that are set, and what must be known of a long wait."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.core.ports import Outage
from tidegate.simulation.auditor import CORE
from tidegate.store.memory_store import OUTAGES

if TYPE_CHECKING:
    from tidegate.simulation.scenario import Scenario
    from tidegate.simulation.world import World

HOUR_S = 3600.0
NOTICED_S = 15.0  # Within which somebody notices that the database's clock was set.
OLD_S = 60.0
NOTED = 3  # Failed probes that a transfer must show which has waited for so long.


def meddle_with_clocks(scene: "Scenario") -> None:
    """The clock of a worker jumps, or that of the database."""
    world, mood, dice = scene.world, scene.mood, scene.world.dice
    if (living := world.living()) and dice.random() < mood.clocks:
        scene.meddling["clock"] += 1
        dice.choice(living).skew_s = dice.choice((-HOUR_S, 0.0, HOUR_S))
    if mood.steps and dice.random() < mood.steps:
        scene.meddling["database clock"] += 1
        set_clock(world, dice.choice((-HOUR_S, 0.0, HOUR_S)))
        if mood.retiring:
            world.besieged, world.host.skew_s = True, dice.choice((-HOUR_S, 0.0, 0.0, HOUR_S))


def set_clock(world: "World", shift_s: float) -> None:
    """Set the database's clock, whoever has a transaction open."""
    if shift_s == world.shift_s:
        return
    world.note("database", f"its clock is set by {shift_s - world.shift_s:+.0f} s")
    world.shift_s, world.besieged = shift_s, True
    # What waits is counted anew, once somebody has noticed.
    world.auditor.steps += 1
    for id_ in world.auditor.open:
        world.auditor.lives[id_].since_s = world.loop.now_s + NOTICED_S


def judge_notes(world: "World") -> None:
    """Each transfer that waits for a core which is away must show how often it was tried.

    The core is tried less often when the database loses claims, and a note can be lost as well.
    """
    now_s = world.loop.now_s
    lost = sum(count for (point, _), count in world.faults.items() if point == "outage")
    if world.auditor.steps or all(now_s - node.began_s < OLD_S for node in world.living()):
        return  # Whoever counted is gone, and the next has hardly begun.
    rows: dict[Any, Any] = world.tables.rows[OUTAGES]
    outages: Iterable[Outage] = rows.values()
    for id_ in sorted(world.auditor.open):
        life = world.auditor.lives[id_]
        if life.transfer.lane == CORE and now_s - life.since_s > OLD_S:
            at_us = life.transfer.updated_us
            probes = max((outage.probes_since(at_us) for outage in outages), default=0)
            tried = max(sum(s > life.since_s for s in node.unreached_s) for node in world.living())
            # The note of the last call may still be on its way.
            if probes < min(NOTED, tried - lost - 1):
                world.auditor.blame(f"{id_} waits for {CORE}, and nothing says how often")
