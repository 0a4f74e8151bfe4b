"""One seed: owners move money to and fro while everything fails; then all heals, and must end.

Three phases. *Safety*: faults strike, and the auditor watches every effect. *Heal*: no more
faults, everybody is up, accounts are thawed. *Liveness*: within a bound everything has ended, and
what is still on its way when it arrives changes nothing.
"""

import asyncio
import random
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
from tidegate.simulation.auditor import CORE, LEDGER, AuditedTransfer, Violation
from tidegate.simulation.clients import Clients
from tidegate.simulation.clocks import judge_notes, meddle_with_clocks
from tidegate.simulation.disk import STALL_S
from tidegate.simulation.faults import Fault, FaultSource, RandomFaults
from tidegate.simulation.floors import RETIRED, RETIRING_S
from tidegate.simulation.locks import meddle_with_locks
from tidegate.simulation.loop import SimLoop, simulate, sleep, uncollected
from tidegate.simulation.result import Meddling, SeedResult
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
LEASES_S = 20.0  # A claim may be lost, and so may the one after it.
LIVENESS_S = 60.0
SIEGE_SCAN_S = 5.0  # A siege lasts minutes: a scan each second would take most of the time.
BRIMFUL = MAX_AMOUNT // 2  # An account that holds more was flooded.
# Some owners' guilds have rules of their own.
GUILDS = {3: GuildRules(limit=0), 4: GuildRules(limit=0, cooldown_s=2, every_transfer=True)}

# What people and machines do besides, which every long run must contain often enough.
PLEDGED = (
    *(f"{book} {status}" for book in BOOKS for status in LedgerStatus),
    *(str(siege) for siege in CoreTrouble if siege),
    *("clock", "database clock", "flood", "killed anywhere", "late after the end"),
    *("mismatch", "older version", "over the daily limit", RETIRED),
    *("held by a stranger", "inbox", "inbox expiry"),
)


