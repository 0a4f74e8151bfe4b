"""The composition root: builds the engine from its parts, with real clocks and randomness."""

import gc
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import msgspec
import structlog

from tidegate.background import BackgroundTask, BackgroundTasks
from tidegate.core.answers import Alarm, Unreachable
from tidegate.core.flow import Flow
from tidegate.core.ids import HORIZON_S
from tidegate.core.kind import Transfer
from tidegate.core.money import parse_amount
from tidegate.core.ports import LocalSystem, StoreUnavailable, System
from tidegate.core.refusals import Refusal
from tidegate.core.request import Asset
from tidegate.core.wire import Binding
from tidegate.engine.alerts import Alert, AlertCode, alert_fields
from tidegate.engine.engine import Engine, EngineParts
from tidegate.engine.gate import ACCOUNTS, CORE, Gate
from tidegate.engine.inbox_reader import Form
from tidegate.engine.request_forms import LEDGER, forms_of
from tidegate.engine.retirement import Retirement
from tidegate.engine.ring import RING_SIZE
from tidegate.flows import FLOWS, GUILD_FLOWS
from tidegate.store.daily_limits import DailyLimits
from tidegate.store.floors import PostgresFloors
from tidegate.store.pool_schema import is_installed
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.store.transaction import PostgresTransaction
from tidegate.systems.guild import Allowance, Checks
from tidegate.systems.ledger import Ledger
from tidegate.systems.trading import (
    CoreCaller,
    KnownCore,
    TradingCoreClient,
    dial,
    load_known_core,
    worker_name,
)

SCHEMA = "tidegate_store"
RETIRE_EVERY_S, RETIREMENT = 600.0, "retirement"
YOUNG_OBJECTS, OLDER_ROUNDS = 100_000, (20, 50)

log = structlog.get_logger("tidegate")


@dataclass(frozen=True, slots=True)
class Setup:
    """The choices of a program. Only the database has no default."""

    database: str
    schema: str = SCHEMA
    core: str | None = None  # The address of the trading core: unix:PATH or tcp:HOST:PORT.
    systems: tuple[System, ...] = ()  # Systems of the program, besides the ledger and the core.
    flows: tuple[Flow, ...] = ()  # Flows of the program, besides the built-in ones.
    bounds: StoreLimits | None = None
    scan_s: float = 1.0
    ring_size: int = RING_SIZE
    alert: Callable[[Alert], None] | None = None
    # Called with the transfers whose end this engine has recorded.
    ended: Callable[[Sequence[Transfer]], None] = lambda _: None
    background: BackgroundTasks | None = None  # The tasks of the program, if it has any.
    transfers_per_day: int | None = None  # The limit of one owner. None: no limit.
    daily_amounts: Mapping[str, str] = field(default_factory=dict)  # Decimals, by asset code.
    accounts: frozenset[str] = frozenset({"FUNDING", "SPOT"})
    forms: Mapping[str, Form] = field(default_factory=dict)  # Inbox forms for flows of the program.


