"""Serving: the engine with the HTTP service in front of it, or alone, until a signal ends it."""

import asyncio
import itertools
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import httpx2
import msgspec
import structlog
import uvicorn
from ulid import ULID

from tidegate.app import Setup, collect_seldom, log_alert, open_gate
from tidegate.background import BackgroundTask, BackgroundTasks
from tidegate.core.answers import Alarm
from tidegate.core.flow import Ask, Flow, Row
from tidegate.core.kind import Transfer
from tidegate.core.ports import StoreUnavailable
from tidegate.engine.alert_watch import AlertThresholds, AlertWatch
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.audit import Audit
from tidegate.engine.end_rates import EndRates
from tidegate.engine.gate import Gate
from tidegate.flows import FLOWS
from tidegate.leadership import Leadership
from tidegate.service.api import HEALTH_ROUTES, SHARED_PORT_ROUTES, Api
from tidegate.service.auth import TokenPolicy, Verifier
from tidegate.service.connections import health_server_of, server_of
from tidegate.service.http import JSON
from tidegate.service.keys import Fetch, FetchedKeys, FixedKeys, KeyRefresh, KeySource, keys_of
from tidegate.service.metrics import Metrics
from tidegate.service.pager import Pager, Post
from tidegate.service.rate_limits import OwnerRateLimit, RateLimit, SharedRateLimit
from tidegate.service.routing import ServiceContext
from tidegate.service.shared_memory import SharedAuditProgress, SharedMemory
from tidegate.service.sockets import bound, taken
from tidegate.settings import Settings
from tidegate.store.postgres import PostgresStore
from tidegate.store.sent_pages import mark_sent
from tidegate.store.sessions import StoreLimits
from tidegate.store.writable import check_writable

log = structlog.get_logger("tidegate")

ASSETS_EVERY_S = 2.0
DATABASE_EVERY_S = 2.0
FETCH_S = 5.0
DENY_EVERY_S = 5.0
DENIED_S = 30 * 86_400.0
TOKEN_S = 900.0
LEAD_EVERY_S = 2.0
LEAD_RETRY_S = 5.0  # At most, between two tries to find out who leads.
LEADERLESS_S = 60.0  # For so long it may be unknown whether any process leads.
WATCH_EVERY_S = 5.0
WATCH_LATE_S = 300.0  # For so long the alert rules may be unable to look.
FLUSH_S = 5.0  # For the alerts that wait when the process ends.

Work: TypeAlias = Callable[[], Awaitable[None]]


def tuned(flow: Flow, first_s: float, page_attempts: int, page_after_s: float) -> Flow:
    """The same table with an operator's patience. What is urgent never waits longer than it did."""
    rows: dict[StrEnum, Row] = {}
    for state, row in flow.rows.items():
        rows[state] = row
        if isinstance(row, Ask) and row.patience.page_attempts is not None:
            urgent = row.patience.alarm > Alarm.PAGE
            usual_s = row.patience.page_after_s or page_after_s
            late_s = min(page_after_s, usual_s) if urgent else page_after_s
            patience = msgspec.structs.replace(
                row.patience, first_s=first_s, page_attempts=page_attempts, page_after_s=late_s
            )
            rows[state] = msgspec.structs.replace(row, patience=patience)
    return replace(flow, rows=rows)


class SharedPortProcess(NamedTuple):
    """One of several API processes that serve a port together."""

    number: int  # From 1.
    health_port: int
    memory: SharedMemory


class AlertOutputs:
    """Who is told of an alert: the log, the metrics, the webhook."""

    def __init__(self, settings: Settings) -> None:
        self.metrics, self.pager = Metrics(), Pager(_webhook(settings))
        self.background = BackgroundTasks(self.alert, time.monotonic)
        self.background.start(BackgroundTask("pager", self.pager.deliver, 0.0))

    def alert(self, raised: Alert) -> None:
        for told in (log_alert, self.metrics.alert, self.pager.notify):
            told(raised)

    async def close(self) -> None:
        await self.background.stop()
        await self.pager.flush(FLUSH_S)


