"""Runs the engine with the HTTP service, or as a worker without it, until a signal."""

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

from tidegate.app import Setup, collect_garbage_less_often, log_alert, open_gate
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
from tidegate.service.api import Api
from tidegate.service.auth import TokenPolicy, Verifier
from tidegate.service.connections import health_server_of, server_of
from tidegate.service.http import JSON
from tidegate.service.keys import Fetch, FetchedKeys, FixedKeys, KeyRefresh, KeySource, keys_of
from tidegate.service.metrics import Metrics
from tidegate.service.pager import Pager, Post
from tidegate.service.rate_limits import OwnerRateLimit, RateLimit, SharedRateLimit
from tidegate.service.routes import HEALTH_ROUTES, SHARED_PORT_ROUTES
from tidegate.service.routing import ServiceContext
from tidegate.service.shared_memory import SharedAuditProgress, SharedMemory
from tidegate.service.sockets import bound_socket, reserved_port
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
LEAD_RETRY_S = 5.0  # The longest pause between two failed leadership checks.
LEADERLESS_S = 60.0  # Raise an alert if no leader is known for so long.
WATCH_EVERY_S = 5.0
WATCH_LATE_S = 300.0  # Raise an alert if the alert rules cannot be checked for so long.
FLUSH_S = 5.0  # To send the waiting alerts when the process ends.

Work: TypeAlias = Callable[[], Awaitable[None]]


def tuned(flow: Flow, first_s: float, page_attempts: int, page_after_s: float) -> Flow:
    """The same table with the operator's retry settings. An urgent page never comes later."""
    rows: dict[StrEnum, Row] = {}
    for state, row in flow.rows.items():
        rows[state] = row
        if isinstance(row, Ask) and row.retry.page_attempts is not None:
            urgent = row.retry.alarm > Alarm.PAGE
            built_in_s = row.retry.page_after_s or page_after_s
            after_s = min(page_after_s, built_in_s) if urgent else page_after_s
            policy = msgspec.structs.replace(
                row.retry, first_s=first_s, page_attempts=page_attempts, page_after_s=after_s
            )
            rows[state] = msgspec.structs.replace(row, retry=policy)
    return replace(flow, rows=rows)


class SharedPortMember(NamedTuple):
    """One of several API processes that share a port."""

    number: int  # From 1.
    health_port: int
    memory: SharedMemory


class AlertOutputs:
    """The outputs of an alert: the log, the metrics and the webhook."""

    def __init__(self, settings: Settings) -> None:
        self.metrics, self.pager = Metrics(), Pager(_webhook(settings))
        self.background = BackgroundTasks(self.alert, time.monotonic)
        self.background.start(BackgroundTask("pager", self.pager.deliver, 0.0))

    def alert(self, alert: Alert) -> None:
        for output in (log_alert, self.metrics.alert, self.pager.notify):
            output(alert)

    async def close(self) -> None:
        await self.background.stop()
        await self.pager.flush(FLUSH_S)


