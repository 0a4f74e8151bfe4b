"""The composition root: the one place with a clock and dice, where the parts are put together."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import httpx2
import msgspec
import structlog
import uvicorn
from ulid import ULID

from tidegate.core.answers import Alarm, Unreachable
from tidegate.core.flow import Ask, Flow, Row
from tidegate.core.money import parse_amount
from tidegate.core.ports import StoreUnavailable, System
from tidegate.core.refusals import Refusal
from tidegate.core.request import Asset
from tidegate.core.wire import Mark
from tidegate.engine.alerts import Alert
from tidegate.engine.audit import Audit
from tidegate.engine.births import HORIZON_S
from tidegate.engine.engine import Engine, Parts
from tidegate.engine.gate import ACCOUNTS, CORE, LEDGER, Gate
from tidegate.flows import FLOWS
from tidegate.service.api import build
from tidegate.service.auth import Terms, Verifier
from tidegate.service.front import JSON, Service
from tidegate.service.keys import Fetch, FetchedKeys, FixedKeys, Keys, Patience, keys_of
from tidegate.service.limits import RequestRate
from tidegate.service.meters import Meters
from tidegate.service.pager import Pager, Post
from tidegate.settings import Settings
from tidegate.store.daily import DailyLimits
from tidegate.store.postgres import Bounds, PostgresStore
from tidegate.systems.ledger import Ledger
from tidegate.systems.trading import Caller, Trading, dial, recall

SCHEMA = "tidegate_store"
RETIRE_EVERY_S = 600.0
ASSETS_EVERY_S = 2.0
MAX_CONNECTIONS = 2_000
KEEP_ALIVE_S = 30
MAX_HEADERS = 32 * 1024
JWKS_S = 5.0
DENY_EVERY_S = 5.0
DENIED_S = 30 * 86_400.0

log = structlog.get_logger("tidegate")


@dataclass(frozen=True, slots=True)
class Setup:
    """What a program chooses. Everything has a default but the database."""

    database: str
    schema: str = SCHEMA
    core: str | None = None  # Where the trading core listens: unix:PATH or tcp:HOST:PORT.
    systems: tuple[System, ...] = ()  # The program's own, besides the ledger and the core.
    flows: tuple[Flow, ...] = ()  # The program's own, besides the built-in ones.
    bounds: Bounds | None = None
    scan_s: float = 1.0
    alert: Callable[[Alert], None] | None = None
    transfers_per_day: int | None = None  # Of one owner; None: as many as they like.
    daily_amounts: Mapping[str, str] = field(default_factory=dict)  # Decimals, by asset.
    accounts: frozenset[str] = frozenset({"FUNDING", "SPOT"})


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
        ledger = Ledger(LEDGER)
        assets = dict(await store.assets())
        accounts = {
            name: msgspec.structs.replace(account, supported=name in setup.accounts)
            for name, account in ACCOUNTS.items()
        }
        parts = Parts(
            store=store,
            flows={flow.name: flow for flow in flows},
            outside=[*([core] if core else []), *setup.systems],
            local=[ledger],
            clock=time.monotonic,
            dice=random.Random(os.urandom(16)),  # noqa: S311  It spreads retries; it hides nothing.
            alert=alert,
            scan_s=setup.scan_s,
            admission=daily_limits(setup, assets),
        )
        engine = await stack.enter_async_context(Engine(parts))
        if core is not None:
            retiring = asyncio.create_task(_retire(store, core))
            stack.callback(retiring.cancel)
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


def trading(store: PostgresStore, address: str, alert: Callable[[Alert], None]) -> Trading:
    """The trading core, shown on every connection what this store has seen it acknowledge."""

    async def marks() -> Mark | None:
        try:
            async with store.transaction() as tx:
                return await recall(tx, CORE)
        except StoreUnavailable as fault:
            raise Unreachable(f"we cannot look up what the core has told us: {fault}") from fault

    def refused(reason: str) -> None:
        alert(Alert(Alarm.CRITICAL, reason, CORE))

    caller = Caller(store.schema, f"{socket.gethostname()}-{os.getpid()}")
    return Trading(CORE, dial(address), caller, marks, refused)


async def _retire(store: PostgresStore, core: Trading) -> None:
    """Let the core forget operations of transfers that have ended long ago."""
    while True:
        await asyncio.sleep(RETIRE_EVERY_S)
        try:
            await core.retire(store.schema, await store.floor(HORIZON_S))
        except (Unreachable, StoreUnavailable) as fault:
            log.info("retire put off", reason=str(fault))


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
    said = {
        "lane": alert.lane,
        "transfer": alert.transfer_id and str(alert.transfer_id),
        "state": alert.state,
    }
    known = {name: value for name, value in said.items() if value is not None}
    levels = {Alarm.NONE: log.info, Alarm.PAGE: log.warning}
    levels.get(alert.alarm, log.critical)(alert.cause, **known)


def tuned(flow: Flow, first_s: float, page_attempts: int, page_after_s: float) -> Flow:
    """The same table with an operator's patience; what is urgent stays so."""
    rows: dict[StrEnum, Row] = {}
    for state, row in flow.rows.items():
        rows[state] = row
        if isinstance(row, Ask) and row.patience.page_attempts is not None:
            late_s = min(page_after_s, row.patience.page_after_s or page_after_s)
            patience = msgspec.structs.replace(
                row.patience, first_s=first_s, page_attempts=page_attempts, page_after_s=late_s
            )
            rows[state] = msgspec.structs.replace(row, patience=patience)
    return msgspec.structs.replace(flow, rows=rows)


