"""The simulated world: a database, a core on its disk, workers that can die, and a network."""

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
from tidegate.simulation.disk import DiskContent, DiskEnvironment, SimDisk
from tidegate.simulation.faults import Fault, FaultPlan, FaultSource
from tidegate.simulation.floors import HORIZON, retire_periodically
from tidegate.simulation.inbox import InboxAuditor, forms
from tidegate.simulation.limits_auditor import LimitsAuditor, SimLimits
from tidegate.simulation.loop import SimLoop, sleep
from tidegate.simulation.network import Network, NetworkEnvironment
from tidegate.simulation.store import SimTransaction, WorkerStore
from tidegate.simulation.variants import SeedVariant
from tidegate.store.memory_tables import MemoryTables
from tidegate.systems.guild import MemoryAllowance, MemoryChecks
from tidegate.systems.ledger import MemoryLedger
from tidegate.systems.ledger.memory import ACCOUNTS
from tidegate.systems.trading import KnownCore, load_known_core
from tidegate.trading_core.core import Core, CoreBusy, CoreLimits, CoreStopped
from tidegate.trading_core.wal import LogDamaged

RESTART_S = 2.0  # A process that died is started again within this time.
CORE_UUID, FOREIGN_UUID = bytes(range(16)), bytes(range(1, 17))