async def serve_api(settings: Settings, sibling: SharedPortMember | None = None) -> None:
    """Run the engine with the HTTP service until a signal."""
    collect_garbage_less_often()
    keys = keys_from(settings)
    checker = verifier(settings, keys)
    async with _engine(settings) as (gate, outputs):
        background = outputs.background
        audit = Audit(gate.store, gate.core, gate.engine.context.flows, outputs.alert)
        limits = AlertThresholds(
            owner_per_minute=settings.alert_busy_owner, unaudited_s=2 * settings.full_audit_s
        )
        watch = AlertWatch(gate.store, gate.engine.context.flows, outputs.alert, limits)
        service = ServiceContext(
            gate=gate,
            authenticate=checker.authenticate,
            metrics=outputs.metrics,
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
            task = BackgroundTask("deny list", deny, DENY_EVERY_S, AlertCode.DENY_LIST_UNREADABLE)
            background.start(task._replace(longest_s=DENY_EVERY_S))
        lead = Leadership(settings.database or "", settings.schema)
        await _start_leader_tasks(background, lead, watch, audit, settings)
        if sibling is None:
            await _serve(Api(service), settings.host, settings.port, gate.engine.died)
        else:
            await _serve_shared_port(service, settings, sibling)
        await background.stop()
        await lead.close()
        await audit.close()


async def serve_worker(settings: Settings) -> None:
    """Run the engine without the API. It serves only its health and metrics."""
    collect_garbage_less_often()
    async with _engine(settings) as (gate, outputs):
        service = ServiceContext(
            gate=gate,
            authenticate=_no_token,
            metrics=outputs.metrics,
            clock=time.monotonic,
            new_id=request_ids(),
            ages=outputs.background.ages,
        )
        api = Api(service, HEALTH_ROUTES)
        await _serve(api, settings.host, settings.worker_port, gate.engine.died)


@asynccontextmanager
async def _engine(settings: Settings) -> AsyncIterator[tuple[Gate, AlertOutputs]]:
    outputs, setup = AlertOutputs(settings), setup_of(settings)
    rates = EndRates({flow.name: flow for flow in setup.flows}, outputs.alert, time.monotonic)

    def ended(transfers: Sequence[Transfer]) -> None:
        outputs.metrics.ended(transfers)
        rates.ended(transfers)

    setup = replace(setup, alert=outputs.alert, background=outputs.background, ended=ended)
    outputs.background.start(BackgroundTask("rates", rates.check, WATCH_EVERY_S))
    try:
        async with open_gate(setup) as gate:
            outputs.pager.mark = partial(mark_sent, gate.store)
            refresh = BackgroundTask("asset refresh", gate.refresh_assets, ASSETS_EVERY_S)
            outputs.background.start(refresh)
            look = partial(_check_database, gate.store)
            check = BackgroundTask(
                "database check", look, DATABASE_EVERY_S, AlertCode.DATABASE_UNUSABLE
            )
            outputs.background.start(check._replace(longest_s=DATABASE_EVERY_S))
            yield gate, outputs
            await outputs.background.stop()
    finally:
        await outputs.close()


class DatabaseNotWritable(Exception):
    """The database is full, read-only or unreachable. This raises an alert."""


async def _check_database(store: PostgresStore) -> None:
    try:
        await check_writable(store)
    except StoreUnavailable as fault:
        raise DatabaseNotWritable(f"the database is {store.trouble}: {fault}") from fault


async def _no_token(_: str) -> None:
    """A worker accepts no token: none of its routes needs one."""


async def _serve(api: Api, host: str, port: int, died: "asyncio.Future[BaseException]") -> None:
    """Serve until a signal. If the engine dies, exit with code 1."""
    with reserved_port(host, port) as listening:
        log.info("serving", address=listening.getsockname()[:2])
        await _listen(server_of(api, host, port), listening, died)


async def _serve_shared_port(
    service: ServiceContext, settings: Settings, sibling: SharedPortMember
) -> None:
    """Serve on a port that processes share, and on a port of this process for its health."""
    host, port = settings.host, settings.port
    health = health_server_of(Api(service, HEALTH_ROUTES), settings.health_host)
    with (
        bound_socket(settings.health_host, sibling.health_port, shared=True) as health_listening,
        bound_socket(host, port, shared=True) as listening,
    ):
        health_address = health_listening.getsockname()[:2]
        log.info("serving", address=listening.getsockname()[:2], health=health_address)
        # Listen before the health server starts: a client that reaches it can reach the port, too.
        listening.listen()
        health_task = asyncio.create_task(health.serve([health_listening]))
        server = server_of(Api(service, SHARED_PORT_ROUTES), host, port)
        try:
            await _listen(server, listening, service.gate.engine.died)
        finally:
            health.should_exit = True
            await health_task


async def _listen(
    server: uvicorn.Server, listening: socket.socket, died: "asyncio.Future[BaseException]"
) -> None:
    def end(_: object) -> None:
        server.should_exit = True

    died.add_done_callback(end)
    await server.serve([listening])
    if died.done():
        raise SystemExit(1)


async def _start_leader_tasks(
    background: BackgroundTasks,
    lead: Leadership,
    watch: AlertWatch,
    audit: Audit,
    settings: Settings,
) -> None:
    """Start the tasks that only the leader runs."""
    with suppress(StoreUnavailable):
        await lead.check()  # The first rounds of the other tasks need the result.
    leadership = BackgroundTask("leadership", lead.check, LEAD_EVERY_S, AlertCode.LEADER_UNKNOWN)
    background.start(leadership._replace(longest_s=LEAD_RETRY_S, late_s=LEADERLESS_S))
    watching = BackgroundTask(
        "watch", _if_leader(lead, watch.check), WATCH_EVERY_S, first_s=WATCH_EVERY_S
    )
    background.start(watching._replace(longest_s=WATCH_EVERY_S, late_s=WATCH_LATE_S))
    judge = partial(audit.run_next, settings.full_audit_s)
    background.start(
        BackgroundTask("audit", _if_leader(lead, judge), settings.audit_s, first_s=settings.audit_s)
    )


def rate_of(settings: Settings, sibling: SharedPortMember | None) -> RateLimit:
    per_second = settings.requests_per_second if settings.rate_limits else None
    if sibling is None:
        return OwnerRateLimit(per_second, time.monotonic)
    return SharedRateLimit(per_second, time.monotonic, sibling.memory)


def _if_leader(lead: Leadership, work: Work) -> Work:
    """Do the work only in the leader, so that each alert is raised once.

    In other processes a round succeeds if another process is the leader, and fails if no leader is
    known.
    """

    async def round_() -> None:
        if lead.held:
            await work()
        elif not lead.known:
            raise StoreUnavailable("no leader is known")

    return round_


def _webhook(settings: Settings) -> Post | None:
    url = settings.alert_webhook
    if url is None:
        return None

    async def post(body: bytes) -> bool:
        try:
            async with httpx2.AsyncClient(timeout=FETCH_S, follow_redirects=False) as client:
                reply = await client.post(url, content=body, headers={"Content-Type": JSON})
        except httpx2.HTTPError:
            return False
        return reply.is_success

    return post


def keys_from(settings: Settings) -> KeySource:
    """The public keys, from a file or a JWKS address. Never from a token."""
    if settings.jwks_url is not None:
        return FetchedKeys(_fetch(settings.jwks_url), time.time, KeyRefresh())
    if settings.keys is not None:
        return FixedKeys(keys_of(Path(settings.keys).read_bytes()))
    return FixedKeys(())


def verifier(settings: Settings, keys: KeySource) -> Verifier:
    policy = TokenPolicy(
        issuer=settings.issuer,
        audience=settings.audience,
        max_lifetime_s=settings.token_lifetime_s or TOKEN_S,
    )
    return Verifier(keys, policy, time.time)


def _fetch(url: str) -> Fetch:
    async def fetch() -> bytes:
        try:
            async with httpx2.AsyncClient(timeout=FETCH_S, follow_redirects=False) as client:
                return (await client.get(url)).raise_for_status().content
        except httpx2.HTTPError as fault:
            raise OSError(f"the public keys cannot be fetched: {fault}") from fault

    return fetch


async def deny_revoked(checker: Verifier, path: str) -> None:
    """Read the ids of revoked tokens, one per line. If that fails, earlier ones stay denied."""
    for token_id in (await asyncio.to_thread(Path(path).read_text, encoding="utf-8")).split():
        checker.deny(token_id, time.time() + DENIED_S)


def setup_of(settings: Settings) -> Setup:
    assert settings.database is not None, "the setting `database` is needed"
    bounds = StoreLimits(lease_s=settings.lease_s, connections=settings.connections)
    retry = (settings.retry_first_s, settings.alert_after_attempts, settings.alert_after_s)
    return Setup(
        settings.database,
        settings.schema,
        settings.core,
        flows=tuple(tuned(flow, *retry) for flow in FLOWS.values()),
        bounds=bounds,
        scan_s=settings.scan_s,
        ring_size=settings.ring_size,
        transfers_per_day=settings.transfers_per_day if settings.rate_limits else None,
        daily_amounts=settings.daily_amounts if settings.rate_limits else {},
        accounts=frozenset(settings.accounts),
    )


def request_ids() -> Callable[[], str]:
    """Ids for requests: a random prefix of this process, and a counter."""
    prefix, numbers = str(ULID()), itertools.count()
    return lambda: f"{prefix}-{next(numbers):x}"


def start_log(log_format: str, **fields: object) -> None:
    """Write one line per event, as text or as JSON, with the same fields in each."""
    # psycopg warns of each lost connection. The code that used it reports that, with its effect.
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    renderer = structlog.processors.JSONRenderer() if log_format == "json" else None
    structlog.configure(
        processors=[
            lambda _, __, event: {**event, **fields},
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            renderer or structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty()),
        ]
    )
