"""Serving: the engine with the HTTP service in front of it, or alone, until a signal ends it."""

import asyncio
import itertools
import logging
import signal
import sys
import time
import zlib
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import msgspec
import structlog
from psycopg import AsyncConnection
from psycopg import Error as PostgresError
from ulid import ULID

from tidegate.app import Setup, collect_seldom, log_alert, open_gate
from tidegate.core.answers import Alarm
from tidegate.core.flow import Ask, Flow, Row
from tidegate.core.ports import StoreUnavailable
from tidegate.engine.alerts import Alert
from tidegate.engine.audit import Audit
from tidegate.engine.gate import Gate
from tidegate.engine.watch import Thresholds, Watch
from tidegate.flows import FLOWS
from tidegate.service.api import Api
from tidegate.service.auth import Terms, Verifier
from tidegate.service.connections import server_of
from tidegate.service.front import Service
from tidegate.service.http import JSON
from tidegate.service.keys import Fetch, FetchedKeys, FixedKeys, Keys, Patience, keys_of
from tidegate.service.limits import RequestRate
from tidegate.service.meters import Meters
from tidegate.service.pager import Pager, Post
from tidegate.settings import Settings
from tidegate.store.postgres import Bounds

ASSETS_EVERY_S = 2.0
FETCH_S = 5.0
DENY_EVERY_S = 5.0
DENIED_S = 30 * 86_400.0
TOKEN_S = 900.0
LEAD, LEAD_EVERY_S = 7_305, 2.0  # The lock of whoever leads, and how often it is asked for.
TRY_LOCK = "SELECT pg_try_advisory_lock(%s, %s)"

Duty: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


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
    return replace(flow, rows=rows)


async def serve_api(settings: Settings) -> None:
    """The engine with the HTTP service in front, until a signal ends it."""
    collect_seldom()
    meters, pager = Meters(), Pager(_webhook(settings))

    def alert(raised: Alert) -> None:
        for told in (log_alert, meters.alert, pager.notify):
            told(raised)

    keys = keys_from(settings)
    checker = verifier(settings, keys)
    async with open_gate(replace(setup_of(settings), alert=alert)) as gate:
        audit = Audit(gate.store, gate.core, gate.engine.means.flows, alert)
        limits = Thresholds(births_a_minute=settings.alert_busy_owner)
        watch = Watch(gate.store, gate.engine.means.flows, alert, limits)
        per_second = settings.requests_per_second if settings.rate_limits else None
        service = Service(
            gate=gate,
            authenticate=checker.authenticate,
            meters=meters,
            clock=time.monotonic,
            new_id=request_ids(),
            audit=audit,
            wait_s=settings.wait_ms / 1000,
            rate=RequestRate(per_second, time.monotonic),
            took=watch.took,
        )
        duties = (watch.watch_forever, lambda: audit.audit_forever(settings.audit_s))
        chores = [_refresh_assets(gate), pager.run(), _lead(settings, duties)]
        chores += [keys.keep_fresh()] if isinstance(keys, FetchedKeys) else []
        chores += [_deny(checker, settings.deny_list, alert)] if settings.deny_list else []
        await _serve(service, settings, [asyncio.create_task(chore) for chore in chores])
        await audit.close()


async def _serve(
    service: Service, settings: Settings, chores: Sequence[asyncio.Task[None]]
) -> None:
    server = server_of(Api(service), settings.host, settings.port)
    died = service.gate.engine.died
    died.add_done_callback(lambda _: server.handle_exit(signal.SIGTERM, None))
    try:
        await server.serve()
    finally:
        for chore in chores:
            chore.cancel()
    if died.done():
        raise SystemExit(1)


async def _lead(settings: Settings, duties: Sequence[Duty]) -> None:
    """One process watches and audits, so that a cause is told once; if it dies, another does."""
    key = zlib.crc32(settings.schema.encode()) % 2**31
    while True:
        doing: list[asyncio.Task[None]] = []
        try:
            async with await AsyncConnection.connect(settings.database or "", autocommit=True) as c:
                # The lock goes with the session, however the session ends.
                while not await _true(c, TRY_LOCK, (LEAD, key)):  # noqa: ASYNC110
                    await asyncio.sleep(LEAD_EVERY_S)
                doing = [asyncio.create_task(begin()) for begin in duties]
                while await _true(c, "SELECT true", ()):  # noqa: ASYNC110
                    await asyncio.sleep(LEAD_EVERY_S)
        except PostgresError:
            await asyncio.sleep(LEAD_EVERY_S)
        finally:
            for duty in doing:
                duty.cancel()


