"""A gate on real PostgreSQL, with a trading core in this process whose disk a test can observe."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.conftest import SCHEMA
from tests.trading_core.local_connection import connect_to
from tidegate.app import log_alert
from tidegate.engine.alerts import Alert
from tidegate.engine.engine import Engine, EngineParts
from tidegate.engine.gate import ACCOUNTS, CORE, Gate
from tidegate.engine.request_forms import LEDGER, forms_of
from tidegate.flows import FLOWS
from tidegate.store.floors import PostgresFloors
from tidegate.store.pool_schema import is_installed
from tidegate.store.postgres import PostgresStore
from tidegate.store.transaction import PostgresTransaction
from tidegate.systems.guild import Allowance, Checks
from tidegate.systems.ledger import Ledger
from tidegate.systems.trading import CoreCaller, KnownCore, TradingCoreClient, load_known_core
from tidegate.trading_core.core import Core
from tidegate.trading_core.disk import Disk


@asynccontextmanager
async def open_gate(
    database: str,
    disk: Disk,
    client: type[TradingCoreClient] = TradingCoreClient,
    alert: Callable[[Alert], None] = log_alert,
    scan_s: float = 30.0,
) -> AsyncIterator[Gate]:
    core = await Core.open(disk, bytes(range(16)), time.time)
    running = asyncio.ensure_future(core.run())
    async with PostgresStore(database, SCHEMA) as store:

        async def known_core() -> KnownCore:
            async with store.transaction() as tx:
                return await load_known_core(tx, CORE)

        trading = client(CORE, connect_to(core), CoreCaller("test"), known_core)
        trading.on_floor = PostgresFloors(store).raise_to
        parts: EngineParts[PostgresTransaction] = EngineParts(
            store=store,
            flows=FLOWS,
            outside=[trading],
            local=[Ledger(LEDGER), Allowance(), Checks()],
            clock=time.monotonic,
            dice=random.Random(5),
            alert=alert,
            scan_s=scan_s,
            forms=forms_of(ACCOUNTS, assets := dict(await store.assets())),
        )
        async with Engine(parts) as engine:
            has_economy = await is_installed(store)
            yield Gate(engine, store, Ledger(LEDGER), trading, assets, has_economy=has_economy)
        await trading.close()
    core.stop()
    await running