async def serve_api(settings: Settings, sibling: SharedPortProcess | None = None) -> None:
    """The engine with the HTTP service in front, until a signal ends it."""
    collect_seldom()
    keys = keys_from(settings)
    checker = verifier(settings, keys)
    async with _engine(settings) as (gate, telling):
        background = telling.background
        audit = Audit(gate.store, gate.core, gate.engine.context.flows, telling.alert)
        limits = AlertThresholds(
            births_a_minute=settings.alert_busy_owner, unaudited_s=2 * settings.full_audit_s
        )
        watch = AlertWatch(gate.store, gate.engine.context.flows, telling.alert, limits)
        service = ServiceContext(
            gate=gate,
            authenticate=checker.authenticate,
            metrics=telling.metrics,
            clock=time.monotonic,
            new_id=request_ids(),
            audit=audit,
            wait_s=settings.wait_ms / 1000,
            rate=rate_of(settings, sibling),
            ages=background.ages,
            progress=SharedAuditProgress(sibling.memory) if sibling else None,
        )
        if isinstance(keys, FetchedKeys):
            background.start(BackgroundTask("key refresh", keys.keep_fresh, KeyRefresh().retry_s))
        if settings.deny_list:
            deny = partial(deny_revoked, checker, settings.deny_list)
            chore = BackgroundTask("deny list", deny, DENY_EVERY_S, AlertCode.DENY_LIST_UNREADABLE)
            background.start(chore._replace(longest_s=DENY_EVERY_S))
        lead = Leadership(settings.database or "", settings.schema)
        await _start_led(background, lead, watch, audit, settings)
        if sibling is None:
            await _serve(Api(service), settings.host, settings.port, gate.engine.died)
        else:
            await _serve_beside(service, settings, sibling)
        await background.stop()
        await lead.close()
        await audit.close()


async def serve_worker(settings: Settings) -> None:
    """The engine without the API: only its health and its metrics are served."""
    collect_seldom()
    async with _engine(settings) as (gate, telling):
        service = ServiceContext(
            gate=gate,
            authenticate=_nobody,
            metrics=telling.metrics,
            clock=time.monotonic,
            new_id=request_ids(),
            ages=telling.background.ages,
        )
        api = Api(service, HEALTH_ROUTES)
        await _serve(api, settings.host, settings.worker_port, gate.engine.died)


@asynccontextmanager
async def _engine(settings: Settings) -> AsyncIterator[tuple[Gate, AlertOutputs]]:
    telling, setup = AlertOutputs(settings), setup_of(settings)
    rates = EndRates({flow.name: flow for flow in setup.flows}, telling.alert, time.monotonic)

    def ended(transfers: Sequence[Transfer]) -> None:
        telling.metrics.ended(transfers)
        rates.ended(transfers)

    setup = replace(setup, alert=telling.alert, background=telling.background, ended=ended)
    telling.background.start(BackgroundTask("rates", rates.look, WATCH_EVERY_S))
    try:
        async with open_gate(setup) as gate:
            telling.pager.mark = partial(mark_sent, gate.store)
            refresh = BackgroundTask("asset refresh", gate.refresh_assets, ASSETS_EVERY_S)
            telling.background.start(refresh)
            look = partial(_check_database, gate.store)
            check = BackgroundTask(
                "database check", look, DATABASE_EVERY_S, AlertCode.DATABASE_UNUSABLE
            )
            telling.background.start(check._replace(longest_s=DATABASE_EVERY_S))
            yield gate, telling
            await telling.background.stop()
    finally:
        await telling.close()


class DatabaseNotWritable(Exception):
    """It is full, read-only or unreachable: somebody must know."""


async def _check_database(store: PostgresStore) -> None:
    try:
        await check_writable(store)
    except StoreUnavailable as fault:
        raise DatabaseNotWritable(f"the database is {store.trouble}: {fault}") from fault


async def _nobody(_: str) -> None:
    """A worker serves nothing that needs a token."""


async def _serve(api: Api, host: str, port: int, died: "asyncio.Future[BaseException]") -> None:
    """Until a signal; or until the engine dies, and then with the exit code 1."""
    with taken(host, port) as listening:
        log.info("serving", address=listening.getsockname()[:2])
        await _listen(server_of(api, host, port), listening, died)