def collect_garbage_less_often() -> None:
    """Run the garbage collector less often, for a program that does nothing but serve.

    A batch creates thousands of objects, which reference counting frees. With the default
    thresholds the collector takes a fifth of the time of a transfer.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *OLDER_ROUNDS)


@asynccontextmanager
async def open_gate(setup: Setup) -> AsyncIterator[Gate]:
    """Start an engine. At the end of the block it stops cleanly and releases its leases."""
    alert = setup.alert or log_alert
    async with AsyncExitStack() as stack:
        store = PostgresStore(setup.database, setup.schema, setup.bounds)
        await stack.enter_async_context(store)
        has_economy = await is_installed(store)
        flows = [f for f in all_flows(*setup.flows) if has_economy or f.name not in GUILD_FLOWS]
        await store.verify(flows)
        core = None
        if setup.core is not None:
            core = trading(store, setup.core, alert)
            await store.forget_marks(CORE)
            stack.push_async_callback(core.close)
            # New ids must be above the floor of the core, which it sends on each new connection. If
            # the core is unreachable, the stored floor is used. It is lower only if this database
            # was restored, or has not stored a floor yet.
            with suppress(Unreachable):
                await core.totals()
        ledger = Ledger(LEDGER)
        local: list[LocalSystem[PostgresTransaction]] = [ledger]
        if has_economy:
            local += [Allowance(), Checks()]
        assets = dict(await store.assets())
        accounts = {
            name: msgspec.structs.replace(account, supported=name in setup.accounts)
            for name, account in ACCOUNTS.items()
        }
        parts = EngineParts(
            store=store,
            flows={flow.name: flow for flow in flows},
            outside=[*([core] if core else []), *setup.systems],
            local=local,
            clock=time.monotonic,
            dice=random.Random(os.urandom(16)),  # noqa: S311  Only for jitter of retries.
            alert=alert,
            ended=setup.ended,
            scan_s=setup.scan_s,
            ring_size=setup.ring_size,
            admission=daily_limits(setup, assets),
            worker=worker_name(socket.gethostname(), os.getpid()),
            forms={**forms_of(accounts, assets), **setup.forms},
        )
        engine = await stack.enter_async_context(Engine(parts))
        if core is not None:
            background = setup.background or BackgroundTasks(alert, time.monotonic)
            retire = BackgroundTask(RETIREMENT, _retirement(store, core, alert), RETIRE_EVERY_S)
            background.start(retire._replace(first_s=RETIRE_EVERY_S))
            stack.push_async_callback(background.stop, RETIREMENT)
        yield Gate(engine, store, ledger, core, assets, accounts, has_economy)


def daily_limits(setup: Setup, assets: Mapping[str, Asset]) -> DailyLimits | None:
    """The daily limits. None without any, so that nothing is counted."""
    amounts = {}
    for code, text in setup.daily_amounts.items():
        asset = assets.get(code)
        amount = parse_amount(text, asset.decimals) if asset else Refusal.INVALID_ASSET
        if asset is None or isinstance(amount, Refusal):
            raise ValueError(f"daily_amounts: {code}={text} is not an amount of a known asset")
        amounts[asset.id] = amount
    if setup.transfers_per_day is None and not amounts:
        return None
    return DailyLimits(setup.transfers_per_day, amounts)


def trading(
    store: PostgresStore, address: str, alert: Callable[[Alert], None]
) -> TradingCoreClient:
    """A client of the core that shows, on every connection, what this store knows of the core."""

    async def known_core() -> KnownCore:
        try:
            async with store.transaction() as tx:
                return await load_known_core(tx, CORE)
        except StoreUnavailable as fault:
            raise Unreachable(f"the stored marks of the core cannot be read: {fault}") from fault

    def refused(reason: str) -> None:
        alert(Alert(Alarm.CRITICAL, AlertCode.CORE_REFUSED, reason, CORE))

    async def raise_floor(floor: UUID) -> None:
        try:
            await PostgresFloors(store).raise_to(floor)
        except StoreUnavailable as fault:
            raise Unreachable(f"the floor of the core cannot be stored: {fault}") from fault

    caller = CoreCaller(worker_name(socket.gethostname(), os.getpid()))
    core = TradingCoreClient(CORE, dial(address), caller, known_core, refused)
    core.on_floor = raise_floor
    return core


def fresh_identity() -> UUID:
    """A new identity, for a store that was copied."""
    return UUID(bytes=os.urandom(16), version=4)


async def administrator(store: PostgresStore, address: str) -> tuple[TradingCoreClient, Binding]:
    """An administrator's client of a core, and the binding of the core to this store."""
    async with store.transaction() as tx:
        known = await load_known_core(tx, CORE)

    async def no_store() -> KnownCore:
        return KnownCore()

    caller = CoreCaller(worker_name(socket.gethostname(), os.getpid()))
    return TradingCoreClient(CORE, dial(address), caller, no_store), Binding(
        known.store, known.place
    )


def _retirement(
    store: PostgresStore, core: TradingCoreClient, alert: Callable[[Alert], None]
) -> Callable[[], Awaitable[None]]:
    """The task by which the core forgets operations of transfers that ended long ago."""
    retirement = Retirement(PostgresFloors(store), core.retire, time.time, alert)

    async def retire_once() -> None:
        floor = await retirement.round()
        log.info(
            "operations_retired", below=str(floor), horizon_s=HORIZON_S, every_s=RETIRE_EVERY_S
        )

    return retire_once


@contextmanager
def core_child(directory: Path) -> Iterator[str]:
    """Run a trading core as a child process, for programs without a separate one."""
    directory.mkdir(parents=True, exist_ok=True)
    address = f"unix:{directory / 'socket'}"
    command = [sys.executable, "-m", "tidegate.trading_core"]
    command += ["--data", str(directory), "--listen", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603
        try:
            assert child.stdout is not None
            if not child.stdout.readline():
                raise RuntimeError("the trading core did not start; see its message above")
            yield address
        finally:
            child.terminate()


def log_alert(alert: Alert) -> None:
    """Write an alert to the log. The event is its code, and the level follows from its alarm."""
    levels = {Alarm.NONE: log.info, Alarm.PAGE: log.warning}
    write = levels.get(alert.alarm, log.critical)
    write(str(alert.code), cause=alert.cause, **alert_fields(alert))


def all_flows(*flows: Flow) -> list[Flow]:
    """The built-in flows and those of the program. `migrate` installs them, an engine runs them."""
    return list((dict(FLOWS) | {flow.name: flow for flow in flows}).values())
