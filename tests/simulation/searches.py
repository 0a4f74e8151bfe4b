"""Ways to look for a planted bug: many tries, each with a name, until one of them finds it."""

import asyncio
import copy
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeAlias
from uuid import UUID

from msgspec.structs import replace

from tests.contracts.core_systems import core_in_memory
from tests.contracts.ledger_systems import ledger_twin
from tests.contracts.surroundings import Place
from tests.contracts.systems import Opening
from tests.trading_core.mutations import UNDETECTED, Written, flips, judged, truncations
from tidegate.certify import CHECKS, CheckOutcome, attempt
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.simulation.auditor import CORE, LEDGER
from tidegate.simulation.clocks import HOUR_S, set_clock
from tidegate.simulation.disk import DiskSurroundings, SimDisk
from tidegate.simulation.faults import KINDS, Fault, FaultPlan
from tidegate.simulation.loop import START_S
from tidegate.simulation.result import SeedResult
from tidegate.simulation.scenario import GUILDS, Scenario, run
from tidegate.simulation.store import MARKS
from tidegate.simulation.workload import (
    ASSET,
    LONG_SIEGE_S,
    OWNERS,
    POOL_S,
    SPOT,
    TRANSFERS,
    Behaviour,
    CoreTrouble,
    requests,
)
from tidegate.simulation.world import World, until
from tidegate.systems.guild import payment
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, LedgerStatus

BUDGET = 200  # Seeds in which a bug must be found.
PROMPT_S = 2.0  # Within which all has ended where nothing fails: less than a lock is waited for.
BRAKE_S = 0.1  # Within which whoever has looked at the brake before it was pulled has asked.
BEYOND_FLOATS = 2**53
STALLS = 0.2

Alter: TypeAlias = Callable[[Scenario], None]


class Trial(NamedTuple):
    """One try: «seed 17», and what was wrong; nothing, if all went well."""

    name: str
    fault: str


class Search(NamedTuple):
    name: str
    trials: Callable[[], Iterator[Trial]]


def seeds(alter: Alter | None = None, budget: int = BUDGET) -> Search:
    """Dice, in the usual world or in one that is bent towards what is rare."""
    world = "" if alter is None else alter.__name__.replace("_", " ")

    def trials() -> Iterator[Trial]:
        for seed in range(budget):
            yield found(f"seed {seed}{world and f', {world}'}", run(seed, None, alter))

    return Search(world or "seeds", trials)


def found(name: str, result: SeedResult) -> Trial:
    fault = result.fault
    return Trial(name, "" if fault is None else f"{type(fault).__name__}: {fault}")


# Worlds that are bent.


def snapshots(scene: Scenario) -> None:
    """A snapshot every few operations, and somewhere in between the power goes."""
    world, begin = scene.world, scene._begin
    world.terms = world.terms._replace(snapshot_records=4)

    async def begun() -> None:
        await begin()
        soon_s = world.dice.uniform(1.0, scene.spread_s)
        asyncio.get_running_loop().call_later(soon_s, cut)

    def cut() -> None:
        world.besieged = True  # Whoever is called about it is called rightly.
        world.host.crash(Fault.POWER_LOST)

    scene._begin = begun  # type: ignore[method-assign]


def busy(scene: Scenario) -> None:
    scene.mood.siege = CoreTrouble.BUSY


def long_outage(scene: Scenario) -> None:
    """The core is away for a quarter of an hour and more."""
    scene.mood.siege, scene.mood.siege_s = CoreTrouble.OUTAGE, LONG_SIEGE_S


def database_clock(scene: Scenario) -> None:
    """The database's clock is set, to and fro, and is behind at the end."""
    scene.feel(Behaviour(0.3, steps=0.5, members=0.0))
    heal = scene._heal

    def heals() -> None:
        set_clock(scene.world, -HOUR_S)
        heal()

    scene._heal = heals  # type: ignore[method-assign]


def floors(scene: Scenario) -> None:
    """The core forgets what is over while all clocks are set to and fro."""
    scene.mood = Behaviour(1.0, steps=0.2, clocks=0.1, members=0.0)
    scene.retire()
    scene.wishes = requests(scene.world.dice, scene.mood)


def stranger(scene: Scenario) -> None:
    scene.mood.siege = CoreTrouble.STRANGER


