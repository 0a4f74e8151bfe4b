"""A world to simulate in: a database, a core on its disk, workers that die, and a network."""

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from typing import Any

from tidegate.core.answers import Alarm, Unreachable
from tidegate.core.flow import Flow
from tidegate.core.money import MAX_AMOUNT
from tidegate.core.ports import StoreUnavailable
from tidegate.core.wire import (
    KEY,
    OPERATION,
    STATUS,
    AccountStatus,
    CoreBook,
    CoreVerb,
    FrameKind,
    account,
    pack_assets,
)
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.engine import Engine, EngineParts
from tidegate.engine.kind_rules import KindRules, RulesOf
from tidegate.simulation.auditor import CORE, LEDGER, Account, Auditor, AuditorView
from tidegate.simulation.core_client import SimTrading
from tidegate.simulation.disk import DiskContent, DiskSurroundings, SimDisk
from tidegate.simulation.faults import Fault, FaultPlan, FaultSource
from tidegate.simulation.floors import HORIZON, retire_for_ever
from tidegate.simulation.inbox import InboxAuditor, forms
from tidegate.simulation.limits_auditor import LimitsAuditor, SimLimits
from tidegate.simulation.loop import SimLoop, sleep
from tidegate.simulation.network import Network, NetworkSurroundings
from tidegate.simulation.store import NodeStore, SimTransaction
from tidegate.simulation.variants import SeedVariant
from tidegate.store.memory_tables import MemoryTables
from tidegate.systems.guild import MemoryAllowance, MemoryChecks
from tidegate.systems.ledger import MemoryLedger
from tidegate.systems.ledger.memory import ACCOUNTS
from tidegate.systems.trading import KnownCore, load_known_core
from tidegate.trading_core.core import Core, CoreBusy, CoreLimits, CoreStopped
from tidegate.trading_core.wal import LogDamaged

REST_S = 2.0  # Within which whoever died is started again.
UUID, STRANGE = bytes(range(16)), bytes(range(1, 17))


