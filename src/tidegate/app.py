"""The composition root: the one place with a clock and dice, where the parts are put together."""

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
from tidegate.core.ports import StoreUnavailable, System
from tidegate.core.refusals import Refusal
from tidegate.core.request import Asset
from tidegate.core.wire import Binding
from tidegate.engine.alerts import Alert, AlertCode, told_as
from tidegate.engine.engine import Engine, EngineParts
from tidegate.engine.gate import ACCOUNTS, CORE, Gate
from tidegate.engine.inbox_reader import Form
from tidegate.engine.request_forms import LEDGER, forms_of
from tidegate.engine.retirement import Retirement
from tidegate.engine.ring import RING_SIZE
from tidegate.flows import FLOWS
from tidegate.store.daily_limits import DailyLimits
from tidegate.store.floors import PostgresFloors
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
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
    """What a program chooses. Everything has a default but the database."""

    database: str
    schema: str = SCHEMA
    core: str | None = None  # Where the trading core listens: unix:PATH or tcp:HOST:PORT.
    systems: tuple[System, ...] = ()  # The program's own, besides the ledger and the core.
    flows: tuple[Flow, ...] = ()  # The program's own, besides the built-in ones.
    bounds: StoreLimits | None = None
    scan_s: float = 1.0
    ring_size: int = RING_SIZE
    alert: Callable[[Alert], None] | None = None
    # Is told of every end recorded here.
    ended: Callable[[Sequence[Transfer]], None] = lambda _: None
    background: BackgroundTasks | None = None  # That of the program, if it has one.
    transfers_per_day: int | None = None  # Of one owner; None: as many as they like.
    daily_amounts: Mapping[str, str] = field(default_factory=dict)  # Decimals, by asset.
    accounts: frozenset[str] = frozenset({"FUNDING", "SPOT"})
    forms: Mapping[str, Form] = field(default_factory=dict)  # For the inbox, of flows of your own.


def collect_seldom() -> None:
    """For a program that does nothing but serve: look for cycles of garbage less often.

    A batch is thousands of objects that go away by themselves. Looking through all of them every
    few hundred took a fifth of the time that a transfer costs.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *OLDER_ROUNDS)


@asynccontextmanager
async def open_gate(setup: Setup) -> AsyncIterator[Gate]:
    """Start an engine; at the end of the block it stops cleanly and gives its leases back."""
    alert = setup.alert or log_alert
    async with AsyncExitStack() as stack:
        store = PostgresStore(setup.database, setup.schema, setup.bounds)
        await stack.enter_async_context(store)
        flows = all_flows(*setup.flows)
        await store.verify(flows)
        core = None
        if setup.core is not None:
            core = trading(store, setup.core, alert)
            await store.forget_marks(CORE)
            stack.push_async_callback(core.close)
            # Ids must be above the floor of the core. If it is away, the stored floor serves: it
            # is lower only if this database was restored, or is new to its floor.
            with suppress(Unreachable):
                await core.totals()
        ledger = Ledger(LEDGER)
        assets = dict(await store.assets())
        accounts = {
            name: msgspec.structs.replace(account, supported=name in setup.accounts)
            for name, account in ACCOUNTS.items()
        }
        parts = EngineParts(
            store=store,
            flows={flow.name: flow for flow in flows},
            outside=[*([core] if core else []), *setup.systems],
            local=[ledger, Allowance(), Checks()],
            clock=time.monotonic,
            dice=random.Random(os.urandom(16)),  # noqa: S311  It spreads retries; it hides nothing.
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
        yield Gate(engine, store, ledger, core, assets, accounts)


def daily_limits(setup: Setup, assets: Mapping[str, Asset]) -> DailyLimits | None:
    """None where nothing is limited: then nothing is counted either."""
    amounts = {}
    for code, text in setup.daily_amounts.items():
        asset = assets.get(code)
        amount = parse_amount(text, asset.decimals) if asset else Refusal.INVALID_ASSET
        if asset is None or isinstance(amount, Refusal):
            raise ValueError(f"daily_amounts: {code}={text} is no amount of an asset")
        amounts[asset.id] = amount
    if setup.transfers_per_day is None and not amounts:
        return None
    return DailyLimits(setup.transfers_per_day, amounts)


def trading(
    store: PostgresStore, address: str, alert: Callable[[Alert], None]
) -> TradingCoreClient:
    """The trading core, shown on every connection what this store has seen it acknowledge."""

    async def recalled() -> KnownCore:
        try:
            async with store.transaction() as tx:
                return await load_known_core(tx, CORE)
        except StoreUnavailable as fault:
            raise Unreachable(f"we cannot look up what the core has told us: {fault}") from fault

    def refused(reason: str) -> None:
        alert(Alert(Alarm.CRITICAL, AlertCode.CORE_REFUSED, reason, CORE))

    async def raise_floor(floor: UUID) -> None:
        try:
            await PostgresFloors(store).raise_to(floor)
        except StoreUnavailable as fault:
            raise Unreachable(f"we cannot keep the floor of the core: {fault}") from fault

    caller = CoreCaller(worker_name(socket.gethostname(), os.getpid()))
    core = TradingCoreClient(CORE, dial(address), caller, recalled, refused)
    core.on_floor = raise_floor
    return core


def fresh_identity() -> UUID:
    """For a store that was copied."""
    return UUID(bytes=os.urandom(16), version=4)


async def administrator(store: PostgresStore, address: str) -> tuple[TradingCoreClient, Binding]:
    """A client of a core that speaks for no store, and what would bind the core to this one."""
    async with store.transaction() as tx:
        ours = await load_known_core(tx, CORE)

    async def nobody() -> KnownCore:
        return KnownCore()

    caller = CoreCaller(worker_name(socket.gethostname(), os.getpid()))
    return TradingCoreClient(CORE, dial(address), caller, nobody), Binding(ours.store, ours.place)


def _retirement(
    store: PostgresStore, core: TradingCoreClient, alert: Callable[[Alert], None]
) -> Callable[[], Awaitable[None]]:
    """Let the core forget operations of transfers that have ended long ago."""
    retirement = Retirement(PostgresFloors(store), core.retire, time.time, alert)

    async def once() -> None:
        floor = await retirement.round()
        log.info("retired", below=str(floor), horizon_s=HORIZON_S, every_s=RETIRE_EVERY_S)

    return once


@contextmanager
def core_child(directory: Path) -> Iterator[str]:
    """A trading core as a child process, for programs that run everything themselves."""
    directory.mkdir(parents=True, exist_ok=True)
    address = f"unix:{directory / 'socket'}"
    command = [sys.executable, "-m", "tidegate.trading_core"]
    command += ["--data", str(directory), "--listen", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603
        try:
            assert child.stdout is not None
            if not child.stdout.readline():
                raise RuntimeError("the trading core did not start; its message is above")
            yield address
        finally:
            child.terminate()


def log_alert(alert: Alert) -> None:
    """To the log, at the level that the alarm deserves."""
    levels = {Alarm.NONE: log.info, Alarm.PAGE: log.warning}
    levels.get(alert.alarm, log.critical)(alert.cause, **told_as(alert))


def all_flows(*own: Flow) -> list[Flow]:
    """The built-in flows and a program's own: what `migrate` installs and an engine runs."""
    return list((dict(FLOWS) | {flow.name: flow for flow in own}).values())
