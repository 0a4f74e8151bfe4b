"""The queue of requests is shared: one user cannot fill it, and who is limited takes no place."""

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
Asked = asyncio.Task[Receipt | Refusal]


def new_rig() -> Rig:
    return Rig(MemoryStore(time.time, MemoryTables()), MemoryLedger(), Outside(Venue()))


def wanted(count: int, owner: int, space: str = USER, prefix: str = "c") -> list[Request]:
    return [
        replace(request("in", 1, f"{prefix}{number}", owner), space=space)
        for number in range(count)
    ]


async def ask(
    request_queue: RequestQueue[Any], requests: Iterable[Request], veto: Refusal | None = None
) -> list[Asked]:
    """Let them enter; who was refused at once is done."""
    tasks = [asyncio.create_task(request_queue.submit(each, veto)) for each in requests]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


def refused(tasks: Iterable[Asked]) -> int:
    done = [task.result() for task in tasks if task.done()]
    assert set(done) <= {Refusal.OVERLOADED}
    return len(done)


async def end(tasks: Iterable[Asked]) -> None:
    for task in (every := list(tasks)):
        task.cancel()
    await asyncio.gather(*every, return_exceptions=True)


def test_one_user_with_cids_cannot_fill_the_queue() -> None:
    async def scene() -> None:
        request_queue = new_rig().engine().request_queue  # No loop takes anything from it.
        half = MAX_WAITING // 2
        greedy = await ask(request_queue, wanted(MAX_WAITING, GREEDY))
        assert refused(greedy) == half, "one user has half of the places, and no more"
        # Whoever else comes has a share; what comes in batches counts for the same user.
        modest = await ask(request_queue, wanted(MAX_SHARE - 10, MODEST))
        modest += await ask(request_queue, wanted(20, MODEST, BATCH))
        assert refused(modest) == 10
        # Guilds and operators speak for many.
        many = await ask(request_queue, wanted(2 * MAX_SHARE, GREEDY, OPERATOR))
        many += await ask(request_queue, wanted(2 * MAX_SHARE, LIMITED, GUILD))
        assert refused(many) == 0
        # Until all places are taken.
        rest = await ask(request_queue, wanted(MAX_WAITING, GREEDY, OPERATOR, "rest"))
        assert len(request_queue._waiting) == MAX_WAITING
        assert refused(rest) == half + MAX_SHARE + 4 * MAX_SHARE
        await end([*greedy, *modest, *many, *rest])

    asyncio.run(scene())


def test_a_share_is_free_again_when_its_requests_were_taken() -> None:
    async def scene() -> None:
        rig = new_rig()
        for owner in (GREEDY, MODEST):
            await rig.endow(MAX_WAITING, owner)
        request_queue = (engine := rig.engine(random.randrange(10**6))).request_queue
        asked = await ask(request_queue, wanted(MAX_WAITING, GREEDY))
        asked += await ask(request_queue, wanted(2 * MAX_SHARE, MODEST))
        assert refused(asked) == MAX_WAITING // 2 + MAX_SHARE
        async with engine:
            await asyncio.gather(*asked)
            assert not request_queue._owners
            assert isinstance(await request_queue.submit(request("in", 1, "late", GREEDY)), Receipt)

    asyncio.run(scene())


def test_a_limited_request_takes_no_place_and_a_replay_is_answered_all_the_same() -> None:
    async def scene() -> None:
        rig = new_rig()
        for owner in (GREEDY, LIMITED):
            await rig.endow(MAX_WAITING, owner)
        known = request("in", 1, "known", LIMITED)
        async with rig.engine(1) as before:
            first = await made(before, known)
        request_queue = (engine := rig.engine(2)).request_queue
        full = await ask(request_queue, wanted(MAX_WAITING, GREEDY, OPERATOR))
        assert len(request_queue._waiting) == MAX_WAITING
        veto = Refusal.RATE_LIMIT_EXCEEDED
        [replay] = await ask(request_queue, [known], veto)
        strange = await ask(request_queue, wanted(MAX_REPLAYS, LIMITED), veto)
        [without] = await ask(request_queue, [request("in", 1, None, LIMITED)], veto)
        assert len(request_queue._waiting) == MAX_WAITING
        assert without.result() is strange[-1].result() is veto, "they are not even looked up"
        assert not replay.done()
        async with engine:
            told = await replay
            assert isinstance(told, Receipt)
            assert (told.transfer.id, told.duplicate) == (first.id, True)
            assert {await task for task in strange} == {veto}
            assert all(isinstance(each, Receipt) for each in await asyncio.gather(*full))

    asyncio.run(scene())
