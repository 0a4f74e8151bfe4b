"""Concurrent requests are created together, and each is answered as if it were alone."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import UUID

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, PoolTimeout, TooManyRequests

from tests.economy.rig import ANNA, BEN, GUILD, Play, Rig
from tidegate.economy import DifferentTransfer, InvalidTransfer, TransferService, batched_creation

Pool: TypeAlias = AsyncConnectionPool[Any]
Scene: TypeAlias = Callable[[Rig, Pool], Awaitable[None]]
Pooled: TypeAlias = Callable[..., None]
PAY: dict[str, Any] = {"guild_id": GUILD, "initiator_id": ANNA, "target_id": BEN}
TRANSACTIONS = "SELECT DISTINCT xmin::text FROM economy.pending_transfers"
INSERT = (
    "INSERT INTO economy.pending_transfers (guild_id, initiator_id, target_id, amount, cid)"
    " VALUES (%s, %s, %s, %s, %s) RETURNING transfer_id"
)


@pytest.fixture
def pooled(play: Play) -> Pooled:
    async def with_pool(rig: Rig, scene: Scene, options: dict[str, Any]) -> None:
        async with AsyncConnectionPool(rig.database, min_size=1, **options) as pool:
            await scene(rig, pool)

    def run(scene: Scene, **options: Any) -> None:
        play(lambda rig: with_pool(rig, scene, {"max_size": 4} | options))

    return run


def service_of(pool: Pool) -> TransferService:
    return TransferService(pool, event_pool_enabled=True)


def count(rig: Rig) -> int:
    return len(rig.rows("SELECT FROM economy.pending_transfers"))


def test_concurrent_requests_share_one_transaction_and_each_has_its_own_id(
    pooled: Pooled,
) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        service = service_of(pool)
        requests = [{**PAY, "amount": n, "reason": f"no {n}", "cid": f"c{n}"} for n in range(1, 31)]
        ids = await asyncio.gather(*(service.transfer_currency(**request) for request in requests))
        assert len(rig.rows(TRANSACTIONS)) == 1
        for request, id_ in zip(requests, ids, strict=True):
            assert isinstance(id_, UUID)
            row = rig.pending(id_)
            assert (row["amount"], row["metadata"]) == (
                request["amount"],
                {"reason": request["reason"]},
            )
        async with rig.engine():
            for id_ in ids:
                await rig.until(id_, "completed")  # type: ignore[arg-type]
        assert rig.balance(BEN) == 1_000 + sum(range(1, 31))

    pooled(scene)


def test_more_requests_than_a_batch_holds_are_several_batches(
    pooled: Pooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        monkeypatch.setattr(batched_creation, "MAX_BATCH", 4)
        service = service_of(pool)
        ids = await asyncio.gather(
            *(service.transfer_currency(**PAY, amount=1, cid=f"c{n}") for n in range(10))
        )
        assert len(set(ids)) == count(rig) == 10
        assert len(rig.rows(TRANSACTIONS)) == 3

    pooled(scene)


def test_a_refused_request_does_not_affect_the_others_of_its_batch(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        service = service_of(pool)
        known = await service.transfer_currency(**PAY, amount=7, cid="known")
        odd: list[tuple[dict[str, Any], type[Exception]]] = [
            ({"amount": 8, "cid": "known"}, DifferentTransfer),
            ({"amount": 1, "cid": "c" * 65}, InvalidTransfer),
            ({"amount": 1, "cid": "\N{CENT SIGN}"}, InvalidTransfer),
            ({"amount": 1, "cid": "\ud800"}, UnicodeEncodeError),
            ({"amount": 1, "cid": "nul\0"}, InvalidTransfer),
            ({"amount": 1, "expires_hours": 1e12}, InvalidTransfer),
            ({"amount": 1, "expires_hours": 1e8}, InvalidTransfer),
            ({"amount": 1, "expires_hours": float("nan")}, InvalidTransfer),
            ({"amount": 1, "metadata": {"a": {1}}}, TypeError),
            ({"amount": 1, "metadata": {"a": "\0"}}, InvalidTransfer),
        ]
        for request, error in odd:
            before = count(rig)
            results = await asyncio.gather(
                service.transfer_currency(**PAY, amount=1),
                service.transfer_currency(**PAY, **request),
                service.transfer_currency(**PAY, amount=2, expires_hours=1),
                service.transfer_currency(**PAY, amount=7, cid="known"),
                return_exceptions=True,
            )
            assert isinstance(results[1], error), results[1]
            assert rig.pending(results[0])["amount"] == 1  # type: ignore[arg-type]
            assert rig.pending(results[2])["amount"] == 2  # type: ignore[arg-type]
            assert results[3] == known
            assert count(rig) == before + 2

    pooled(scene)


def test_the_same_cid_twice_at_the_same_time_is_one_transfer(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        service = service_of(pool)
        requests = [{**PAY, "amount": 5, "cid": cid} for cid in ("a", "b", "a", "a")]
        first, second, third, fourth = await asyncio.gather(
            *(service.transfer_currency(**request) for request in requests)
        )
        assert first == third == fourth != second
        assert count(rig) == 2

    pooled(scene)


def test_requests_with_other_keys_do_not_wait_for_a_held_key(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        service = service_of(pool)
        cids = ("one", "two", "three")
        with psycopg.connect(rig.database) as holder:
            held = [holder.execute(INSERT, (GUILD, ANNA, BEN, 5, cid)).fetchone() for cid in cids]
            waiting = []
            for cid in cids:
                request = service.transfer_currency(**PAY, amount=5, cid=cid)
                waiting.append(asyncio.create_task(request))
                others = [
                    service.transfer_currency(**PAY, amount=n, cid=f"c{n}") for n in range(1, 9)
                ]
                await asyncio.wait_for(asyncio.gather(*others), 10.0)
            assert not any(task.done() for task in waiting)
            holder.commit()
            found = await asyncio.wait_for(asyncio.gather(*waiting), 10.0)
        assert [(id_,) for id_ in found] == held

    pooled(scene)


def test_after_a_lost_connection_no_request_is_repeated(
    pooled: Pooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        async def lost(*_: object) -> list[UUID | None]:
            raise psycopg.OperationalError("the connection is lost")

        monkeypatch.setattr(batched_creation, "create_many", lost)
        service = service_of(pool)
        results = await asyncio.gather(
            *(service.transfer_currency(**PAY, amount=n, cid=f"c{n}") for n in (1, 2, 3)),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [psycopg.OperationalError] * 3
        assert count(rig) == 0, "the batch might have been committed"
        assert isinstance(await service.transfer_currency(**PAY, amount=4), UUID)

    pooled(scene)


def test_a_cancelled_call_does_not_cancel_the_others_of_its_batch(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        service = service_of(pool)
        async with pool.connection():
            cancelled, *others = (
                asyncio.create_task(service.transfer_currency(**PAY, amount=n, cid=f"c{n}"))
                for n in (1, 2, 3)
            )
            await asyncio.sleep(0.1)
            cancelled.cancel()
        await asyncio.gather(*others)
        assert cancelled.cancelled()
        assert {row["amount"] for row in rig.rows("SELECT * FROM economy.pending_transfers")} == {
            2,
            3,
        }

    pooled(scene, max_size=1)


def test_a_request_waits_for_a_session_no_longer_than_the_timeout_of_the_pool(
    pooled: Pooled,
) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        service = service_of(pool)
        async with pool.connection():
            requests = [service.transfer_currency(**PAY, amount=n, cid=f"c{n}") for n in (1, 2, 3)]
            results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [PoolTimeout] * 3
        assert count(rig) == 0
        assert isinstance(await service.transfer_currency(**PAY, amount=4), UUID)

    pooled(scene, max_size=1, timeout=0.3)


def test_no_more_requests_wait_than_the_pool_allows(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        service = service_of(pool)
        requests = [service.transfer_currency(**PAY, amount=n, cid=f"c{n}") for n in range(1, 6)]
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [UUID] * 3 + [TooManyRequests] * 2
        assert count(rig) == 3

    pooled(scene, max_size=1, max_waiting=2)


def test_a_call_without_a_cid_that_is_cancelled_creates_nothing(pooled: Pooled) -> None:
    """A caller that is cancelled and calls again must not pay twice, and has no cid against it."""

    async def scene(rig: Rig, pool: Pool) -> None:
        service = service_of(pool)
        with psycopg.connect(rig.database) as holder:
            holder.execute("LOCK TABLE economy.pending_transfers IN ACCESS EXCLUSIVE MODE")
            calls = [
                asyncio.create_task(service.transfer_currency(**PAY, amount=5)) for _ in range(3)
            ]
            await asyncio.sleep(0.5)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        again = await service.transfer_currency(**PAY, amount=5)
        await asyncio.sleep(0.5)  # Time for transactions whose caller was cancelled.
        assert isinstance(again, UUID)
        assert count(rig) == 1

    pooled(scene)
