"""A program of its own that makes a pool's transfers, until somebody kills it."""

import asyncio
import sys

from psycopg_pool import AsyncConnectionPool

from tidegate.economy import TransferEventPoolCoordinator


async def main(database: str) -> None:
    async with (
        AsyncConnectionPool(database, min_size=1, max_size=2) as pool,
        TransferEventPoolCoordinator(pool, scan_s=0.2),
    ):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