class SimWorker:
    """One worker. Once dead it does nothing more, and runs none of its `finally`."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.context = Context()
        self.open: dict[Any, None] = {}  # Its transactions.
        self.skew_s = 0.0  # How wrong its clock is.
        self.began_s = world.loop.now_s
        self.doubts = 0  # COMMITs whose reply it did not get.
        self.unreached_s: list[float] = []  # When it asked the core in vain.
        self.store = NodeStore(self)
        self.flows = self._flows()
        self.engine: Engine[SimTransaction] | None = None

    def __str__(self) -> str:
        return self.name

    def _flows(self) -> Mapping[str, Flow]:
        """What its version knows. The first worker and all in its place are of the newer one.

        The others are thrown anew with each start: they are upgraded, and downgraded.
        """
        world, added = self.world, self.world.terms.added
        if added is None or self.name.startswith("a") or world.dice.random() < 0.5:
            return world.flows
        world.meddling["older version"] += 1
        world.note(self.name, f"does not know {added}")
        return {name: flow for name, flow in world.flows.items() if name != added}

    async def start(self) -> None:
        world, served, daily = self.world, self.world.terms.systems, self.world.terms.daily
        world.limits.daily = daily
        local = MemoryLedger(LEDGER), MemoryAllowance(), MemoryChecks()
        self.engine = Engine(
            EngineParts(
                store=self.store,
                flows=self.flows,
                outside=[SimTrading(self)] if CORE in served else [],
                local=[system for system in local if system.name in served],
                clock=self.clock,
                dice=random.Random(world.dice.random()),  # noqa: S311  To be thrown again.
                alert=self.alert,
                scan_s=world.terms.scan_s,
                ring_size=world.terms.ring_size,
                loops_per_lane=world.terms.loops_per_lane,
                many=world.terms.many,
                worker=self.name,
                forms=forms(self.flows) if world.terms.inbox else {},
                admission=None if daily is None else SimLimits(self, daily),
                rules_of=world.rules_of,
            )
        )
        await self.engine.__aenter__()
        if world.terms.retires:
            self.retiring = asyncio.ensure_future(retire_for_ever(self, SimTrading(self)))

    def clock(self) -> float:
        return self.world.loop.now_s + self.skew_s

    def alert(self, alert: Alert) -> None:
        if self.alive:
            self.world.auditor.alerted(alert, self)

    def refused(self, reason: str) -> None:
        self.alert(Alert(Alarm.CRITICAL, AlertCode.CORE_REFUSED, reason, CORE))

    async def connect(self) -> Any:
        return await self.world.network.connect(self)

    async def raise_floor(self, floor: uuid.UUID) -> None:
        try:
            await self.store.raise_to(floor)
        except StoreUnavailable as fault:
            raise Unreachable(f"we cannot keep the floor of the core: {fault}") from fault

    async def recalled(self) -> KnownCore:
        try:
            async with self.store.transaction() as tx:
                return await load_known_core(tx, CORE)
        except StoreUnavailable as fault:
            raise Unreachable(f"we cannot look up what the core has told us: {fault}") from fault

    async def die(self) -> None:
        """Killed in the middle of a call: it does not come back from here."""
        self.world.kill(self)
        await self.world.loop.create_future()


class CoreHost:
    """The machine of the core, with a supervisor that starts it again whenever it has ended."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.platter = DiskContent()
        self.context = Context()
        self.core: Core | None = None
        self.running = False
        self.disk: SimDisk | None = None
        self.held_back = False  # Nobody starts it for the time being.
        self.busy = False  # It takes nothing for the time being.
        self.skew_s = 0.0  # How wrong its clock is.
        self.stranger = False  # What runs there is another core, on an empty disk.

    def start(self) -> None:
        world = self.world
        self.context = Context()
        hands = DiskSurroundings(world.fate, world.dice, world.auditor.synced, self.crash)
        platter = self.platter
        if self.stranger:
            platter, hands = DiskContent(), hands._replace(synced=lambda _: None)
        self.disk = SimDisk(platter, hands)
        self.running = True
        world.loop.create_task(self._live(self.disk), context=self.context)

    async def _live(self, disk: SimDisk) -> None:
        """The core's process. An error of its disk ends it, as it ends the real one."""
        limits = CoreLimits(
            snapshot_records=self.world.terms.snapshot_records, marks=10_000, horizon=HORIZON
        )
        try:
            fresh = STRANGE if self.stranger else UUID
            core = await Core.open(disk, fresh, self.clock, limits)
            if disk.shut:
                return  # Killed by its last step: nobody shall talk to its shadow.
            self.core = core
            self.be_busy(busy=self.busy)
            self.world.note("core", f"epoch {core.epoch} at position {core.place.position}")
            if not self.stranger:
                inode = self.platter.entries[core.log.header.name]
                self.world.auditor.opened(inode, core.book.position, self.balances())
            await core.run()
        except OSError as fault:
            self.world.note("core", f"stops: {fault}")
        except LogDamaged as fault:
            if not disk.shut:
                self.world.auditor.blame(f"the core does not read its own disk: {fault}")
        if not disk.shut:  # Else it has been killed, and this is only its shadow.
            self._ended(silently=False)

    def clock(self) -> float:
        return self.world.loop.now_s + self.skew_s

    def be_busy(self, *, busy: bool) -> None:
        self.busy = busy
        if self.core is not None:
            queue = 0 if busy else CoreLimits().queue_requests
            self.core.limits = self.core.limits._replace(queue_requests=queue)

    def _ended(self, *, silently: bool) -> None:
        self.running, self.core = False, None
        if self.disk is not None:
            self.disk.shut = True
        self.world.network.hang_up(silently=silently)
        self.world.later(self._restart())

    def crash(self, fault: Fault) -> None:
        """Dead at once, and what was not synced with it, if the power went."""
        if self.running:
            self.world.loop.kill(self.context)
            if fault is Fault.POWER_LOST and not self.stranger:
                self.platter.lose_power(self.world.dice)
            self._ended(silently=fault is Fault.POWER_LOST)

    async def _restart(self) -> None:
        await sleep(self.world.dice.random() * REST_S)
        await until(lambda: not self.held_back, 1.0)
        self.start()

    async def be_strange(self, seconds: float) -> None:
        """For a while another core answers the door, which knows nothing. Then ours is back."""
        self.held_back = True
        self.crash(Fault.CORE_KILLED)
        await until(lambda: not self.running, 0.1)
        self.stranger, self.held_back = True, False
        await sleep(seconds)
        await until(lambda: self.running, 0.1)
        self.held_back = True
        self.crash(Fault.CORE_KILLED)
        self.stranger, self.held_back = False, False

    def balances(self) -> Mapping[Account, int]:
        """What the core holds, by its own account."""
        assert self.core is not None
        book, found = self.core.book, {}
        for raw, index in book.accounts.items():
            owner = int.from_bytes(raw[5:])
            found[CORE, owner, CoreBook(raw[0]).name, int.from_bytes(raw[1:5])] = book.balances[
                index
            ]
        return found