async def _true(connection: AsyncConnection, statement: str, values: tuple[int, ...]) -> bool:
    row = await (await connection.execute(statement, values)).fetchone()
    return row is not None and bool(row[0])


def _webhook(settings: Settings) -> Post | None:
    url = settings.alert_webhook
    if url is None:
        return None

    async def post(body: bytes) -> bool:
        try:
            async with httpx2.AsyncClient(timeout=FETCH_S, follow_redirects=False) as client:
                said = await client.post(url, content=body, headers={"Content-Type": JSON})
        except httpx2.HTTPError:
            return False
        return said.is_success

    return post


def keys_from(settings: Settings) -> Keys:
    """From a file or from a JWKS address, never from the token."""
    if settings.jwks_url is not None:
        return FetchedKeys(_fetch(settings.jwks_url), time.time, Patience())
    if settings.keys is not None:
        return FixedKeys(keys_of(Path(settings.keys).read_bytes()))
    return FixedKeys(())


def verifier(settings: Settings, keys: Keys) -> Verifier:
    terms = Terms(
        issuer=settings.issuer,
        audience=settings.audience,
        max_lifetime_s=settings.token_lifetime_s or TOKEN_S,
    )
    return Verifier(keys, terms, time.time)


def _fetch(url: str) -> Fetch:
    async def fetch() -> bytes:
        try:
            async with httpx2.AsyncClient(timeout=FETCH_S, follow_redirects=False) as client:
                return (await client.get(url)).raise_for_status().content
        except httpx2.HTTPError as fault:
            raise OSError(f"the keys cannot be fetched: {fault}") from fault

    return fetch


async def _deny(checker: Verifier, path: str, alert: Callable[[Alert], None]) -> None:
    """Revoked tokens, a line each, read anew all the time: a revocation must not need a restart."""
    while True:
        for mark in _revoked(path, alert):
            checker.deny(mark, time.time() + DENIED_S)
        await asyncio.sleep(DENY_EVERY_S)


def _revoked(path: str, alert: Callable[[Alert], None]) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as fault:
        # What was denied stays denied; but somebody must know that nothing new is.
        alert(Alert(Alarm.CRITICAL, f"the list of denied tokens cannot be read: {fault}"))
        return []


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
        ring_size=settings.ring_size,
        transfers_per_day=settings.transfers_per_day if settings.rate_limits else None,
        daily_amounts=settings.daily_amounts if settings.rate_limits else {},
        accounts=frozenset(settings.accounts),
    )


async def _refresh_assets(gate: Gate) -> None:
    while True:
        await asyncio.sleep(ASSETS_EVERY_S)
        with suppress(StoreUnavailable):
            await gate.refresh_assets()


async def serve_worker(settings: Settings) -> None:
    """The engine without HTTP, until a signal ends it."""
    collect_seldom()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    pager = Pager(_webhook(settings))
    paging = asyncio.create_task(pager.run())

    def alert(raised: Alert) -> None:
        for told in (log_alert, pager.notify):
            told(raised)

    async with open_gate(replace(setup_of(settings), alert=alert)) as gate:
        gate.engine.died.add_done_callback(lambda _: asked.set())
        await asked.wait()
        paging.cancel()
        if gate.engine.died.done():
            raise SystemExit(1)


def request_ids() -> Callable[[], str]:
    """A name for each request: of this process, then counted."""
    ours, number = str(ULID()), itertools.count()
    return lambda: f"{ours}-{next(number):x}"


def start_log(log_format: str) -> None:
    """One line per event: for people, or as JSON for machines."""
    # That a connection was lost is told by whoever used it, and what became of that.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    renderer = structlog.processors.JSONRenderer() if log_format == "json" else None
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            renderer or structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty()),
        ]
    )
