"""Is it alive, can it serve, how is it doing."""

import asyncio

from tidegate.core.answers import Unreachable
from tidegate.core.ports import StoreFault
from tidegate.service.front import Call
from tidegate.service.http import Reply, reply
from tidegate.store import reading
from tidegate.systems.trading import Trading

PING_S = 1.0
PAGE = "text/plain; version=0.0.4; charset=utf-8"


async def alive(_: Call) -> Reply:
    return reply({"status": "ok"})


async def ready(call: Call) -> Reply:
    """Whether a transfer made now would go through, system by system."""
    gate = call.service.gate
    try:
        halted = await gate.store.halted()
    except StoreFault:
        return reply({"status": "unavailable", "database": "unreachable"}, 503)
    lanes = {name: "closed" if lane.closed else "open" for name, lane in gate.engine.lanes.items()}
    if gate.core is not None and not await _answers(gate.core):
        lanes[gate.core.name] = "closed"
    well = not halted and "closed" not in lanes.values() and not gate.engine.died.done()
    body = {"status": "ok" if well else "unavailable", "halted": halted, "lanes": lanes}
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
    if gate.core is not None:
        meters.floor(gate.core.floor)
    report = call.service.audit.last if call.service.audit else None
    for asset, sums in (report.assets if report else {}).items():
        meters.gap(asset, sums.gap)
    meters.backlog(list(await reading.backlog(gate.store)))
    return Reply(200, meters.page(), {"Content-Type": PAGE})
