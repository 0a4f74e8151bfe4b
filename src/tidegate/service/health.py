"""Is it alive, can it serve, how is it doing."""

import asyncio
from contextlib import suppress

from tidegate.core.answers import Unreachable
from tidegate.core.ports import StoreFault, StoreUnavailable
from tidegate.service.front import Call, Refused
from tidegate.service.http import Reply, reply
from tidegate.service.problem import NOT_FOUND
from tidegate.service.shapes import halt_shape
from tidegate.store import reading, sweeping
from tidegate.systems.trading import Trading

PING_S = 1.0
DATABASE_S = 3.0
PAGE = "text/plain; version=0.0.4; charset=utf-8"


async def alive(_: Call) -> Reply:
    return reply({"status": "ok"})


async def ready(call: Call) -> Reply:
    """Whether a transfer made now would go through, system by system."""
    gate = call.service.gate
    if gate.store.trouble is not None:
        return reply({"status": "unavailable", "database": gate.store.trouble}, 503)
    try:
        async with asyncio.timeout(DATABASE_S):
            halts = [halt_shape(halt) for halt in await gate.store.halts()]
    except (TimeoutError, StoreFault):
        return reply({"status": "unavailable", "database": "unreachable"}, 503)
    lanes = {name: "closed" if lane.closed else "open" for name, lane in gate.engine.lanes.items()}
    if gate.core is not None and not await _answers(gate.core):
        lanes[gate.core.name] = "closed"
    well = not halts and "closed" not in lanes.values() and not gate.engine.died.done()
    body = {
        "status": "ok" if well else "unavailable",
        "halted": bool(halts),
        "halts": halts,
        "lanes": lanes,
    }
    return reply(body, 200 if well else 503)


async def _answers(core: Trading) -> bool:
    """A lane closes only when it is used: of a quiet one the system itself is asked."""
    try:
        async with asyncio.timeout(PING_S):
            await core.totals()
    except (TimeoutError, Unreachable):
        return False
    return True


async def metrics(call: Call) -> Reply:
    gate, meters = call.service.gate, call.service.meters
    for name, lane in gate.engine.lanes.items():
        meters.lane(name, len(lane.ring), closed=lane.closed)
    meters.background(call.service.ages())
    if gate.core is not None:
        meters.floor(gate.core.floor)
    report = call.service.audit.last if call.service.audit else None
    for asset, sums in (report.assets if report else {}).items():
        meters.gap(asset, sums.gap)
    meters.database(gate.store.trouble)
    if gate.store.trouble is None:
        # What the database does not tell now keeps its last value: the page itself must not fail.
        with suppress(StoreUnavailable):
            meters.full_audit(await sweeping.age_s(gate.store))
            meters.backlog(list(await reading.backlog(gate.store)))
    return Reply(200, meters.page(), {"Content-Type": PAGE})


async def metrics_elsewhere(_: Call) -> Reply:
    """Counters of whichever process happens to answer would be nobody's."""
    detail = "several processes serve this port: each has its metrics at its own health address"
    raise Refused(NOT_FOUND, detail)
