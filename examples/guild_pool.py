"""A guild member pays another member through the transfer pool."""

import asyncio
import sys
from pathlib import Path

from psycopg_pool import AsyncConnectionPool

import tidegate as tg
from tidegate.economy import TransferEventPoolCoordinator, TransferResult, TransferService


async def pay(address: str) -> None:
    async with (
        AsyncConnectionPool(address, min_size=1) as pool,
        TransferEventPoolCoordinator(pool),
        TransferService(pool, event_pool_enabled=True) as service,
    ):
        await service.issue_currency(guild_id=1, member_id=11, amount=300, cid="welcome")
        transfer_id = await service.transfer_currency(
            guild_id=1, initiator_id=11, target_id=22, amount=100, reason="lunch"
        )
        assert not isinstance(transfer_id, TransferResult)
        await asyncio.sleep(1)
        status = await service.get_transfer_status(transfer_id=transfer_id)
        print(status.status, dict(status.checks))


if __name__ == "__main__":
    with tg.EmbeddedPostgres(Path(sys.argv[1]) / "postgres") as server:
        tg.migrate(server.url(), "tidegate_store", tg.all_flows(), economy=True)
        asyncio.run(pay(server.url()))
