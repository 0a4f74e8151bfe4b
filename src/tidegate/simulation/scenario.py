"""One seed: transfers run while faults are injected; then the faults end, and all must finish.

There are three phases. *Safety*: faults are injected, and the auditor checks every effect.
*Recovery*: there are no more faults, all processes run, and all accounts are made active again.
*Liveness*: all transfers end within LIVENESS_S, and messages that arrive later change nothing.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

from tidegate.core import wire
from tidegate.core.account import Account, account_at
from tidegate.core.flow import Flow
from tidegate.core.money import MAX_AMOUNT
from tidegate.core.request import Request
from tidegate.core.wire import CoreVerb
from tidegate.engine.kind_rules import KindRules, RulesOf
from tidegate.flows import FLOWS
from tidegate.simulation.audited_transfer import AuditedTransfer
from tidegate.simulation.auditor import CORE, LEDGER, Violation
from tidegate.simulation.clients import Clients
from tidegate.simulation.clocks import check_outage_notes, disturb_clocks
from tidegate.simulation.disk import STALL_S
from tidegate.simulation.faults import Fault, FaultSource, RandomFaults
from tidegate.simulation.floors import RETIRED, RETIRING_S
from tidegate.simulation.locks import disturb_locks
from tidegate.simulation.loop import SimLoop, simulate, sleep, without_garbage_collection
from tidegate.simulation.result import SeedResult
from tidegate.simulation.store import MARKS
from tidegate.simulation.variants import SeedVariant
from tidegate.simulation.workload import (
    ASSET,
    BOOKS,
    MEMBERS,
    MORE,
    OWNERS,
    SPOT,
    START,
    TRANSFERS,
    Behaviour,
    CoreTrouble,
    requests,
)
from tidegate.simulation.world import World, until
from tidegate.systems.guild.memory import SETTINGS, GuildRules
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, LedgerStatus
from tidegate.systems.ledger.judge import LedgerBalance, balance_of
from tidegate.systems.ledger.memory import ACCOUNTS

SAFETY_S = 8.0
LEASES_S = 20.0  # Two leases: a claim may be lost, and so may the next one.
LIVENESS_S = 60.0
TROUBLE_SCAN_S = 5.0  # Core trouble lasts minutes, and a scan each second would be too slow.
NEARLY_FULL = MAX_AMOUNT // 2  # An account that holds more was filled by `World.fill`.
# The rules of some owners' guilds. The others use the defaults.
GUILDS = {3: GuildRules(limit=0), 4: GuildRules(limit=0, cooldown_s=2, every_transfer=True)}

# Events besides faults. Every long run must contain each of them often enough.
REQUIRED_EVENTS = (
    *(f"{book} {status}" for book in BOOKS for status in LedgerStatus),
    *(str(core_trouble) for core_trouble in CoreTrouble if core_trouble),
    *("clock", "database clock", "account filled", "killed anywhere", "late after the end"),
    *("mismatch", "older version", "over the daily limit", RETIRED),
    *("held by another session", "inbox", "inbox expiry"),
)


class Scenario:
    """Everything outside the processes in one seed: requests, core trouble, clocks, accounts."""

    def __init__(self, world: World, behaviour: Behaviour) -> None:
        self.world, self.behaviour = world, behaviour
        self.workers = 2
        self.poll_s = 0.5  # The interval of the check whether all transfers have ended.
        self.owners: Sequence[int] = OWNERS  # The owners of accounts.
        self.spread_s = SAFETY_S * 0.7  # All requests are made within this time.
        self.plan: FaultSource | None = None  # Takes effect after the setup.
        self.clients = Clients(world)
        self.events: Counter[str] = world.events
        self.liveness_s = 0.0

    def retire(self) -> None:
        """Let the core retire ended operations, in a seed that lasts long enough for it."""
        self.behaviour.retiring, self.spread_s = True, RETIRING_S * 0.9
        self.world.variant = self.world.variant._replace(retires=True)

    def set_behaviour(self, behaviour: Behaviour) -> None:
        """Use this behaviour instead, with requests that match it."""
        self.behaviour, self.spread_s = behaviour, SAFETY_S * 0.7
        self.world.variant = self.world.variant._replace(retires=False)
        self.requests = requests(self.world.dice, behaviour)

    @cached_property
    def requests(self) -> list[Request]:
        """Drawn at random, unless they are assigned."""
        return requests(self.world.dice, self.behaviour)

    async def play(self) -> None:
        world = self.world
        await self._begin()
        world.fault_source = self.plan or world.fault_source
        clients = [
            asyncio.ensure_future(
                self.clients.request_transfer(request, world.dice.random() * self.spread_s)
            )
            for request in self.requests
        ]
        if self.plan is None:
            disturbing = asyncio.ensure_future(self._disturb())
            safety_s = RETIRING_S if self.behaviour.retiring else SAFETY_S
            if self.behaviour.core_trouble.lasts:
                safety_s = world.dice.uniform(*self.behaviour.trouble_s)
            await sleep(safety_s)
            disturbing.cancel()
        else:
            # With a plan there are no disturbances. Its faults are possible until all has ended.
            await self._wait_for_ends(clients, world.loop.now_s)
        faults_ended_s = world.loop.now_s
        self._end_faults()
        await self._wait_for_ends(clients, faults_ended_s)
        self.liveness_s = world.loop.now_s - faults_ended_s
        if not world.auditor.violations:
            await self._check_late_messages()

    async def _begin(self) -> None:
        world, rows = self.world, self.world.tables.rows[ACCOUNTS]
        world.host.start()
        for guild, rules in GUILDS.items():
            world.tables.rows[SETTINGS][guild] = world.auditor.pool.rules[guild] = rules
        for owner in self.owners:
            members = [(book, START) for book in MEMBERS]
            outside = -START * (2 + len(members))
            for book, amount in ((FUNDING, START), (OUTSIDE, outside), (SUSPENSE, 0), *members):
                rows[Account(owner, book, ASSET)] = LedgerBalance(amount, 0, LedgerStatus.ACTIVE)
                world.auditor.grant((LEDGER, owner, book, ASSET), amount)
        while (
            any(world.auditor.granted[owner, ASSET] < 0 for owner in self.owners)
            and not world.auditor.violations
        ):
            # Each owner's books sum to zero when the core has its share.
            for owner in self.owners:
                if world.auditor.granted[owner, ASSET] < 0:
                    world.core_move(CoreVerb.CREDIT, owner, ASSET, START)
            await sleep(0.3)
        world.auditor.on_core_move = self._fill_after_debit
        for number in range(self.workers):
            await world.start_worker("abc"[number])

    async def _disturb(self) -> None:
        """Change account statuses, clocks and locks, and kill workers, until it is cancelled."""
        world, behaviour, dice = self.world, self.behaviour, self.world.dice
        if behaviour.core_trouble:
            await sleep(dice.random() * 4)
            await self._start_core_trouble()
        pause_s = behaviour.pause_s * (
            behaviour.trouble_s[0] / SAFETY_S if behaviour.core_trouble.lasts else 1
        )
        while True:
            await sleep(pause_s * dice.random())
            if dice.random() < behaviour.status_changes:
                status = (
                    dice.choice(behaviour.blocked_statuses)
                    if dice.random() < behaviour.blocking
                    else LedgerStatus.ACTIVE
                )
                self._set_status(dice.choice(self.owners), dice.choice(behaviour.books), status)
            disturb_clocks(self)
            disturb_locks(self)
            if (living := world.living()) and dice.random() < behaviour.kills:
                self.events["killed anywhere"] += 1
                world.kill(dice.choice(living))

    async def _start_core_trouble(self) -> None:
        world, trouble = self.world, self.behaviour.core_trouble
        # Before a worker has recorded the core's uuid, a foreign core cannot be recognised.
        await until(lambda: trouble is not CoreTrouble.FOREIGN or world.tables.rows[MARKS], 0.2)
        self.events[trouble] += 1
        world.disturbed = True
        world.note("world", f"core trouble: {trouble}")
        if trouble is CoreTrouble.BUSY:
            world.host.set_busy(busy=True)
        elif trouble is CoreTrouble.FOREIGN:
            world.auditor.foreign_core = True
            world.in_background(world.host.run_foreign_core(world.dice.uniform(1.0, 6.0)))
        else:
            world.host.start_blocked = True
            world.host.crash(world.dice.choice((Fault.CORE_KILLED, Fault.POWER_LOST)))

    def _set_status(self, owner: int, book: str, status: LedgerStatus) -> None:
        world, rows = self.world, self.world.tables.rows[ACCOUNTS]
        self.events[f"{book} {status}"] += 1
        if book == SPOT:
            world.core_status(owner, ASSET, wire.AccountStatus[status])
            return
        key = account_at((owner, book, ASSET))
        if self._is_unlocked(key):
            available, held, _ = rows[key]
            rows[key] = balance_of((available, held, status))

    def _is_unlocked(self, key: Account) -> bool:
        return (ACCOUNTS, key) not in self.world.tables.holders

    def _fill_after_debit(self, account: tuple[str, int, str, int], verb: str) -> None:
        """Fill the account after its debit, so that a refund does not fit."""
        _, owner, _, _ = account
        if (
            verb == "debit"
            and owner in self.behaviour.filled_owners
            and not self.world.faults_ended
        ):
            self.events["account filled"] += 1
            self.world.fill(owner, ASSET)

    def _end_faults(self) -> None:
        world = self.world
        world.note("world", "faults end")
        world.faults_ended = True
        if self.behaviour.core_trouble.lasts:
            world.host.start_blocked = False
            waits = any(self._waits(world.auditor.transfers[id_]) for id_ in world.auditor.open)
            if waits and not world.auditor.pages:
                world.auditor.report(
                    f"{self.behaviour.core_trouble} for over a minute without an alert"
                )
            if self.behaviour.core_trouble is CoreTrouble.OUTAGE:
                check_outage_notes(world)
        world.host.set_busy(busy=False)
        world.host.skew_s = 0.0
        for worker in world.living():
            worker.skew_s = 0.0
        world.in_background(self._reactivate_accounts())

    def _waits(self, audited: AuditedTransfer) -> bool:
        ask = self.world.flows[audited.transfer.flow].ask(audited.transfer.state)
        if ask is None or ask.retry.page_after_s is None or audited.transfer.lane != CORE:
            return False
        late_s = ask.retry.page_after_s + ask.retry.cap_s + LEASES_S
        # A new worker gets the rows of a dead one only when their lease has expired.
        old = any(self.world.loop.now_s - n.began_s > LEASES_S for n in self.world.living())
        return old and self.world.loop.now_s - audited.since_s > late_s

    async def _reactivate_accounts(self) -> None:
        """Make all accounts active, and empty the filled ones. Retry while the core starts."""
        world = self.world
        for owner in self.owners:
            for book in (FUNDING, OUTSIDE, SUSPENSE, *MEMBERS):
                key = account_at((owner, book, ASSET))
                await until(partial(self._is_unlocked, key), 0.01)
                rows = world.tables.rows[ACCOUNTS]
                available, held, _ = rows[key]
                rows[key] = balance_of((available, held, LedgerStatus.ACTIVE))
        # Operations that were submitted while the disk stalls may still be applied.
        quiet_s = world.loop.now_s + (STALL_S[1] + 2.0 if self.behaviour.filled_owners else 0.0)
        while not all(map(self._is_reactivated, self.owners)) or world.loop.now_s < quiet_s:
            for owner in self.owners:
                world.core_status(owner, ASSET, wire.AccountStatus.ACTIVE)
                held = world.auditor.books[CORE, owner, SPOT, ASSET]
                if held > NEARLY_FULL:
                    excess = world.auditor.granted[owner, ASSET]
                    world.core_move(CoreVerb.DEBIT, owner, ASSET, min(excess, held))
            await sleep(0.3)

    def _is_reactivated(self, owner: int) -> bool:
        core, spot = self.world.host.core, wire.account(wire.CoreBook.SPOT, ASSET, owner)
        held = self.world.auditor.books[CORE, owner, SPOT, ASSET]
        return (
            core is not None
            and core.book.status(spot) == wire.AccountStatus.ACTIVE
            and held < NEARLY_FULL
        )

    async def _wait_for_ends(
        self, clients: "Sequence[asyncio.Future[None]]", faults_ended_s: float
    ) -> None:
        world = self.world
        while world.auditor.open or not all(client.done() for client in clients):
            if world.auditor.violations:
                return
            if world.loop.now_s > faults_ended_s + LIVENESS_S:
                open_ids = sorted(world.auditor.open)
                transfers = [world.auditor.transfers[id_].transfer for id_ in open_ids[:2]]
                text = f"not ended {LIVENESS_S:.0f} s after the faults: {transfers}"
                world.auditor.report(text)
                return
            await sleep(self.poll_s)
        for client in clients:
            client.result()

    async def _check_late_messages(self) -> None:
        """All transfers have ended. Deliver the pending messages: they must change nothing."""
        world = self.world
        executed = world.auditor.executed
        self.events["late after the end"] += len(world.network.pending)
        world.network.flush()
        await until(lambda: not world.background and world.host.core, 0.25)
        await sleep(0.25)
        if world.auditor.executed != executed:
            world.auditor.report("money moved after everything had ended")
        if len(set(self.clients.transfer_ids.values())) != len(world.auditor.transfers):
            world.auditor.report("a transfer exists whose id no client received")
        keys = {(request.owner, request.cid) for request in self.requests if request.cid}
        if keys and len(keys) != len(world.auditor.transfers) + world.limits.refused_count():
            world.auditor.report("a request became neither a transfer nor a refusal")
        world.auditor.finish(world.ledger_balances(), world.host.balances())


def run(
    seed: int,
    plan: FaultSource | None = None,
    alter: Callable[[Scenario], None] | None = None,
    flows: Mapping[str, Flow] = FLOWS,
    rules_of: RulesOf = KindRules,
) -> SeedResult:
    """Run one seed from start to end, with random faults or with those of a plan.

    `alter` may change the scenario before it starts: its requests, its behaviour, `world.variant`.
    """
    with without_garbage_collection():
        return _run(seed, plan, alter, flows, rules_of)


def _run(
    seed: int,
    plan: FaultSource | None,
    alter: Callable[[Scenario], None] | None,
    flows: Mapping[str, Flow],
    rules_of: RulesOf,
) -> SeedResult:
    dice = random.Random(seed)  # noqa: S311  It must be reproducible.
    scenes: list[Scenario] = []

    async def main(loop: SimLoop) -> None:
        world = World(loop, dice, flows)
        world.rules_of = rules_of
        scene = by_plan(world, plan) if plan is not None else by_dice(world)
        scenes.append(scene)
        if alter is not None:
            alter(scene)
        try:
            await scene.play()
        finally:
            world.end()
        if world.auditor.violations:
            raise Violation(world.auditor.violations[0])

    task = simulate(seed, main)
    [scene] = scenes
    world = scene.world
    return SeedResult(
        seed,
        task.exception() or next(iter(world.loop.unhandled), None),
        world.trace,
        len(world.auditor.transfers),
        world.limits.refused_count(),
        world.auditor.edges,
        world.faults,
        scene.events,
        scene.liveness_s,
        world.loop.steps,
    )


def by_dice(world: World) -> Scenario:
    """Everything is random: the faults, the behaviour, and the setup of the workers."""
    dice = world.dice
    world.fault_source, world.variant, behaviour = (
        RandomFaults(dice),
        SeedVariant.from_dice(dice),
        Behaviour.from_dice(dice),
    )
    scene = Scenario(world, behaviour)
    count = TRANSFERS + (MORE if world.variant.daily else 0)
    scene.requests = requests(
        dice, behaviour, count
    )  # Drawn here and not on first use, so that the draws below do not depend on that time.
    scene.workers = dice.choice((1, 2, 2, 3))
    if behaviour.core_trouble.lasts:
        world.variant = world.variant._replace(scan_s=TROUBLE_SCAN_S)
    if behaviour.retiring:
        scene.retire()
    return scene


def by_plan(world: World, plan: FaultSource) -> Scenario:
    """Only the planned faults, no disturbances, and all requests at once."""
    scene = Scenario(world, Behaviour())
    scene.plan, scene.spread_s = plan, 0.0
    scene.clients.programs.expiring = 0.0
    return scene