async def until(holds: Callable[[], object], every_s: float) -> None:
    """Poll until the condition holds, in a simulated loop or in a real one."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(every_s)


class World:
    """Everything that outlives a process, and the dice of one seed."""

    def __init__(self, loop: SimLoop, dice: random.Random, flows: Mapping[str, Flow]) -> None:
        self.loop, self.dice, self.flows = loop, dice, flows
        self.rules_of: RulesOf = KindRules
        self.terms = SeedVariant()
        self.fates: FaultSource = FaultPlan()
        self.faults: Counter[tuple[str, Fault]] = Counter()
        self.meddling: Counter[str] = Counter()  # What people and machines do besides.
        self.trace: list[tuple[float, str, str]] = []
        self.healed = False
        self.auditor = Auditor(flows, AuditorView(loop.time, self.living_one, self.note))
        self.auditor.trouble = self.troubled
        self.limits = LimitsAuditor(self.auditor.blame, self.meddling)
        self.inbox = InboxAuditor(self.auditor.blame)
        self.tables = MemoryTables()
        self.host = CoreHost(self)
        self.network = Network(loop, self.host, NetworkSurroundings(self.fate, dice, self.answered))
        self.nodes: list[SimWorker] = []
        self.background: set[asyncio.Task[None]] = set()
        self.deaths = 0
        self.besieged = False
        self.shift_s = 0.0  # How wrong the database's clock is.
        self._own = 0

    def fate(self, point: str) -> Fault | None:
        """What the next call at this point suffers; after the healing, nothing any more."""
        if self.healed:
            return None
        fault = self.fates.suffers(point)
        if fault is not None:
            self.faults[point, fault] += 1
            self.note(point, fault)
        return fault

    def answered(self, questions: bytes, reply: bytes) -> None:
        if self.host.stranger:
            self.auditor.blame("a core that is not ours was asked, and has answered")
        else:
            self.auditor.answered(questions, reply)

    def database_time(self) -> float:
        return self.loop.now_s + self.shift_s

    def note(self, who: str, what: str) -> None:
        self.trace.append((self.loop.now_s, who, what))

    def troubled(self) -> bool:
        return bool(self.faults) or self.besieged

    def later(self, landing: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(landing, context=self.loop.own)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    def kill(self, node: SimWorker) -> None:
        """The server notices: what was not committed is rolled back, or is just landing."""
        if not node.alive:
            return
        node.alive = False
        self.deaths += 1
        self.note(node.name, "dies")
        self.loop.kill(node.context)
        for tx in list(node.open):
            tx.end()
        node.open.clear()
        self.network.leave(node)
        self.later(self._replace(f"{node.name[0]}{self.deaths}"))

    async def _replace(self, name: str) -> None:
        await sleep(self.dice.random() * REST_S)
        await self.raise_node(name)

    async def raise_node(self, name: str) -> None:
        node = SimWorker(self, name)
        self.nodes = [*self.living(), node]
        await self.loop.create_task(node.start(), context=node.context)

    def living(self) -> list[SimWorker]:
        return [node for node in self.nodes if node.alive]

    def living_one(self, node: object) -> bool:
        return isinstance(node, SimWorker) and node.alive

    # What people do to accounts, beside the transfers.

    def core_status(self, owner: int, asset_id: int, status: AccountStatus) -> None:
        self._submit(
            FrameKind.SET_STATUS, STATUS.pack(account(CoreBook.SPOT, asset_id, owner), status)
        )

    def core_move(self, verb: CoreVerb, owner: int, asset_id: int, amount: int) -> None:
        """Money that comes and goes by itself, under a key of the world's own."""
        self._submit(FrameKind.ASSETS, pack_assets([asset_id]))
        self._own += 1
        key = KEY.pack(self._own.to_bytes(16), 0)
        spot = account(CoreBook.SPOT, asset_id, owner)
        self._submit(FrameKind.ASK, OPERATION.pack(key, verb, 0, 0, spot, amount.to_bytes(16)))

    def _submit(self, kind: FrameKind, body: bytes) -> None:
        """Somebody at the core's own machine. If it is down just now, nothing comes of it."""
        if self.host.core is not None:
            try:
                self.host.core.submit(kind, body)
            except (CoreBusy, CoreStopped):
                self.note("core", "takes nothing")

    def flood(self, owner: int, asset_id: int) -> None:
        """Fill an account to the brim, so that not even a refund fits."""
        if self.host.core is not None:
            held = self.auditor.books[CORE, owner, CoreBook.SPOT.name, asset_id]
            if held < MAX_AMOUNT:
                self.core_move(CoreVerb.CREDIT, owner, asset_id, MAX_AMOUNT - held)

    def ledger_balances(self) -> Mapping[Account, int]:
        rows: dict[Any, Any] = self.tables.rows[ACCOUNTS]
        return {(LEDGER, *key): row.available + row.held for key, row in rows.items()}

    def end(self) -> None:
        """Nothing counts any more."""
        self.healed = True
        for node in self.living():
            node.alive = False
            for tx in list(node.open):
                tx.end()
        if self.host.disk is not None:
            self.host.disk.shut = True