async def _serve_beside(
    service: ServiceContext, settings: Settings, sibling: SharedPortProcess
) -> None:
    """The same on a port that siblings share, with an address for the health of this process."""
    host, port = settings.host, settings.port
    health = health_server_of(Api(service, HEALTH_ROUTES), settings.health_host)
    with (
        bound(settings.health_host, sibling.health_port, shared=True) as own,
        bound(host, port, shared=True) as listening,
    ):
        address, beside = listening.getsockname()[:2], own.getsockname()[:2]
        log.info("serving", address=address, health=beside)
        # First the port: whoever finds the health address open finds the port open too.
        listening.listen()
        answering = asyncio.create_task(health.serve([own]))
        server = server_of(Api(service, SHARED_PORT_ROUTES), host, port)
        try:
            await _listen(server, listening, service.gate.engine.died)
        finally:
            health.should_exit = True
            await answering


async def _listen(
    server: uvicorn.Server, listening: socket.socket, died: "asyncio.Future[BaseException]"
) -> None:
    def end(_: object) -> None:
        server.should_exit = True

    died.add_done_callback(end)
    await server.serve([listening])
    if died.done():
        raise SystemExit(1)


async def _start_led(
    background: BackgroundTasks,
    lead: Leadership,
    watch: AlertWatch,
    audit: Audit,
    settings: Settings,
) -> None:
    """Start what one process does for all."""
    with suppress(StoreUnavailable):
        await lead.look()  # Before the others' first rounds, which need to know who leads.
    leading = BackgroundTask("leadership", lead.look, LEAD_EVERY_S, AlertCode.LEADER_UNKNOWN)
    background.start(leading._replace(longest_s=LEAD_RETRY_S, late_s=LEADERLESS_S))
    watching = BackgroundTask("watch", _led(lead, watch.look), WATCH_EVERY_S, first_s=WATCH_EVERY_S)
    background.start(watching._replace(longest_s=WATCH_EVERY_S, late_s=WATCH_LATE_S))
    judge = partial(audit.run_next, settings.full_audit_s)
    background.start(
        BackgroundTask("audit", _led(lead, judge), settings.audit_s, first_s=settings.audit_s)
    )


def rate_of(settings: Settings, sibling: SharedPortProcess | None) -> RateLimit:
    per_second = settings.requests_per_second if settings.rate_limits else None
    if sibling is None:
        return OwnerRateLimit(per_second, time.monotonic)
    return SharedRateLimit(per_second, time.monotonic, sibling.memory)


def _led(lead: Leadership, work: Work) -> Work:
    """Of all processes only the one that leads does it, so that a cause is told once.

    For the others it is done if another leads. If nobody knows that, it is not done.
    """

    async def round_() -> None:
        if lead.held:
            await work()
        elif not lead.known:
            raise StoreUnavailable("no process is known to lead")

    return round_


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


def keys_from(settings: Settings) -> KeySource:
    """From a file or from a JWKS address, never from the token."""
    if settings.jwks_url is not None:
        return FetchedKeys(_fetch(settings.jwks_url), time.time, KeyRefresh())
    if settings.keys is not None:
        return FixedKeys(keys_of(Path(settings.keys).read_bytes()))
    return FixedKeys(())


def verifier(settings: Settings, keys: KeySource) -> Verifier:
    terms = TokenPolicy(
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


async def deny_revoked(checker: Verifier, path: str) -> None:
    """Read revoked tokens, a line each; what cannot be read leaves the denied ones denied."""
    for mark in (await asyncio.to_thread(Path(path).read_text, encoding="utf-8")).split():
        checker.deny(mark, time.time() + DENIED_S)


def setup_of(settings: Settings) -> Setup:
    assert settings.database is not None, "a database is needed"
    bounds = StoreLimits(lease_s=settings.lease_s, connections=settings.connections)
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


def request_ids() -> Callable[[], str]:
    """A name for each request: of this process, then counted."""
    ours, number = str(ULID()), itertools.count()
    return lambda: f"{ours}-{next(number):x}"


def start_log(log_format: str, **always: object) -> None:
    """One line per event: for people, or as JSON for machines; with what is always said."""
    # That a connection was lost is told by whoever used it, and what became of that.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    renderer = structlog.processors.JSONRenderer() if log_format == "json" else None
    structlog.configure(
        processors=[
            lambda _, __, event: {**event, **always},
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            renderer or structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty()),
        ]
    )
