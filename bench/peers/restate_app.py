"""Restate: the transfer as a handler of two steps, each recorded by Restate's own server."""

import asyncio
import os
from contextlib import AsyncExitStack
from typing import Any

import restate

from bench.peers.job import Steps
from bench.rail import open_core, open_sql
from bench.spec import DECIMALS, Spec
from bench.traffic import Order
from tidegate.core.money import parse_amount

SPEC = Spec(
    kind="restate",
    database=os.environ["BENCH_DATABASE"],
    core=os.environ["BENCH_CORE"],
    inflight=int(os.environ["BENCH_INFLIGHT"]),
    seconds=0,
    warm_s=0,
)
transfers = restate.Service("Transfers")
_held, _opening = AsyncExitStack(), asyncio.Lock()
_opened: list[Steps] = []


async def steps() -> Steps:
    """Opened by the first who comes, on the loop that serves."""
    async with _opening:
        if not _opened:
            sql = await _held.enter_async_context(open_sql(SPEC))
            core = await _held.enter_async_context(open_core(SPEC))
            _opened.append(Steps(sql, core))
    return _opened[0]


async def move(ctx: restate.Context, wish: dict[str, Any]) -> dict[str, Any]:
    job, id_ = await steps(), ctx.uuid()
    amount = parse_amount(wish["amount"], DECIMALS)
    assert isinstance(amount, int), wish
    order = Order(int(wish["user_id"]), wish["from"] == "FUNDING", amount, wish["cid"])

    async def withdraw() -> bool:
        return await job.withdraw(id_, order)

    async def deposit() -> bool:
        return await job.deposit(id_, order)

    if not await ctx.run_typed("withdraw", withdraw):
        raise restate.TerminalError("INSUFFICIENT_BALANCE", 422)
    await ctx.run_typed("deposit", deposit)
    return {"state": "COMMITTED", "cid": wish["cid"]}


transfers.handler()(move)
app = restate.app([transfers])
