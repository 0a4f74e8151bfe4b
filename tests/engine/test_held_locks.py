"""Another session holds a row for long: only transfers that need the row wait."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from tests.conftest import SCHEMA
from tests.engine.rig import ASSET, Execute, Outside, Rig, made, request
from tests.engine.venue import Venue
from tidegate.core.answers import Answer
from tidegate.core.kind import Party
from tidegate.core.ports import LockTimeout, StoreFault
from tidegate.core.request import GUILD, Request
from tidegate.core.transfer import Question
from tidegate.engine import write_batch
from tidegate.engine.engine import Engine
from tidegate.engine.pending_request import Receipt
from tidegate.engine.stopped import EngineStopped
from tidegate.simulation.world import until
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.systems.ledger import FUNDING, SUSPENSE, Ledger

pytestmark = pytest.mark.slow

OWNERS = range(100, 132)
HELD = 117
FEW_S = 6.0  # Enough for two lock timeouts and the search for the row on a busy machine.
LIMITS = StoreLimits(lease_s=5.0, lock_s=1.0, pool_wait_s=10.0)


@asynccontextmanager
async def held(database: str, owners: Sequence[int], book: str = FUNDING) -> AsyncIterator[None]:
    """Lock the rows of some accounts by a session that is idle in its transaction."""
    async with await psycopg.AsyncConnection.connect(database) as session:
        await session.execute(
            f"SELECT FROM {SCHEMA}.ledger_accounts"
            " WHERE owner = ANY(%s) AND book = %s ORDER BY owner FOR UPDATE",
            (list(owners), book),
        )
        yield
        await session.rollback()


@asynccontextmanager
async def opened(database: str) -> AsyncIterator[tuple[Rig, Engine[Any]]]:
    async with PostgresStore(database, SCHEMA, LIMITS) as store:
        rig = Rig(store, Ledger(), Outside(Venue()))
        for owner in OWNERS:
            await rig.endow(1_000, owner)
        async with rig.engine(1) as engine:
            yield rig, engine


async def committed_in_s(calls: "Sequence[asyncio.Future[Any]]") -> float:
    """Wait until all are committed. Return how long it took."""
    began_s = time.monotonic()
    done, late = await asyncio.wait(calls, timeout=FEW_S)
    assert not late, f"{len(late)} of {len(calls)} wait for a row that they do not need"
    for call in done:
        assert isinstance(call.result(), Receipt)
        assert call.result().transfer.state == "COMMITTED"
    return time.monotonic() - began_s


def test_new_transfers_of_others_do_not_wait_for_a_held_account(database: str) -> None:
    async def run() -> None:
        async with opened(database) as (_, engine), held(database, [HELD]):
            calls = {
                owner: asyncio.ensure_future(
                    engine.transfer(request("in", 1, "a", owner), wait_s=30)
                )
                for owner in OWNERS
            }
            await committed_in_s([task for owner, task in calls.items() if owner != HELD])
            assert not calls[HELD].done()
            await until(lambda: engine.context.held_accounts, 0.01)
            # Later requests do not wait at all, also while the held owner sends another one.
            again = [
                asyncio.ensure_future(engine.transfer(request("in", 1, "b", owner), wait_s=30))
                for owner in OWNERS
            ]
            others = [task for task, owner in zip(again, OWNERS, strict=True) if owner != HELD]
            assert await committed_in_s(others) < LIMITS.lock_s
            last = calls[HELD], again[OWNERS.index(HELD)]
            assert not any(task.done() for task in last)

    asyncio.run(run())


def test_a_request_that_was_never_written_is_not_accepted(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No COMMIT was sent, so nothing is in doubt: the caller gets a fault and may try again."""
    monkeypatch.setattr(write_batch, "LOCK_TRIES", write_batch.TRIES + 2)

    async def run() -> None:
        async with opened(database) as (rig, engine):
            async with held(database, [HELD]):
                keyed = request("in", 1, "a", HELD)
                calls = [engine.submit(keyed), engine.submit(replace(keyed, cid=None))]
                results = await asyncio.gather(*calls, return_exceptions=True)
                assert all(isinstance(result, LockTimeout) for result in results), results
            assert await rig.funding(HELD) == 1_000

    asyncio.run(run())


