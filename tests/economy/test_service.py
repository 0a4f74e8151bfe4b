"""The library on a psycopg pool: both modes, the gateway and the errors."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import pytest
from psycopg_pool import AsyncConnectionPool

from tests.economy.rig import ANNA, BEN, CARA, GUILD, Play, Rig
from tidegate.economy import (
    AccountDisabled,
    AccountFrozen,
    AccountNotFound,
    DailyLimitExceeded,
    DifferentTransfer,
    InsufficientBalance,
    InvalidTransfer,
    PendingTransfer,
    PendingTransferGateway,
    TransferError,
    TransferEventPoolCoordinator,
    TransferNotFound,
    TransferResult,
    TransferService,
    TransferThrottled,
    TransferUnavailable,
)

Pool: TypeAlias = AsyncConnectionPool[Any]
Scene: TypeAlias = Callable[[Rig, Pool], Awaitable[None]]
PAY: dict[str, Any] = {"guild_id": GUILD, "initiator_id": ANNA, "target_id": BEN, "amount": 100}


@pytest.fixture
def pooled(play: Play) -> Callable[[Scene], None]:
    async def with_pool(rig: Rig, scene: Scene) -> None:
        async with AsyncConnectionPool(rig.database, min_size=1, max_size=4) as pool:
            await scene(rig, pool)

    return lambda scene: play(lambda rig: with_pool(rig, scene))


Pooled: TypeAlias = Callable[[Scene], None]


def test_in_pool_mode_a_call_returns_an_id_and_the_transfer_completes(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        service = TransferService(pool, event_pool_enabled=True)
        async with TransferEventPoolCoordinator(pool):
            id_ = await service.transfer_currency(**PAY, reason="lunch", metadata={"table": 4})
            assert isinstance(id_, UUID)
            await rig.until(id_, "completed")
        status = await service.get_transfer_status(transfer_id=id_)
        assert isinstance(status, PendingTransfer)
        assert status.status == "completed"
        assert status.checks == {"balance": 1, "cooldown": 1, "daily_limit": 1}
        assert status.metadata == {"reason": "lunch", "table": 4}
        with pytest.raises(TransferNotFound):
            await service.get_transfer_status(uuid4())

    pooled(scene)


def test_a_notification_is_enough_without_a_scan(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        service = TransferService(pool, event_pool_enabled=True)
        async with TransferEventPoolCoordinator(pool, scan_s=3600.0):
            await asyncio.sleep(0.5)
            for _ in range(3):
                id_ = await service.transfer_currency(**PAY)
                assert isinstance(id_, UUID)
                await rig.until(id_, "completed")

    pooled(scene)


def test_in_synchronous_mode_a_call_returns_the_result(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        async with TransferService(pool) as service:
            result = await service.transfer_currency(**PAY, reason="lunch")
            assert isinstance(result, TransferResult)
            assert (result.initiator_balance, result.target_balance) == (900, 1_100)
            assert (result.amount, result.metadata) == (100, {"reason": "lunch"})
        assert (rig.balance(ANNA), rig.balance(BEN)) == (900, 1_100)
        assert rig.rows("SELECT * FROM economy.pending_transfers") == []

    pooled(scene)


def test_points_are_created_once_per_cid(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        async with TransferService(pool) as service:
            for _ in range(3):
                await service.issue_currency(GUILD, CARA, 50, cid="welcome")
            with pytest.raises(DifferentTransfer):
                await service.issue_currency(GUILD, CARA, 51, cid="welcome")
            with pytest.raises(InvalidTransfer):
                await service.issue_currency(GUILD, CARA, 0)
        assert rig.balance(CARA) == 50

    pooled(scene)


REFUSED: list[tuple[type[TransferError], dict[str, Any], str]] = [
    (InsufficientBalance, {"amount": 1_001}, ""),
    (DailyLimitExceeded, {"amount": 501}, ""),
    (
        TransferThrottled,
        {},
        "INSERT INTO economy.throttles VALUES (10, 1, now() + interval '9 s')",
    ),
    (AccountNotFound, {"initiator_id": CARA}, ""),
    (AccountFrozen, {}, "UPDATE ledger_accounts SET status = 'FROZEN' WHERE book = 'member:1'"),
    (AccountDisabled, {}, "UPDATE ledger_accounts SET status = 'DISABLED' WHERE book = 'member:1'"),
    (AccountDisabled, {}, "UPDATE ledger_accounts SET status = 'DISABLED' WHERE book = 'member:2'"),
    (TransferUnavailable, {}, "INSERT INTO halts (reason, actor) VALUES ('a drill', 'us')"),
    (InvalidTransfer, {"amount": 0}, ""),
    (InvalidTransfer, {"amount": -5}, ""),
    (InvalidTransfer, {"amount": 1.5}, ""),
    (InvalidTransfer, {"amount": True}, ""),
    (InvalidTransfer, {"target_id": ANNA}, ""),
    (InvalidTransfer, {"guild_id": 2**63}, ""),
]


@pytest.mark.parametrize(("error", "fields", "before"), REFUSED)
def test_in_synchronous_mode_each_refusal_raises_its_error(
    pooled: Pooled, error: type[TransferError], fields: dict[str, Any], before: str
) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        if before:
            rig.run(before)
        async with TransferService(pool) as service:
            with pytest.raises(error):
                await service.transfer_currency(**(PAY | fields))
        assert (rig.balance(ANNA), rig.balance(BEN)) == (1_000, 1_000)

    pooled(scene)


def test_a_cooldown_is_stored_although_the_transfer_was_refused(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        async with TransferService(pool) as service:
            with pytest.raises(DailyLimitExceeded):
                await service.transfer_currency(**(PAY | {"amount": 501}))
            with pytest.raises(TransferThrottled):
                await service.transfer_currency(**PAY)
            rig.run("UPDATE economy.throttles SET throttled_until = now()")
            await service.transfer_currency(**PAY)

    pooled(scene)


def test_both_modes_share_one_limit(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        async with TransferService(pool) as service:
            await service.transfer_currency(**(PAY | {"amount": 400}))
            id_ = rig.insert(101)
            row = await rig.when(id_, lambda r: "daily_limit" in r["checks"])
            assert row["checks"]["daily_limit"] == 0

    pooled(scene)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_same_cid_is_the_same_transfer(pooled: Pooled, enabled: bool) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        async with TransferService(pool, event_pool_enabled=enabled) as service:
            request = PAY | {"cid": "lunch-1", "metadata": {"a": 1, "b": [2]}}
            results = await asyncio.gather(
                *(service.transfer_currency(**request) for _ in range(8))
            )
            assert len({str(result) for result in results}) == 1
            with pytest.raises(DifferentTransfer):
                await service.transfer_currency(**(request | {"amount": 99}))
            with pytest.raises(DifferentTransfer):
                await service.transfer_currency(**(request | {"metadata": {}}))
            other = await service.transfer_currency(
                **(request | {"initiator_id": BEN, "target_id": ANNA})
            )
            assert other != results[0]
        stored = rig.rows(
            "SELECT id FROM transfers WHERE flow <> 'deposit'"
            " UNION SELECT id FROM inbox WHERE flow <> 'deposit'"
        )
        assert len(stored) == 2

    pooled(scene)


@pytest.mark.parametrize(
    ("value", "enabled"),
    [(None, False), ("", False), ("false", False), ("true", True), ("1", True)],
)
def test_the_environment_chooses_the_mode(
    pooled: Pooled, monkeypatch: pytest.MonkeyPatch, value: str | None, enabled: bool
) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        if value is None:
            monkeypatch.delenv("TRANSFER_EVENT_POOL_ENABLED", raising=False)
        else:
            monkeypatch.setenv("TRANSFER_EVENT_POOL_ENABLED", value)
        assert TransferService(pool).event_pool_enabled is enabled
        assert TransferService(pool, event_pool_enabled=True).event_pool_enabled

    pooled(scene)


def test_a_transfer_expires_after_the_given_hours(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        service = TransferService(pool, event_pool_enabled=True)
        for hours, expiry in ((24.0, {}), (0.5, {"expires_hours": 0.5})):
            id_ = await service.transfer_currency(**(PAY | expiry))
            assert isinstance(id_, UUID)
            row = rig.pending(id_)
            assert (row["expires_at"] - row["created_at"]).total_seconds() == hours * 3600

    pooled(scene)


def test_lists_are_by_guild_and_status_in_pages(pooled: Pooled) -> None:
    async def scene(rig: Rig, pool: Pool) -> None:
        gateway = PendingTransferGateway()
        done = [rig.insert(n) for n in (1, 2)]
        async with rig.engine():
            for id_ in done:
                await rig.until(id_, "completed")
        waiting = [rig.insert(n) for n in (3, 4, 5)]
        elsewhere = rig.insert(6, guild_id=11)
        async with pool.connection() as connection:

            async def ids(guild: int = GUILD, **filters: Any) -> list[UUID]:
                transfers = await gateway.list_pending_transfers(connection, guild, **filters)
                return [transfer.transfer_id for transfer in transfers]

            assert await ids() == [*reversed(waiting), *reversed(done)]
            assert await ids(status="pending") == waiting[::-1]
            assert await ids(status="completed") == done[::-1]
            assert await ids(status="rejected") == []
            assert await ids(limit=2) == waiting[:0:-1]
            assert await ids(limit=2, offset=2) == [waiting[0], done[1]]
            assert await ids(11) == [elsewhere]
            with pytest.raises(ValueError, match="status must be one of"):
                await ids(status="lost")
            assert await gateway.update_pending_transfer(connection, done[0], {"seen": True})
            assert not await gateway.update_pending_transfer(connection, uuid4(), {})
            found = await gateway.get_pending_transfer(connection, done[0])
            assert found is not None
            assert found.metadata == {"seen": True}

    pooled(scene)