def old_copy(scene: Scenario) -> None:
    """For a while the core runs on a copy of its directory that was made at the beginning."""
    scene.mood.siege = CoreTrouble.STRANGER
    world, host, begin, besiege = scene.world, scene.world.host, scene._begin, scene._besiege
    start, repeat = host.start, world.network._repeat

    def repeats(hello: bytes, chunk: bytes) -> None:
        # A copy that is asked all that the original was asked since is as good as the original.
        if not host.stranger:
            repeat(hello, chunk)

    world.network._repeat = repeats  # type: ignore[method-assign]

    async def begun() -> None:
        await begin()
        copied = copy.deepcopy(host.platter)
        position = world.auditor.position

        def start_on_a_copy() -> None:
            if not host.stranger:
                start()
                return
            host.context, host.running = Context(), True
            hands = DiskSurroundings(world.fate, world.dice, lambda _: None, host.crash)
            host.disk = SimDisk(copy.deepcopy(copied), hands)
            world.loop.create_task(host._live(host.disk), context=host.context)

        async def besieged() -> None:
            # Before anybody was told more, the copy is as good as the original.
            await until(lambda: _known(world) > position, 0.2)
            await besiege()

        host.start = start_on_a_copy  # type: ignore[method-assign]
        scene._besiege = besieged  # type: ignore[method-assign]

    scene._begin = begun  # type: ignore[method-assign]


def _known(world: World) -> int:
    """The least that any process remembers of the core; nothing, while one has not asked it."""
    marks = world.tables.rows[MARKS].values()
    return min((mark[1] for mark in marks), default=0)


def refunds(scene: Scenario) -> None:
    """Money leaves the core, cannot arrive, and must go back."""
    mood = Behaviour(0.3, meddling=1.0, books=(FUNDING, OUTSIDE), harsh=0.8, from_core=0.9)
    mood.worse = (LedgerStatus.DISABLED,)
    scene.feel(mood)
    scene.world.terms = scene.world.terms._replace(reversible=True)


class Stalling:
    """A fate besides the one that was thrown: the core's disk often takes its time."""

    def __init__(self, scene: Scenario) -> None:
        self.other, self.dice = scene.world.fates, scene.world.dice

    def suffers(self, point: str) -> Fault | None:
        if point == "fdatasync" and self.dice.random() < STALLS:
            return Fault.STALLED
        return self.other.suffers(point)


def slow_disk(scene: Scenario) -> None:
    """Questions are asked again while the first of them is still being made durable."""
    scene.world.fates = Stalling(scene)


def large_amounts(scene: Scenario) -> None:
    scene.wishes = [replace(wish, amount=wish.amount + BEYOND_FLOATS) for wish in scene.wishes]


def payers(scene: Scenario) -> None:
    """Members of two guilds want to pay more at once than they may, or than they have."""
    scene.feel(Behaviour())
    limited, unlimited = OWNERS[0], next(g for g, rules in GUILDS.items() if not rules.limit)
    scene.spread_s = 0.0
    scene.wishes = [
        Request(
            guild,
            "pool_transfer",
            payment(guild, 1, 2),
            ASSET,
            amount,
            f"{amount} {number}",
            lives_s=POOL_S,
        )
        for number in range(8)
        for guild, amount in ((limited, 200), (unlimited, 300))
    ]


# Worlds by plan.


def crowd(scene: Scenario) -> None:
    """Many wishes for the same accounts of the ledger, all within a moment."""
    scene.nodes, scene.spread_s = 3, 0.03
    scene.wishes = requests(scene.world.dice, Behaviour(from_core=0.0, members=0.0), 3 * TRANSFERS)


def crowded() -> Search:
    """Nothing fails. So nobody may wait for anything that does not come."""

    def trials() -> Iterator[Trial]:
        for seed in range(BUDGET):
            result = run(seed, FaultPlan(), crowd)
            ended_s = max(at - START_S for at, who, what in result.trace if what == "heals")
            late = (
                f"nothing failed, and all ended after {ended_s:.1f} s" if not result.fault else ""
            )
            name = f"seed {seed}, crowd"
            yield Trial(name, late) if ended_s > PROMPT_S else found(name, result)

    return Search("crowd", trials)