class Scenario:
    """What happens in one seed, told from outside the processes."""

    def __init__(self, world: World, mood: Behaviour) -> None:
        self.world, self.mood = world, mood
        self.nodes = 2
        self.look_s = 0.5  # So often somebody looks whether all has ended.
        self.owners: Sequence[int] = OWNERS  # Who has anything.
        self.spread_s = SAFETY_S * 0.7  # Within which the wishes are made.
        self.plan: FaultSource | None = None  # Takes effect when the world has begun.
        self.clients = Clients(world)
        self.meddling: Meddling = world.meddling
        self.liveness_s = 0.0

    def retire(self) -> None:
        """Let the core forget what is over, in a seed that lasts long enough for it."""
        self.mood.retiring, self.spread_s = True, RETIRING_S * 0.9
        self.world.terms = self.world.terms._replace(retires=True)

    def feel(self, mood: Behaviour) -> None:
        """Let people behave in this way instead, and wish accordingly."""
        self.mood, self.spread_s = mood, SAFETY_S * 0.7
        self.world.terms = self.world.terms._replace(retires=False)
        self.wishes = requests(self.world.dice, mood)

    @cached_property
    def requests(self) -> list[Request]:
        """By the dice, unless somebody says what they are."""
        return requests(self.world.dice, self.mood)

    async def play(self) -> None:
        world = self.world
        await self._begin()
        world.fates = self.plan or world.fates
        asking = [
            asyncio.ensure_future(self.clients.ask(wish, world.dice.random() * self.spread_s))
            for wish in self.wishes
        ]
        if self.plan is None:
            meddling = asyncio.ensure_future(self._meddle())
            lasts_s = RETIRING_S if self.mood.retiring else SAFETY_S
            if self.mood.siege.lasts:
                lasts_s = world.dice.uniform(*self.mood.siege_s)
            await sleep(lasts_s)
            meddling.cancel()
        else:
            # Nobody meddles with a plan. It is over when all has ended; until then it may strike.
            await self._ended(asking, world.loop.now_s)
        healed_s = world.loop.now_s
        self._heal()
        await self._ended(asking, healed_s)
        self.liveness_s = world.loop.now_s - healed_s
        if not world.auditor.violations:
            await self._aftermath()

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
                world.auditor.endow((LEDGER, owner, book, ASSET), amount)
        while (
            any(world.auditor.endowed[owner, ASSET] < 0 for owner in self.owners)
            and not world.auditor.violations
        ):
            # Each owner's books sum to zero once the core has its part.
            for owner in self.owners:
                if world.auditor.endowed[owner, ASSET] < 0:
                    world.core_move(CoreVerb.CREDIT, owner, ASSET, START)
            await sleep(0.3)
        world.auditor.moved = self._moved
        for number in range(self.nodes):
            await world.raise_node("abc"[number])

    async def _meddle(self) -> None:
        """People freeze and thaw accounts, machines are switched off, clocks jump."""
        world, mood, dice = self.world, self.mood, self.world.dice
        if mood.siege:
            await sleep(dice.random() * 4)
            await self._besiege()
        pause_s = mood.pause_s * (mood.siege_s[0] / SAFETY_S if mood.siege.lasts else 1)
        while True:
            await sleep(pause_s * dice.random())
            if dice.random() < mood.meddling:
                status = (
                    dice.choice(mood.worse) if dice.random() < mood.harsh else LedgerStatus.ACTIVE
                )
                self._set_status(dice.choice(self.owners), dice.choice(mood.books), status)
            meddle_with_clocks(self)
            meddle_with_locks(self)
            if (living := world.living()) and dice.random() < mood.reaper:
                self.meddling["killed anywhere"] += 1
                world.kill(dice.choice(living))

    async def _besiege(self) -> None:
        world, siege = self.world, self.mood.siege
        # A core that nobody has ever heard from cannot be told from another.
        await until(lambda: siege is not CoreTrouble.STRANGER or world.tables.rows[MARKS], 0.2)
        self.meddling[siege] += 1
        world.besieged = True
        world.note("world", f"siege: {siege}")
        if siege is CoreTrouble.BUSY:
            world.host.be_busy(busy=True)
        elif siege is CoreTrouble.STRANGER:
            world.auditor.estranged = True
            world.later(world.host.be_strange(world.dice.uniform(1.0, 6.0)))
        else:
            world.host.held_back = True
            world.host.crash(world.dice.choice((Fault.CORE_KILLED, Fault.POWER_LOST)))

    def _set_status(self, owner: int, book: str, status: LedgerStatus) -> None:
        world, rows = self.world, self.world.tables.rows[ACCOUNTS]
        self.meddling[f"{book} {status}"] += 1
        if book == SPOT:
            world.core_status(owner, ASSET, wire.AccountStatus[status])
            return
        key = account_at((owner, book, ASSET))
        if self._free(key):
            available, held, _ = rows[key]
            rows[key] = balance_of((available, held, status))

    def _free(self, key: Account) -> bool:
        return (ACCOUNTS, key) not in self.world.tables.holders

    def _moved(self, account: tuple[str, int, str, int], verb: str) -> None:
        """Between a debit and its refund, the account fills up."""
        _, owner, _, _ = account
        if verb == "debit" and owner in self.mood.flooded and not self.world.healed:
            self.meddling["flood"] += 1
            self.world.flood(owner, ASSET)

    def _heal(self) -> None:
        world = self.world
        world.note("world", "heals")
        world.healed = True
        if self.mood.siege.lasts:
            world.host.held_back = False
            waits = any(self._waits(world.auditor.lives[id_]) for id_ in world.auditor.open)
            if waits and not world.auditor.pages:
                world.auditor.blame(f"{self.mood.siege} for over a minute, and nobody was told")
            if self.mood.siege is CoreTrouble.OUTAGE:
                judge_notes(world)
        world.host.be_busy(busy=False)
        world.host.skew_s = 0.0
        for node in world.living():
            node.skew_s = 0.0
        world.later(self._thaw())

    def _waits(self, life: AuditedTransfer) -> bool:
        ask = self.world.flows[life.transfer.flow].ask(life.transfer.state)
        if ask is None or ask.patience.page_after_s is None or life.transfer.lane != CORE:
            return False
        late_s = ask.patience.page_after_s + ask.patience.cap_s + LEASES_S
        # Whoever is started finds what was leased to the dead a lease later.
        old = any(self.world.loop.now_s - n.began_s > LEASES_S for n in self.world.living())
        return old and self.world.loop.now_s - life.since_s > late_s

    async def _thaw(self) -> None:
        """Until it is done: whoever is to do it may be starting just now."""
        world = self.world
        for owner in self.owners:
            for book in (FUNDING, OUTSIDE, SUSPENSE, *MEMBERS):
                key = account_at((owner, book, ASSET))
                await until(partial(self._free, key), 0.01)
                rows = world.tables.rows[ACCOUNTS]
                available, held, _ = rows[key]
                rows[key] = balance_of((available, held, LedgerStatus.ACTIVE))
        # What was submitted to a disk that stalls may still arrive.
        quiet_s = world.loop.now_s + (STALL_S[1] + 2.0 if self.mood.flooded else 0.0)
        while not all(map(self._thawed, self.owners)) or world.loop.now_s < quiet_s:
            for owner in self.owners:
                world.core_status(owner, ASSET, wire.AccountStatus.ACTIVE)
                held = world.auditor.books[CORE, owner, SPOT, ASSET]
                if held > BRIMFUL:
                    excess = world.auditor.endowed[owner, ASSET]
                    world.core_move(CoreVerb.DEBIT, owner, ASSET, min(excess, held))
            await sleep(0.3)

    def _thawed(self, owner: int) -> bool:
        core, spot = self.world.host.core, wire.account(wire.CoreBook.SPOT, ASSET, owner)
        held = self.world.auditor.books[CORE, owner, SPOT, ASSET]
        return (
            core is not None
            and core.book.status(spot) == wire.AccountStatus.ACTIVE
            and held < BRIMFUL
        )

    async def _ended(self, asking: "Sequence[asyncio.Future[None]]", healed_s: float) -> None:
        world = self.world
        while world.auditor.open or not all(client.done() for client in asking):
            if world.auditor.violations:
                return
            if world.loop.now_s > healed_s + LIVENESS_S:
                still = [world.auditor.lives[id_].transfer for id_ in sorted(world.auditor.open)]
                world.auditor.blame(f"not ended {LIVENESS_S:.0f} s after healing: {still[:2]}")
                return
            await sleep(self.look_s)
        for client in asking:
            client.result()

    async def _aftermath(self) -> None:
        """All has ended. What is still on its way arrives, and must change nothing."""
        world = self.world
        executed = world.auditor.executed
        self.meddling["late after the end"] += len(world.network.pending)
        world.network.flush()
        await until(lambda: not world.background and world.host.core, 0.25)
        await sleep(0.25)
        if world.auditor.executed != executed:
            world.auditor.blame("money moved after everything had ended")
        if len(set(self.clients.told.values())) != len(world.auditor.lives):
            world.auditor.blame("a transfer exists that nobody was told of")
        asked = {(wish.owner, wish.cid) for wish in self.wishes if wish.cid}
        if asked and len(asked) != len(world.auditor.lives) + world.limits.turned_away():
            world.auditor.blame("a request became neither a transfer nor a refusal")
        world.auditor.finish(world.ledger_balances(), world.host.balances())


