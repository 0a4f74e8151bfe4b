"""Searches for planted bugs: many trials, each with a name, until one of them finds a fault."""

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

from tests.contracts.bench_setup import BenchSetup
from tests.contracts.core_systems import core_in_memory
from tests.contracts.ledger_systems import ledger_twin
from tests.contracts.systems import OpenBench
from tests.trading_core.mutations import UNDETECTED, WrittenLog, classify, flips, truncations
from tidegate.certify import CHECKS, CheckOutcome, run_check
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.simulation.auditor import CORE, LEDGER
from tidegate.simulation.clocks import HOUR_S, set_clock
from tidegate.simulation.disk import DiskEnvironment, SimDisk
from tidegate.simulation.faults import KINDS, Fault, FaultPlan
from tidegate.simulation.loop import START_S
from tidegate.simulation.result import SeedResult
from tidegate.simulation.scenario import GUILDS, Scenario, run
from tidegate.simulation.store import MARKS
from tidegate.simulation.workload import (
    ASSET,
    LONG_TROUBLE_S,
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

BUDGET = 200  # Seeds in which a bug must be trial_of.
PROMPT_S = 2.0  # Within which all has ended where nothing fails: less than a lock is waited for.
HALT_S = 0.1  # Within this time a worker that read the halts before this halt has asked.
BEYOND_FLOATS = 2**53
STALLS = 0.2

Alter: TypeAlias = Callable[[Scenario], None]


class Trial(NamedTuple):
    """One trial, for example "seed 17", and its fault, or an empty string."""

    name: str
    fault: str


class Search(NamedTuple):
    """A named list of trials."""

    name: str
    trials: Callable[[], Iterator[Trial]]


def seeds(alter: Alter | None = None, budget: int = BUDGET) -> Search:
    """Random seeds, in the usual scenario or in one where rare cases are frequent."""
    world = "" if alter is None else alter.__name__.replace("_", " ")

    def trials() -> Iterator[Trial]:
        for seed in range(budget):
            yield trial_of(f"seed {seed}{world and f', {world}'}", run(seed, None, alter))

    return Search(world or "seeds", trials)


def trial_of(name: str, result: SeedResult) -> Trial:
    fault = result.fault
    return Trial(name, "" if fault is None else f"{type(fault).__name__}: {fault}")


# Scenarios in which rare cases are frequent.


def snapshots(scene: Scenario) -> None:
    """A snapshot every few operations, and one loss of power."""
    world, begin = scene.world, scene._begin
    world.variant = world.variant._replace(snapshot_records=4)

    async def begin_and_disturb() -> None:
        await begin()
        soon_s = world.dice.uniform(1.0, scene.spread_s)
        asyncio.get_running_loop().call_later(soon_s, cut)

    def cut() -> None:
        world.disturbed = True  # An alert about it is correct.
        world.host.crash(Fault.POWER_LOST)

    scene._begin = begin_and_disturb  # type: ignore[method-assign]


def busy(scene: Scenario) -> None:
    scene.behaviour.core_trouble = CoreTrouble.BUSY


def long_outage(scene: Scenario) -> None:
    """The core is down for a quarter of an hour or more."""
    scene.behaviour.core_trouble, scene.behaviour.trouble_s = CoreTrouble.OUTAGE, LONG_TROUBLE_S


def database_clock(scene: Scenario) -> None:
    """The database's clock jumps back and forth, and is an hour behind at the end."""
    scene.set_behaviour(Behaviour(0.3, database_clock_jumps=0.5, members=0.0))
    end_faults = scene._end_faults

    def set_clock_and_end_faults() -> None:
        set_clock(scene.world, -HOUR_S)
        end_faults()

    scene._end_faults = set_clock_and_end_faults  # type: ignore[method-assign]


def floors(scene: Scenario) -> None:
    """The core retires ended operations while all clocks jump back and forth."""
    scene.behaviour = Behaviour(1.0, database_clock_jumps=0.2, clock_jumps=0.1, members=0.0)
    scene.retire()
    scene.requests = requests(scene.world.dice, scene.behaviour)


def foreign_core(scene: Scenario) -> None:
    scene.behaviour.core_trouble = CoreTrouble.FOREIGN


def old_copy(scene: Scenario) -> None:
    """For some time the core runs on a copy of its directory that was made at the start."""
    scene.behaviour.core_trouble = CoreTrouble.FOREIGN
    world, host, begin = scene.world, scene.world.host, scene._begin
    start_trouble, start, repeat = scene._start_core_trouble, host.start, world.network._repeat

    def repeat_to_original(hello: bytes, chunk: bytes) -> None:
        # A copy that gets all questions that the original got since would equal the original.
        if not host.foreign:
            repeat(hello, chunk)

    world.network._repeat = repeat_to_original  # type: ignore[method-assign]

    async def begin_and_disturb() -> None:
        await begin()
        copied = copy.deepcopy(host.storage)
        position = world.auditor.position

        def start_on_a_copy() -> None:
            if not host.foreign:
                start()
                return
            host.context, host.running = Context(), True
            environment = DiskEnvironment(world.next_fault, world.dice, lambda _: None, host.crash)
            host.disk = SimDisk(copy.deepcopy(copied), environment)
            world.loop.create_task(host._run_core(host.disk), context=host.context)

        async def start_trouble_later() -> None:
            # Until every process has a later answer of the core, the copy equals the original.
            await until(lambda: _known(world) > position, 0.2)
            await start_trouble()

        host.start = start_on_a_copy  # type: ignore[method-assign]
        scene._start_core_trouble = start_trouble_later  # type: ignore[method-assign]

    scene._begin = begin_and_disturb  # type: ignore[method-assign]


def _known(world: World) -> int:
    """The lowest position of the core that any process has recorded, or 0."""
    marks = world.tables.rows[MARKS].values()
    return min((mark[1] for mark in marks), default=0)


def refunds(scene: Scenario) -> None:
    """Money leaves the core, is refused by the target, and must be refunded."""
    behaviour = Behaviour(
        0.3, status_changes=1.0, books=(FUNDING, OUTSIDE), blocking=0.8, from_core=0.9
    )
    behaviour.blocked_statuses = (LedgerStatus.DISABLED,)
    scene.set_behaviour(behaviour)
    scene.world.variant = scene.world.variant._replace(reversible=True)


class Stalling:
    """A fault source that adds stalls of the core's disk to those of another source."""

    def __init__(self, scene: Scenario) -> None:
        self.base, self.dice = scene.world.fault_source, scene.world.dice

    def next_fault(self, point: str) -> Fault | None:
        if point == "fdatasync" and self.dice.random() < STALLS:
            return Fault.STALLED
        return self.base.next_fault(point)


def slow_disk(scene: Scenario) -> None:
    """Questions are repeated while the first one is still being synced."""
    scene.world.fault_source = Stalling(scene)


def large_amounts(scene: Scenario) -> None:
    scene.requests = [
        replace(request, amount=request.amount + BEYOND_FLOATS) for request in scene.requests
    ]


def payers(scene: Scenario) -> None:
    """Members of two guilds request more at once than their limit or their balance allows."""
    scene.set_behaviour(Behaviour())
    limited, unlimited = OWNERS[0], next(g for g, rules in GUILDS.items() if not rules.limit)
    scene.spread_s = 0.0
    scene.requests = [
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


# Scenarios with a plan.


def crowd(scene: Scenario) -> None:
    """Many requests for the same ledger accounts at almost the same time."""
    scene.workers, scene.spread_s = 3, 0.03
    scene.requests = requests(
        scene.world.dice, Behaviour(from_core=0.0, members=0.0), 3 * TRANSFERS
    )


def crowded() -> Search:
    """Nothing fails, so no request may wait for a timeout."""

    def trials() -> Iterator[Trial]:
        for seed in range(BUDGET):
            result = run(seed, FaultPlan(), crowd)
            ended_s = max(at - START_S for at, _, text in result.trace if text == "faults end")
            late = (
                f"nothing failed, but all ended after {ended_s:.1f} s" if not result.fault else ""
            )
            name = f"seed {seed}, crowd"
            yield Trial(name, late) if ended_s > PROMPT_S else trial_of(name, result)

    return Search("crowd", trials)


def without_cid(scene: Scenario) -> None:
    """Each owner requests one transfer without a key, so that the client cannot ask again."""
    scene.workers = 1
    scene.requests = [
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
    """Every COMMIT of a small scenario with every fault that does not kill the worker."""
    faults = [fault for point, fault in KINDS if point == "commit" and "killed" not in fault]

    def trials() -> Iterator[Trial]:
        fault_free = FaultPlan(points=("commit",))
        yield trial_of("no plan", run(1, fault_free, alter))
        for number in range(len(fault_free.calls)):
            for fault in faults:
                plan = FaultPlan({number: fault}, points=("commit",))
                yield trial_of(f"plan: commit {number} {fault}", run(1, plan, alter))

    return Search("plans", trials)


class Halt:
    """A fault source that delays every question, and reports those sent during a halt."""

    def __init__(self) -> None:
        self.scene: Scenario | None = None
        self.halted_s: float | None = None

    def alter(self, scene: Scenario) -> None:
        self.scene, begin = scene, scene._begin
        scene.workers, scene.spread_s = 1, 3.0

        async def begin_and_disturb() -> None:
            await begin()
            loop, dice = asyncio.get_running_loop(), scene.world.dice
            halted_s = 0.5 + dice.random() * 2
            loop.call_later(halted_s, self.set_halt, "drill")
            loop.call_later(halted_s + 4.0, self.set_halt, None)

        scene._begin = begin_and_disturb  # type: ignore[method-assign]

    def set_halt(self, reason: str | None) -> None:
        assert self.scene is not None
        halts = self.scene.world.tables.halts
        if reason:
            halts.add(reason, "people", 0)
        else:
            halts.end()
        self.halted_s = self.scene.world.loop.now_s if reason else None

    def next_fault(self, point: str) -> Fault | None:
        if point != "request" or self.scene is None:
            return None
        world = self.scene.world
        if self.halted_s is not None and world.loop.now_s - self.halted_s > HALT_S:
            world.auditor.report("a question was sent during a halt")
        return Fault.OVERTAKEN


def halted() -> Search:
    def trials() -> Iterator[Trial]:
        for seed in range(BUDGET):
            halt = Halt()
            yield trial_of(f"seed {seed}, halted", run(seed, halt, halt.alter))

    return Search("halted", trials)


# Cases that no flow produces, but that every adapter must handle.


def certificate(opening: OpenBench) -> Search:
    def trials() -> Iterator[Trial]:
        fresh = (UUID(int=number << 80) for number in count(1 << 40))
        for check in CHECKS:
            with tempfile.TemporaryDirectory() as directory:
                bench = partial(opening, BenchSetup("", Path(directory)))
                finding = asyncio.run(run_check(check, bench, next(fresh)))
            failed = finding.verdict is CheckOutcome.FAILED
            yield Trial(f"certificate: {check.name}", finding.reason if failed else "")

    return Search(f"certificate of {opening.__name__}", trials)


def damages() -> Search:
    """Every truncation and every single-bit flip of a log."""

    def trials() -> Iterator[Trial]:
        log = WrittenLog()
        damaged: Iterable[bytes]
        for kind, damaged in (
            ("cut at byte", truncations(log.content)),
            ("flipped bit", flips(log.content)),
        ):
            for number, content in enumerate(damaged):
                undetected = classify(log, content) == UNDETECTED
                yield Trial(f"{kind} {number}", "the damage was not detected" if undetected else "")

    return Search("log", trials)


SEEDS = seeds()
SNAPSHOTS = seeds(snapshots)
BUSY = seeds(busy)
LONG_OUTAGE = seeds(long_outage, 50)
DATABASE_CLOCK = seeds(database_clock, 50)
FLOORS = seeds(floors)
FOREIGN_CORE = seeds(foreign_core)
OLD_COPY = seeds(old_copy)
REFUNDS = seeds(refunds)
SLOW_DISK = seeds(slow_disk)
LARGE_AMOUNTS = seeds(large_amounts)
PAYERS = seeds(payers, 50)
CROWD = crowded()
COMMITS = commits()
HALTED = halted()
LEDGER_CERTIFICATE = certificate(ledger_twin)
CORE_CERTIFICATE = certificate(core_in_memory)
DAMAGES = damages()