class SimWorker:
    """One worker. After its death it runs nothing more, not even its `finally` blocks."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.context = Context()
        self.open: dict[Any, None] = {}  # Its open transactions.
        self.skew_s = 0.0  # The error of its clock.
        self.began_s = world.loop.now_s
        self.doubts = 0  # COMMITs whose reply it did not get.
        self.unreached_s: list[float] = []  # When it could not reach the core.
        self.store = WorkerStore(self)
        self.flows = self._flows()
        self.engine: Engine[SimTransaction] | None = None

    def __str__(self) -> str:
        return self.name

    def _flows(self) -> Mapping[str, Flow]:
        """The flows that its version knows. Worker "a" and its replacements have the newer version.

        The version of the others is drawn at each start: they are upgraded and downgraded.
        """
        world, added = self.world, self.world.variant.added
        if added is None or self.name.startswith("a") or world.dice.random() < 0.5:
            return world.flows
        world.events["older version"] += 1
        world.note(self.name, f"does not know {added}")
        return {name: flow for name, flow in world.flows.items() if name != added}

    async def start(self) -> None:
        world, served, daily = self.world, self.world.variant.systems, self.world.variant.daily
        world.limits.daily = daily
        local = MemoryLedger(LEDGER), MemoryAllowance(), MemoryChecks()
        self.engine = Engine(
            EngineParts(
                store=self.store,
                flows=self.flows,
                outside=[SimTrading(self)] if CORE in served else [],
                local=[system for system in local if system.name in served],
                clock=self.clock,
                dice=random.Random(world.dice.random()),  # noqa: S311  It must be reproducible.
                alert=self.alert,
                scan_s=world.variant.scan_s,
                ring_size=world.variant.ring_size,
                loops_per_lane=world.variant.loops_per_lane,
                many_callers=world.variant.many,
                worker=self.name,
                forms=forms(self.flows) if world.variant.inbox else {},
                admission=None if daily is None else SimLimits(self, daily),
                rules_of=world.rules_of,
            )
        )
        await self.engine.__aenter__()
        if world.variant.retires:
            self.retiring = asyncio.ensure_future(retire_periodically(self, SimTrading(self)))

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
            raise Unreachable(f"cannot store the floor of the core: {fault}") from fault

    async def recalled(self) -> KnownCore:
        try:
            async with self.store.transaction() as tx:
                return await load_known_core(tx, CORE)
        except StoreUnavailable as fault:
            raise Unreachable(f"cannot read the known position of the core: {fault}") from fault

    async def die(self) -> None:
        """Kill the worker in the middle of a call. This never returns."""
        self.world.kill(self)
        await self.world.loop.create_future()


class CoreHost:
    """The machine of the core, with a supervisor that restarts the core when it ends."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.storage = DiskContent()
        self.context = Context()
        self.core: Core | None = None
        self.running = False
        self.disk: SimDisk | None = None
        self.start_blocked = False  # The supervisor does not start it for now.
        self.busy = False  # It accepts nothing for now.
        self.skew_s = 0.0  # The error of its clock.
        self.foreign = False  # Another core runs here, on an empty disk.

    def start(self) -> None:
        world = self.world
        self.context = Context()
        environment = DiskEnvironment(
            world.next_fault, world.dice, world.auditor.synced, self.crash
        )
        storage = self.storage
        if self.foreign:
            storage, environment = DiskContent(), environment._replace(synced=lambda _: None)
        self.disk = SimDisk(storage, environment)
        self.running = True
        world.loop.create_task(self._run_core(self.disk), context=self.context)

    async def _run_core(self, disk: SimDisk) -> None:
        """The core's process. A disk error ends it, as it ends the real one."""
        limits = CoreLimits(
            snapshot_records=self.world.variant.snapshot_records, marks=10_000, horizon=HORIZON
        )
        try:
            core_uuid = FOREIGN_UUID if self.foreign else CORE_UUID
            core = await Core.open(disk, core_uuid, self.clock, limits)
            if disk.closed:
                return  # It was killed in its last step, so clients must not connect to it.
            self.core = core
            self.set_busy(busy=self.busy)
            self.world.note("core", f"epoch {core.epoch} at position {core.log_position.position}")
            if not self.foreign:
                inode = self.storage.entries[core.log.header.name]
                self.world.auditor.opened(inode, core.book.position, self.balances())
            await core.run()
        except OSError as fault:
            self.world.note("core", f"stops: {fault}")
        except LogDamaged as fault:
            if not disk.closed:
                self.world.auditor.report(f"the core cannot read its own disk: {fault}")
        if not disk.closed:  # Otherwise it was killed, and this task has no effect.
            self._ended(silently=False)

    def clock(self) -> float:
        return self.world.loop.now_s + self.skew_s

    def set_busy(self, *, busy: bool) -> None:
        self.busy = busy
        if self.core is not None:
            queue = 0 if busy else CoreLimits().queue_requests
            self.core.limits = self.core.limits._replace(queue_requests=queue)

    def _ended(self, *, silently: bool) -> None:
        self.running, self.core = False, None
        if self.disk is not None:
            self.disk.closed = True
        self.world.network.disconnect_all(silently=silently)
        self.world.in_background(self._restart())

    def crash(self, fault: Fault) -> None:
        """Kill the core at once. If the power is lost, unsynced data may be lost, too."""
        if self.running:
            self.world.loop.kill(self.context)
            if fault is Fault.POWER_LOST and not self.foreign:
                self.storage.lose_power(self.world.dice)
            self._ended(silently=fault is Fault.POWER_LOST)

    async def _restart(self) -> None:
        await sleep(self.world.dice.random() * RESTART_S)
        await until(lambda: not self.start_blocked, 1.0)
        self.start()

    async def run_foreign_core(self, seconds: float) -> None:
        """Run an empty foreign core in place of ours for some time."""
        self.start_blocked = True
        self.crash(Fault.CORE_KILLED)
        await until(lambda: not self.running, 0.1)
        self.foreign, self.start_blocked = True, False
        await sleep(seconds)
        await until(lambda: self.running, 0.1)
        self.start_blocked = True
        self.crash(Fault.CORE_KILLED)
        self.foreign, self.start_blocked = False, False

    def balances(self) -> Mapping[Account, int]:
        """The balances that the core reports."""
        assert self.core is not None
        book, balances = self.core.book, {}
        for raw, index in book.accounts.items():
            owner = int.from_bytes(raw[5:])
            key = CORE, owner, CoreBook(raw[0]).name, int.from_bytes(raw[1:5])
            balances[key] = book.balances[index]
        return balances


async def until(is_true: Callable[[], object], every_s: float) -> None:
    """Poll until the condition holds, in a simulated loop or in a real one."""
    while not is_true():  # noqa: ASYNC110
        await asyncio.sleep(every_s)