def without_cid(scene: Scenario) -> None:
    """Each owner asks for one transfer and gives no key, so that nobody could ask again."""
    scene.nodes = 1
    scene.wishes = [
        Request(
            owner,
            "deposit" if owner == OWNERS[0] else "internal_transfer",
            {
                "source": Party(LEDGER, OUTSIDE if owner == OWNERS[0] else FUNDING, owner),
                "target": Party(CORE, SPOT, owner),
                **({"suspense": Party(LEDGER, SUSPENSE, owner)} if owner == OWNERS[0] else {}),
            },
            ASSET,
            10,
        )
        for owner in OWNERS
    ]


def commits(alter: Alter = without_cid) -> Search:
    """Every COMMIT of a small world fails in every way in which the worker lives on."""
    faults = [fault for point, fault in KINDS if point == "commit" and "killed" not in fault]

    def trials() -> Iterator[Trial]:
        calm = FaultPlan(points=("commit",))
        yield found("no plan", run(1, calm, alter))
        for number in range(len(calm.calls)):
            for fault in faults:
                plan = FaultPlan({number: fault}, points=("commit",))
                yield found(f"plan: commit {number} {fault}", run(1, plan, alter))

    return Search("plans", trials)


class Brake:
    """A fate: every question is on its way for a while, and none may set out once all is halted."""

    def __init__(self) -> None:
        self.scene: Scenario | None = None
        self.pulled_s: float | None = None

    def alter(self, scene: Scenario) -> None:
        self.scene, begin = scene, scene._begin
        scene.nodes, scene.spread_s = 1, 3.0

        async def begun() -> None:
            await begin()
            loop, dice = asyncio.get_running_loop(), scene.world.dice
            pulled_s = 0.5 + dice.random() * 2
            loop.call_later(pulled_s, self.pull, "drill")
            loop.call_later(pulled_s + 4.0, self.pull, None)

        scene._begin = begun  # type: ignore[method-assign]

    def pull(self, reason: str | None) -> None:
        assert self.scene is not None
        halts = self.scene.world.tables.halts
        if reason:
            halts.add(reason, "people", 0)
        else:
            halts.end()
        self.pulled_s = self.scene.world.loop.now_s if reason else None

    def suffers(self, point: str) -> Fault | None:
        if point != "request" or self.scene is None:
            return None
        world = self.scene.world
        if self.pulled_s is not None and world.loop.now_s - self.pulled_s > BRAKE_S:
            world.auditor.blame("a question was sent although all was halted")
        return Fault.OVERTAKEN


def braked() -> Search:
    def trials() -> Iterator[Trial]:
        for seed in range(BUDGET):
            brake = Brake()
            yield found(f"seed {seed}, halted", run(seed, brake, brake.alter))

    return Search("halted", trials)


# What no flow does, and an adapter must withstand all the same.


def certificate(opening: Opening) -> Search:
    def trials() -> Iterator[Trial]:
        fresh = (UUID(int=number << 80) for number in count(1 << 40))
        for check in CHECKS:
            with tempfile.TemporaryDirectory() as directory:
                bench = partial(opening, Place("", Path(directory)))
                finding = asyncio.run(attempt(check, bench, next(fresh)))
            failed = finding.verdict is CheckOutcome.FAILED
            yield Trial(f"certificate: {check.name}", finding.why if failed else "")

    return Search(f"certificate of {opening.__name__}", trials)


def damages() -> Search:
    """Every truncation and every flipped bit of a log."""

    def trials() -> Iterator[Trial]:
        log = Written()
        made: Iterable[bytes]
        for kind, made in (
            ("cut at byte", truncations(log.content)),
            ("flipped bit", flips(log.content)),
        ):
            for number, content in enumerate(made):
                undetected = judged(log, content) == UNDETECTED
                yield Trial(f"{kind} {number}", "read as if it were whole" if undetected else "")

    return Search("log", trials)


SEEDS = seeds()
SNAPSHOTS = seeds(snapshots)
BUSY = seeds(busy)
LONG_OUTAGE = seeds(long_outage, 50)
DATABASE_CLOCK = seeds(database_clock, 50)
FLOORS = seeds(floors)
STRANGER = seeds(stranger)
OLD_COPY = seeds(old_copy)
REFUNDS = seeds(refunds)
SLOW_DISK = seeds(slow_disk)
LARGE_AMOUNTS = seeds(large_amounts)
PAYERS = seeds(payers, 50)
CROWD = crowded()
COMMITS = commits()
BRAKED = braked()
LEDGER_CERTIFICATE = certificate(ledger_twin)
CORE_CERTIFICATE = certificate(core_in_memory)
DAMAGES = damages()
