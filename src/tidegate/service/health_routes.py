"""Liveness, readiness and metrics."""

import asyncio
from contextlib import suppress
from typing import Literal

from tidegate.core.answers import Unreachable
from tidegate.core.ports import StoreFault, StoreUnavailable
from tidegate.service.formats import halt_shape
from tidegate.service.http import HttpReply, json_reply
from tidegate.service.problem import NOT_FOUND
from tidegate.service.reply_types import Liveness, Readiness
from tidegate.service.routing import Call, RequestRefused
from tidegate.store import audit_progress, operator_reads
from tidegate.systems.trading import TradingCoreClient

PING_S = 1.0
DATABASE_S = 3.0
PAGE = "text/plain; version=0.0.4; charset=utf-8"


async def alive(_: Call) -> HttpReply:
    return json_reply(Liveness("ok"))


async def ready(call: Call) -> HttpReply:
    """Whether a transfer that is created now would succeed, system by system."""
    gate = call.service.gate
    if gate.store.trouble is not None:
        return json_reply(Readiness("unavailable", database=gate.store.trouble), 503)
    try:
        async with asyncio.timeout(DATABASE_S):
            halts = [halt_shape(halt) for halt in await gate.store.halts()]
    except (TimeoutError, StoreFault):
        return json_reply(Readiness("unavailable", database="unreachable"), 503)
    lanes: dict[str, Literal["open", "closed"]] = {
        name: "closed" if lane.closed else "open" for name, lane in gate.engine.lanes.items()
    }
    if gate.core is not None and not await _answers(gate.core):
        lanes[gate.core.name] = "closed"
    well = not halts and "closed" not in lanes.values() and not gate.engine.died.done()
    body = Readiness("ok" if well else "unavailable", halted=bool(halts), halts=halts, lanes=lanes)
    return json_reply(body, 200 if well else 503)


async def _answers(core: TradingCoreClient) -> bool:
    """Ask the core itself: a lane without traffic does not notice that its system is down."""
    try:
        async with asyncio.timeout(PING_S):
            await core.totals()
    except (TimeoutError, Unreachable):
        return False
    return True


async def metrics(call: Call) -> HttpReply:
    gate, metrics = call.service.gate, call.service.metrics
    for name, lane in gate.engine.lanes.items():
        metrics.lane(name, len(lane.ring), closed=lane.closed)
    metrics.background(call.service.ages())
    if gate.core is not None:
        metrics.floor(gate.core.floor)
    report = call.service.audit.last if call.service.audit else None
    for asset, sums in (report.assets if report else {}).items():
        metrics.gap(asset, sums.gap)
    metrics.database(gate.store.trouble)
    if gate.store.trouble is None:
        # If the database does not answer, these keep their last values: the page must not fail.
        with suppress(StoreUnavailable):
            metrics.full_audit(await audit_progress.age_s(gate.store))
            metrics.backlog(list(await operator_reads.backlog(gate.store)))
    return HttpReply(200, metrics.page(), {"Content-Type": PAGE})


async def metrics_elsewhere(_: Call) -> HttpReply:
    """Any of several processes may answer here, so its counters would mean nothing."""
    detail = "several processes serve this port: read the metrics at each one's health address"
    raise RequestRefused(NOT_FOUND, detail)