class World:
    """Everything that survives a process, and the random numbers of one seed."""

    def __init__(self, loop: SimLoop, dice: random.Random, flows: Mapping[str, Flow]) -> None:
        self.loop, self.dice, self.flows = loop, dice, flows
        self.rules_of: RulesOf = KindRules
        self.variant = SeedVariant()
        self.fault_source: FaultSource = FaultPlan()
        self.faults: Counter[tuple[str, Fault]] = Counter()
        self.events: Counter[str] = Counter()  # What happens besides faults.
        self.trace: list[tuple[float, str, str]] = []
        self.faults_ended = False
        self.auditor = Auditor(flows, AuditorView(loop.time, self.is_alive, self.note))
        self.auditor.alerts_expected = self.alerts_expected
        self.limits = LimitsAuditor(self.auditor.report, self.events)
        self.inbox = InboxAuditor(self.auditor.report)
        self.tables = MemoryTables()
        self.host = CoreHost(self)
        self.network = Network(
            loop, self.host, NetworkEnvironment(self.next_fault, dice, self.answered)
        )
        self.workers: list[SimWorker] = []
        self.background: set[asyncio.Task[None]] = set()
        self.deaths = 0
        self.disturbed = False
        self.database_skew_s = 0.0  # The error of the database's clock.
        self._own_operations = 0

    def next_fault(self, point: str) -> Fault | None:
        """The fault of the next call at this point. None after the faults have ended."""
        if self.faults_ended:
            return None
        fault = self.fault_source.next_fault(point)
        if fault is not None:
            self.faults[point, fault] += 1
            self.note(point, fault)
        return fault

    def answered(self, questions: bytes, reply: bytes) -> None:
        if self.host.foreign:
            self.auditor.report("a foreign core was asked and has answered")
        else:
            self.auditor.answered(questions, reply)

    def database_time(self) -> float:
        return self.loop.now_s + self.database_skew_s

    def note(self, source: str, text: str) -> None:
        self.trace.append((self.loop.now_s, source, text))

    def alerts_expected(self) -> bool:
        return bool(self.faults) or self.disturbed

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work, context=self.loop.world_context)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    def kill(self, worker: SimWorker) -> None:
        """Kill a worker. The server rolls back its transactions, except for late commits."""
        if not worker.alive:
            return
        worker.alive = False
        self.deaths += 1
        self.note(worker.name, "dies")
        self.loop.kill(worker.context)
        for tx in list(worker.open):
            tx.end()
        worker.open.clear()
        self.network.client_died(worker)
        self.in_background(self._replace(f"{worker.name[0]}{self.deaths}"))

    async def _replace(self, name: str) -> None:
        await sleep(self.dice.random() * RESTART_S)
        await self.start_worker(name)

    async def start_worker(self, name: str) -> None:
        worker = SimWorker(self, name)
        self.workers = [*self.living(), worker]
        await self.loop.create_task(worker.start(), context=worker.context)

    def living(self) -> list[SimWorker]:
        return [worker for worker in self.workers if worker.alive]

    def is_alive(self, worker: object) -> bool:
        return isinstance(worker, SimWorker) and worker.alive

    # Changes of core accounts that are not made by transfers.

    def core_status(self, owner: int, asset_id: int, status: AccountStatus) -> None:
        self._submit(
            FrameKind.SET_STATUS, STATUS.pack(account(CoreBook.SPOT, asset_id, owner), status)
        )

    def core_move(self, verb: CoreVerb, owner: int, asset_id: int, amount: int) -> None:
        """Add or remove money, under a key of the world's own."""
        self._submit(FrameKind.ASSETS, pack_assets([asset_id]))
        self._own_operations += 1
        key = KEY.pack(self._own_operations.to_bytes(16), 0)
        spot = account(CoreBook.SPOT, asset_id, owner)
        self._submit(FrameKind.ASK, OPERATION.pack(key, verb, 0, 0, spot, amount.to_bytes(16)))

    def _submit(self, kind: FrameKind, body: bytes) -> None:
        """Submit to the core directly. If it is down or busy, nothing happens."""
        if self.host.core is not None:
            try:
                self.host.core.submit(kind, body)
            except (CoreBusy, CoreStopped):
                self.note("core", "accepts nothing")

    def fill(self, owner: int, asset_id: int) -> None:
        """Fill an account up to the largest amount, so that not even a refund fits."""
        if self.host.core is not None:
            held = self.auditor.books[CORE, owner, CoreBook.SPOT.name, asset_id]
            if held < MAX_AMOUNT:
                self.core_move(CoreVerb.CREDIT, owner, asset_id, MAX_AMOUNT - held)

    def ledger_balances(self) -> Mapping[Account, int]:
        rows: dict[Any, Any] = self.tables.rows[ACCOUNTS]
        return {(LEDGER, *key): row.available + row.held for key, row in rows.items()}

    def end(self) -> None:
        """Stop everything. No effect counts any more."""
        self.faults_ended = True
        for worker in self.living():
            worker.alive = False
            for tx in list(worker.open):
                tx.end()
        if self.host.disk is not None:
            self.host.disk.closed = True
