"""A program that runs the transfers of a pool until it is killed, by the test or by its fuse."""

import asyncio
import random
import sys
import time

from psycopg_pool import AsyncConnectionPool

from tests.crash.fuse import Fuse
from tests.crash.worker import FusedStore
from tidegate.app import log_alert
from tidegate.economy import TransferEventPoolCoordinator
from tidegate.engine.engine import Engine, EngineParts
from tidegate.engine.request_forms import forms_of
from tidegate.flows import FLOWS
from tidegate.store.transaction import PostgresTransaction
from tidegate.systems.guild import Allowance, Checks
from tidegate.systems.ledger import Ledger


async def coordinate(database: str) -> None:
    async with (
        AsyncConnectionPool(database, min_size=1, max_size=2) as pool,
        TransferEventPoolCoordinator(pool, scan_s=0.2),
    ):
        print("ready", flush=True)
        await asyncio.Event().wait()


async def burn(database: str, moments: int) -> None:
    """Run until the fuse kills the program: it counts claims, and COMMITs before and after."""
    async with FusedStore(database, Fuse(moments)) as store:
        parts: EngineParts[PostgresTransaction] = EngineParts(
            store=store,
            flows=FLOWS,
            outside=[],
            local=[Ledger(), Allowance(), Checks()],
            clock=time.monotonic,
            dice=random.Random(),
            alert=log_alert,
            scan_s=0.1,
            forms=forms_of({}, {}),
        )
        async with Engine(parts):
            await asyncio.Event().wait()


if __name__ == "__main__":
    moments = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    asyncio.run(burn(sys.argv[1], moments) if moments else coordinate(sys.argv[1]))
