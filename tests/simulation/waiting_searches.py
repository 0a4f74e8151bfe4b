"""Searches for bugs about waiting: for COMMITs that take effect late, and for locks."""

from collections.abc import Iterator

from msgspec.structs import replace

from tests.simulation.searches import Search, Trial, commits, seeds, trial_of, without_cid
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
FEW_S = 8.0  # Two lock timeouts, and the time to find the held account.


class LateCommits:
    """A fault source: many COMMITs get no reply and take effect some seconds later."""

    def __init__(self, scene: Scenario) -> None:
        self.dice = scene.world.dice

    def next_fault(self, point: str) -> Fault | None:
        return Fault.LATE if point == "commit" and self.dice.random() < LATE else None


class LostClaims(LateCommits):
    """A fault source: the replies to many claims are lost."""

    def next_fault(self, point: str) -> Fault | None:
        return Fault.REPLY_LOST if point == "claim" and self.dice.random() < LATE else None


def daily_limits(scene: Scenario) -> None:
    """Each owner requests one transfer more than the limit allows, and COMMITs are late."""
    world = scene.world
    world.fault_source, world.variant = (
        LateCommits(scene),
        world.variant._replace(daily=DailyAllowance(2, 100), added=None),
    )
    scene.requests = [
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
    scene.requests += [replace(request) for request in scene.requests]


def limit_used_up(scene: Scenario) -> None:
    """Each owner is allowed one transfer a day, and requests one without a key."""
    without_cid(scene)
    scene.world.variant = scene.world.variant._replace(daily=DailyAllowance(1, 100))


def a_held_account(scene: Scenario) -> None:
    """Nothing fails. A foreign session holds one account, and other owners must not wait."""
    world, begin = scene.world, scene._begin
    scene.workers, scene.spread_s = 1, 0.5
    scene.clients.timeout_s = HELD_S
    scene.requests = [
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
    scene.requests = [
        replace(request, cid=f"{request.cid}-{request.parties['source'].system}")
        for request in scene.requests
    ]

    async def begin_and_disturb() -> None:
        await begin()
        world.in_background(hold(world, ACCOUNTS, Account(HELD, FUNDING, ASSET), HELD_S))
        world.loop.call_later(FEW_S, check_others)

    def check_others() -> None:
        transfers = [audited.transfer for audited in world.auditor.transfers.values()]
        ended = {(transfer.owner, transfer.cid) for transfer in transfers if transfer.lane is None}
        late = [request for request in scene.requests if (request.owner, request.cid) not in ended]
        others = sum(request.owner != HELD for request in late)
        if others:
            world.auditor.report(f"{others} transfers of other owners wait for a held account")

    scene._begin = begin_and_disturb  # type: ignore[method-assign]


def held_account() -> Search:
    def trials() -> Iterator[Trial]:
        for seed in range(20):
            yield trial_of(f"seed {seed}, held", run(seed, FaultPlan(), a_held_account))

    return Search("held", trials)


def by_programs(scene: Scenario) -> None:
    """All requests are made by the inbox."""
    world = scene.world
    world.variant = world.variant._replace(inbox=True, daily=None)
    scene.requests = [request for request in scene.requests if request.flow in FLOWS]
    scene.clients.inbox_share = 1.0


def late_programs(scene: Scenario) -> None:
    """All requests are made by the inbox, and many COMMITs are late."""
    by_programs(scene)
    scene.world.fault_source = LateCommits(scene)


def workers_clocks(scene: Scenario) -> None:
    """Workers' clocks are often an hour ahead, and replies to claims are often lost.

    No worker dies, because a worker that starts makes long waiting rows due.
    """
    behaviour = Behaviour(0.5, core_trouble=CoreTrouble.BUSY, clock_jumps=0.9, members=0.0)
    behaviour.trouble_s = (140.0, 170.0)  # A lost claim costs the time of a lease.
    scene.set_behaviour(behaviour)
    scene.world.fault_source = LostClaims(scene)


WORKERS_CLOCKS = seeds(workers_clocks, 10)


def out_of_the_core(scene: Scenario) -> None:
    """One owner's money leaves the core, and the COMMITs that credit the ledger are late."""
    world = scene.world
    scene.set_behaviour(Behaviour())
    scene.workers, scene.spread_s = 3, 3.0
    parties = {"source": Party(CORE, SPOT, HELD), "target": Party(LEDGER, FUNDING, HELD)}
    scene.requests = [
        Request(HELD, "internal_transfer", parties, ASSET, 10, f"cid-{number}")
        for number in range(30)
    ]
    world.variant = world.variant._replace(added=None, daily=None, inbox=False)
    world.fault_source = LateCommits(scene)


OUT_OF_THE_CORE = seeds(out_of_the_core, 60)
PROGRAMS, LATE_PROGRAMS = seeds(by_programs), seeds(late_programs, 60)
HELD_ACCOUNT = held_account()
LIMIT_USED_UP = commits(limit_used_up)
DAILY_LIMITS = seeds(daily_limits, 60)