def run(
    seed: int,
    fate: FaultSource | None = None,
    alter: Callable[[Scenario], None] | None = None,
    flows: Mapping[str, Flow] = FLOWS,
    rules_of: RulesOf = KindRules,
) -> SeedResult:
    """One seed from beginning to end, by the dice of the seed or by a plan.

    `alter` may change the scenario before it begins: its wishes, its mood, the world's terms.
    """
    with uncollected():
        return _run(seed, fate, alter, flows, rules_of)


def _run(
    seed: int,
    fate: FaultSource | None,
    alter: Callable[[Scenario], None] | None,
    flows: Mapping[str, Flow],
    rules_of: RulesOf,
) -> SeedResult:
    dice = random.Random(seed)  # noqa: S311  To be thrown again.
    scenes: list[Scenario] = []

    async def main(loop: SimLoop) -> None:
        world = World(loop, dice, flows)
        world.rules_of = rules_of
        scene = by_plan(world, fate) if fate is not None else by_dice(world)
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
        len(world.auditor.lives),
        world.limits.turned_away(),
        world.auditor.edges,
        world.faults,
        scene.meddling,
        scene.liveness_s,
        world.loop.steps,
    )


def by_dice(world: World) -> Scenario:
    """Everything is thrown: what fails, how people behave, and how the workers are set up."""
    dice = world.dice
    world.fates, world.terms, mood = (
        RandomFaults(dice),
        SeedVariant.thrown(dice),
        Behaviour.thrown(dice),
    )
    scene = Scenario(world, mood)
    count = TRANSFERS + (MORE if world.terms.daily else 0)
    scene.wishes = requests(
        dice, mood, count
    )  # Now: what is thrown below shall not depend on when.
    scene.nodes = dice.choice((1, 2, 2, 3))
    if mood.siege.lasts:
        world.terms = world.terms._replace(scan_s=SIEGE_SCAN_S)
    if mood.retiring:
        scene.retire()
    return scene


def by_plan(world: World, plan: FaultSource) -> Scenario:
    """Nothing fails but what is planned, nobody meddles, and all wishes are made at once."""
    scene = Scenario(world, Behaviour())
    scene.plan, scene.spread_s = plan, 0.0
    scene.clients.programs.expiring = 0.0
    return scene
