"""Worlds in which somebody waits: for a COMMIT that lands late, or for somebody's lock."""

from collections.abc import Iterator

from msgspec.structs import replace

from tests.simulation.searches import Search, Trial, commits, found, seeds, without_cid
from tidegate.core.account import Account
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.simulation.auditor import CORE, LEDGER
from tidegate.simulation.faults import Fault, FaultPlan
from tidegate.simulation.inbox import FLOWS
from tidegate.simulation.limits_auditor import DailyAllowance
from tidegate.simulation.locks import hold
from tidegate.simulation.scenario import Scenario, run
from tidegate.simulation.workload import ASSET, OWNERS, SPOT, Behaviour, CoreTrouble
from tidegate.systems.ledger import FUNDING
from tidegate.systems.ledger.memory import ACCOUNTS

LATE = 0.3
HELD, HELD_S = OWNERS[0], 20.0
FEW_S = 8.0  # Two lock timeouts, and then the search for what is held.


class Landing:
    """A fate: many COMMITs get no reply, and happen some seconds later all the same."""

    def __init__(self, scene: Scenario) -> None:
        self.dice = scene.world.dice

    def suffers(self, point: str) -> Fault | None:
        return Fault.LATE if point == "commit" and self.dice.random() < LATE else None


class Unheard(Landing):
    """A fate: many claims are made, and who made them does not learn of it."""

    def suffers(self, point: str) -> Fault | None:
        return Fault.REPLY_LOST if point == "claim" and self.dice.random() < LATE else None


def daily_limits(scene: Scenario) -> None:
    """Each owner asks for one transfer more than the limit allows, and COMMITs land late."""
    world = scene.world
    world.fates, world.terms = (
        Landing(scene),
        world.terms._replace(daily=DailyAllowance(2, 100), added=None),
    )
    scene.wishes = [
        Request(
            owner,
            "internal_transfer",
            {"source": Party(LEDGER, FUNDING, owner), "target": Party(CORE, SPOT, owner)},
            ASSET,
            10,
            f"cid-{number}",
        )
        for owner in OWNERS
        for number in range(3)
    ]
    scene.wishes += [replace(wish) for wish in scene.wishes]


def used_up(scene: Scenario) -> None:
    """Each owner may make one transfer a day, asks for one, and gives no key."""
    without_cid(scene)
    scene.world.terms = scene.world.terms._replace(daily=DailyAllowance(1, 100))


def a_held_account(scene: Scenario) -> None:
    """Nothing fails. A stranger holds one account, and others must not wait for it."""
    world, begin = scene.world, scene._begin
    scene.nodes, scene.spread_s = 1, 0.5
    scene.clients.patience_s = HELD_S
    scene.wishes = [
        Request(
            owner,
            "internal_transfer",
            {"source": Party(*source, owner), "target": Party(*target, owner)},
            ASSET,
            10,
            f"cid-{number}",
        )
        for number in range(3)
        for owner in OWNERS
        for source, target in (((LEDGER, FUNDING), (CORE, SPOT)), ((CORE, SPOT), (LEDGER, FUNDING)))
    ]
    scene.wishes = [
        replace(wish, cid=f"{wish.cid}-{wish.parties['source'].system}") for wish in scene.wishes
    ]

    async def begun() -> None:
        await begin()
        world.later(hold(world, ACCOUNTS, Account(HELD, FUNDING, ASSET), HELD_S))
        world.loop.call_later(FEW_S, look)

    def look() -> None:
        lives = [life.transfer for life in world.auditor.lives.values()]
        ended = {(transfer.owner, transfer.cid) for transfer in lives if transfer.lane is None}
        late = [wish for wish in scene.wishes if (wish.owner, wish.cid) not in ended]
        others = sum(wish.owner != HELD for wish in late)
        if others:
            world.auditor.blame(f"{others} transfers of others wait for a held account")

    scene._begin = begun  # type: ignore[method-assign]


def held() -> Search:
    def trials() -> Iterator[Trial]:
        for seed in range(20):
            yield found(f"seed {seed}, held", run(seed, FaultPlan(), a_held_account))

    return Search("held", trials)


def by_programs(scene: Scenario) -> None:
    """All is asked for in the inbox."""
    world = scene.world
    world.terms = world.terms._replace(inbox=True, daily=None)
    scene.wishes = [wish for wish in scene.wishes if wish.flow in FLOWS]
    scene.clients.by_inbox = 1.0


def late_programs(scene: Scenario) -> None:
    """The same, and many COMMITs land late."""
    by_programs(scene)
    scene.world.fates = Landing(scene)


def workers_clocks(scene: Scenario) -> None:
    """For long the clocks of workers are often an hour ahead, and claims are often not heard of.

    Nobody dies: whoever starts makes due what would wait for long.
    """
    mood = Behaviour(0.5, siege=CoreTrouble.BUSY, clocks=0.9, members=0.0)
    mood.siege_s = (140.0, 170.0)  # A claim that nobody hears of costs the time of a lease.
    scene.feel(mood)
    scene.world.fates = Unheard(scene)


WORKERS_CLOCKS = seeds(workers_clocks, 10)


def out_of_the_core(scene: Scenario) -> None:
    """One owner's money leaves the core, and COMMITs that bring it to the ledger land late."""
    world = scene.world
    scene.feel(Behaviour())
    scene.nodes, scene.spread_s = 3, 3.0
    parties = {"source": Party(CORE, SPOT, HELD), "target": Party(LEDGER, FUNDING, HELD)}
    scene.wishes = [
        Request(HELD, "internal_transfer", parties, ASSET, 10, f"cid-{number}")
        for number in range(30)
    ]
    world.terms = world.terms._replace(added=None, daily=None, inbox=False)
    world.fates = Landing(scene)


OUT_OF_THE_CORE = seeds(out_of_the_core, 60)
PROGRAMS, LATE_PROGRAMS = seeds(by_programs), seeds(late_programs, 60)
HELD_ACCOUNT = held()
USED_UP = commits(used_up)
DAILY_LIMITS = seeds(daily_limits, 60)
