"""One user cannot fill the request queue, and rate-limited requests take no room in it."""

import asyncio
import random
import time
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from tests.engine.rig import OWNER, Outside, Rig, made, request
from tests.engine.venue import Venue
from tidegate.core.refusals import Refusal
from tidegate.core.request import BATCH, GUILD, OPERATOR, USER, Request
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_queue import MAX_REPLAYS, MAX_SHARE, MAX_WAITING, RequestQueue
from tidegate.store.memory_store import MemoryStore
from tidegate.store.memory_tables import MemoryTables
from tidegate.systems.ledger import MemoryLedger

GREEDY, MODEST, LIMITED = OWNER, OWNER + 1, OWNER + 2
Call = asyncio.Task[Receipt | Refusal]


def new_rig() -> Rig:
    return Rig(MemoryStore(time.time, MemoryTables()), MemoryLedger(), Outside(Venue()))


def wanted(count: int, owner: int, space: str = USER, prefix: str = "c") -> list[Request]:
    return [
        replace(request("in", 1, f"{prefix}{number}", owner), space=space)
        for number in range(count)
    ]


async def submit(
    request_queue: RequestQueue[Any], requests: Iterable[Request], veto: Refusal | None = None
) -> list[Call]:
    """Submit requests. Those that are refused at once are done when this returns."""
    tasks = [asyncio.create_task(request_queue.submit(wanted, veto)) for wanted in requests]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


def refused(tasks: Iterable[Call]) -> int:
    done = [task.result() for task in tasks if task.done()]
    assert set(done) <= {Refusal.OVERLOADED}
    return len(done)


async def cancel(tasks: Iterable[Call]) -> None:
    calls = list(tasks)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


def test_one_user_with_cids_cannot_fill_the_queue() -> None:
    async def scene() -> None:
        request_queue = new_rig().engine().request_queue  # No loop takes requests from it.
        half = MAX_WAITING // 2
        greedy = await submit(request_queue, wanted(MAX_WAITING, GREEDY))
        assert refused(greedy) == half, "one user gets half of the queue"
        # Another user gets a share. Requests in batches count for the same user.
        modest = await submit(request_queue, wanted(MAX_SHARE - 10, MODEST))
        modest += await submit(request_queue, wanted(20, MODEST, BATCH))
        assert refused(modest) == 10
        # Guilds and operators act for many users and have no share.
        unlimited = await submit(request_queue, wanted(2 * MAX_SHARE, GREEDY, OPERATOR))
        unlimited += await submit(request_queue, wanted(2 * MAX_SHARE, LIMITED, GUILD))
        assert refused(unlimited) == 0
        # They are refused only when the queue is full.
        rest = await submit(request_queue, wanted(MAX_WAITING, GREEDY, OPERATOR, "rest"))
        assert len(request_queue._waiting) == MAX_WAITING
        assert refused(rest) == half + MAX_SHARE + 4 * MAX_SHARE
        await cancel([*greedy, *modest, *unlimited, *rest])

    asyncio.run(scene())


def test_a_share_is_free_again_after_its_requests_are_written() -> None:
    async def scene() -> None:
        rig = new_rig()
        for owner in (GREEDY, MODEST):
            await rig.endow(MAX_WAITING, owner)
        request_queue = (engine := rig.engine(random.randrange(10**6))).request_queue
        calls = await submit(request_queue, wanted(MAX_WAITING, GREEDY))
        calls += await submit(request_queue, wanted(2 * MAX_SHARE, MODEST))
        assert refused(calls) == MAX_WAITING // 2 + MAX_SHARE
        async with engine:
            await asyncio.gather(*calls)
            assert not request_queue._owners
            assert isinstance(await request_queue.submit(request("in", 1, "late", GREEDY)), Receipt)

    asyncio.run(scene())


def test_a_limited_request_takes_no_room_and_a_replay_still_gets_its_transfer() -> None:
    async def scene() -> None:
        rig = new_rig()
        for owner in (GREEDY, LIMITED):
            await rig.endow(MAX_WAITING, owner)
        known = request("in", 1, "known", LIMITED)
        async with rig.engine(1) as before:
            first = await made(before, known)
        request_queue = (engine := rig.engine(2)).request_queue
        full = await submit(request_queue, wanted(MAX_WAITING, GREEDY, OPERATOR))
        assert len(request_queue._waiting) == MAX_WAITING
        veto = Refusal.RATE_LIMIT_EXCEEDED
        [replay] = await submit(request_queue, [known], veto)
        unknown = await submit(request_queue, wanted(MAX_REPLAYS, LIMITED), veto)
        [without_cid] = await submit(request_queue, [request("in", 1, None, LIMITED)], veto)
        assert len(request_queue._waiting) == MAX_WAITING
        assert without_cid.result() is unknown[-1].result() is veto, "their keys are not looked up"
        assert not replay.done()
        async with engine:
            receipt = await replay
            assert isinstance(receipt, Receipt)
            assert (receipt.transfer.id, receipt.duplicate) == (first.id, True)
            assert {await task for task in unknown} == {veto}
            assert all(isinstance(result, Receipt) for result in await asyncio.gather(*full))

    asyncio.run(scene())