async def serve_api(settings: Settings) -> None:
    """The engine with the HTTP service in front, until a signal ends it."""
    meters, pager = Meters(), Pager(_webhook(settings))

    def alert(raised: Alert) -> None:
        for told in (log_alert, meters.alert, pager.notify):
            told(raised)

    checker = verifier(settings)
    async with open_gate(replace(setup_of(settings), alert=alert)) as gate:
        audit = Audit(gate.store, gate.core, gate.engine.means.flows, alert)
        per_second = settings.requests_per_second if settings.rate_limits else None
        service = Service(
            gate=gate,
            authenticate=checker.authenticate,
            meters=meters,
            clock=time.monotonic,
            new_id=lambda: str(ULID()),
            audit=audit,
            wait_s=settings.wait_ms / 1000,
            rate=RequestRate(per_second, time.monotonic),
        )
        chores = [_refresh_assets(gate), pager.run(), audit.audit_forever(settings.audit_s)]
        chores += [_deny(checker, settings.deny_list)] if settings.deny_list else []
        await _serve(service, settings, [asyncio.create_task(chore) for chore in chores])
        await audit.close()


async def _serve(
    service: Service, settings: Settings, chores: Sequence[asyncio.Task[None]]
) -> None:
    server = uvicorn.Server(
        uvicorn.Config(
            build(service),
            host=settings.host,
            port=settings.port,
            log_config=None,
            lifespan="off",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=MAX_HEADERS,
        )
    )
    died = service.gate.engine.died
    died.add_done_callback(lambda _: server.handle_exit(signal.SIGTERM, None))
    try:
        await server.serve()
    finally:
        for chore in chores:
            chore.cancel()
    if died.done():
        raise SystemExit(1)


def _webhook(settings: Settings) -> Post | None:
    url = settings.alert_webhook
    if url is None:
        return None

    async def post(body: bytes) -> bool:
        try:
            async with httpx2.AsyncClient(timeout=JWKS_S, follow_redirects=False) as client:
                said = await client.post(url, content=body, headers={"Content-Type": JSON})
        except httpx2.HTTPError:
            return False
        return said.is_success

    return post


def verifier(settings: Settings) -> Verifier:
    """Tokens are checked with keys from a file or from a JWKS address, never from the token."""
    terms = Terms(
        issuer=settings.issuer,
        audience=settings.audience,
        max_lifetime_s=settings.token_lifetime_s,
    )
    if settings.jwks_url is not None:
        keys: Keys = FetchedKeys(_fetch(settings.jwks_url), time.time, Patience())
    elif settings.keys is not None:
        keys = FixedKeys(keys_of(Path(settings.keys).read_bytes()))
    else:
        keys = FixedKeys(())
    return Verifier(keys, terms, time.time)


def _fetch(url: str) -> Fetch:
    async def fetch() -> bytes:
        try:
            async with httpx2.AsyncClient(timeout=JWKS_S, follow_redirects=False) as client:
                return (await client.get(url)).raise_for_status().content
        except httpx2.HTTPError as fault:
            raise OSError(f"the keys cannot be fetched: {fault}") from fault

    return fetch


async def _deny(checker: Verifier, path: str) -> None:
    """Revoked tokens, a line each, read anew all the time: a revocation must not need a restart."""
    while True:
        for mark in _revoked(path):
            checker.deny(mark, time.time() + DENIED_S)
        await asyncio.sleep(DENY_EVERY_S)


def _revoked(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").split()


def setup_of(settings: Settings) -> Setup:
    assert settings.database is not None, "a database is needed"
    bounds = Bounds(lease_s=settings.lease_s, connections=settings.connections)
    patience = (settings.retry_first_s, settings.alert_after_attempts, settings.alert_after_s)
    return Setup(
        settings.database,
        settings.schema,
        settings.core,
        flows=tuple(tuned(flow, *patience) for flow in FLOWS.values()),
        bounds=bounds,
        scan_s=settings.scan_s,
        transfers_per_day=settings.transfers_per_day if settings.rate_limits else None,
        daily_amounts=settings.daily_amounts if settings.rate_limits else {},
        accounts=frozenset(settings.accounts),
    )


async def _refresh_assets(gate: Gate) -> None:
    while True:
        await asyncio.sleep(ASSETS_EVERY_S)
        with suppress(StoreUnavailable):
            await gate.refresh_assets()


def all_flows(*own: Flow) -> list[Flow]:
    """The built-in flows and a program's own: what `migrate` installs and an engine runs."""
    return list((dict(FLOWS) | {flow.name: flow for flow in own}).values())


async def serve_worker(settings: Settings) -> None:
    """The engine without HTTP, until a signal ends it."""
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    async with open_gate(setup_of(settings)) as gate:
        gate.engine.died.add_done_callback(lambda _: asked.set())
        await asked.wait()
        if gate.engine.died.done():
            raise SystemExit(1)


def start_log(log_format: str) -> None:
    """One line per event: for people, or as JSON for machines."""
    renderer = structlog.processors.JSONRenderer() if log_format == "json" else None
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            renderer or structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty()),
        ]
    )