def test_the_held_transfer_ends_when_the_lock_is_released(database: str) -> None:
    async def run() -> None:
        async with opened(database) as (rig, engine):
            async with held(database, [HELD]):
                wanted = request("in", 1, "a", HELD)
                call = asyncio.ensure_future(engine.transfer(wanted, wait_s=30))
                await asyncio.sleep(5 * LIMITS.lock_s)
                assert not call.done()
            assert await committed_in_s([call]) < FEW_S
            assert await rig.funding(HELD) == 999

    asyncio.run(run())


def test_answers_of_others_are_recorded_while_an_account_is_held(database: str) -> None:
    """All answers come in the same batch."""

    async def run() -> None:
        async with opened(database) as (rig, engine):
            released = asyncio.Event()

            async def twist(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
                await released.wait()
                return execute()

            rig.outside.twist = twist
            transfers = [await made(engine, request("out", 1, "a", owner)) for owner in OWNERS]
            async with held(database, [HELD]):
                released.set()
                async with asyncio.timeout(FEW_S):
                    ended = await rig.ended([t for t in transfers if t.owner != HELD])
                assert {t.state for t in ended} == {"COMMITTED"}
                [late] = await rig.store.find([t.id for t in transfers if t.owner == HELD])
                assert late.lane is not None
            [last] = await rig.ended([late])
            assert last.state == "COMMITTED"
            assert await rig.funding(HELD) == 1_001

    asyncio.run(run())


def payment(guild: int, payer: int, payee: int, cid: str) -> Request:
    """A transfer between two books of one owner, like a payment between members of a guild."""
    books = (FUNDING, SUSPENSE, "member:1", "member:2", "member:3")
    parties = {
        "source": Party("ledger", books[payer], guild),
        "target": Party("ledger", books[payee], guild),
    }
    return Request(guild, "internal_transfer", parties, ASSET, 1, cid, space=GUILD)


def test_other_members_of_a_guild_do_not_wait_for_one_members_account(database: str) -> None:
    """All have the same owner, but other accounts."""
    guild = OWNERS[0]

    async def run() -> None:
        async with opened(database) as (_, engine):
            for payee in (2, 3, 4):
                for number in range(3):
                    await engine.transfer(payment(guild, 0, payee, f"{payee}-{number}"), wait_s=10)
            async with held(database, [guild], "member:1"):
                call = asyncio.ensure_future(
                    engine.transfer(payment(guild, 2, 3, "held"), wait_s=30)
                )
                await asyncio.sleep(3 * LIMITS.lock_s)
                for number in range(5):
                    wanted = (
                        payment(guild, 3, 4, f"x{number}")
                        if number % 2
                        else payment(guild, 4, 3, f"x{number}")
                    )
                    other = asyncio.ensure_future(engine.transfer(wanted, wait_s=30))
                    # After the first lock timeouts the held account is known, and none waits.
                    assert await committed_in_s([other]) < (FEW_S if number == 0 else LIMITS.lock_s)
                assert not call.done()
            await committed_in_s([call])

    asyncio.run(run())


def test_many_held_accounts_leave_sessions_for_others(database: str) -> None:
    """More held accounts than sessions, each with many requests in many batches."""
    held_owners = OWNERS[:12]

    async def run() -> None:
        async with opened(database) as (_, engine), held(database, held_owners):
            waiting = []
            for number in range(20):
                for owner in held_owners:
                    wanted = request("in", 1, f"held {number}", owner)
                    waiting.append(asyncio.ensure_future(engine.transfer(wanted, wait_s=30)))
                await asyncio.sleep(0.25)
            for number in range(5):
                wanted = request("in", 1, f"free {number}", OWNERS[20])
                free = asyncio.ensure_future(engine.transfer(wanted, wait_s=30))
                assert await committed_in_s([free]) < 2 * LIMITS.lock_s
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(run())


def test_requests_that_wait_for_a_held_account_are_answered_when_the_engine_stops(
    database: str,
) -> None:
    async def run() -> None:
        async with opened(database) as (_, engine), held(database, [HELD]):
            wanted = request("in", 1, "a", HELD)
            calls = [
                asyncio.ensure_future(engine.transfer(wanted, wait_s=30)),
                asyncio.ensure_future(engine.transfer(request("in", 1, "b", HELD), wait_s=30)),
            ]
            await asyncio.sleep(3 * LIMITS.lock_s)
            await engine.stop(grace_s=0.5)
            async with asyncio.timeout(1.0):
                results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(r, EngineStopped | StoreFault) for r in results), results

    asyncio.run(run())
