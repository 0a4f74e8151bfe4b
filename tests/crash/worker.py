"""A worker that kills itself: `python -m tests.crash.worker DATABASE CORE BASE MOMENTS`.

It makes the six transfers of a scene, one after the other. The moments before and after each
commit and each call are passed to the fuse. The code under test is not changed for this.
"""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.conftest import SCHEMA
from tests.crash.fuse import Fuse
from tests.crash.scenes import parts, request_of
from tidegate.app import log_alert, trading
from tidegate.core.answers import Answer
from tidegate.core.kind import Transfer
from tidegate.core.ports import FlowChecksums
from tidegate.core.transfer import Question
from tidegate.engine.engine import Engine, EngineParts
from tidegate.engine.gate import CORE
from tidegate.engine.pending_request import Receipt
from tidegate.flows import FLOWS
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.store.transaction import PostgresTransaction
from tidegate.systems.ledger import Ledger
from tidegate.systems.trading import TradingCoreClient

BOUNDS = StoreLimits(lease_s=0.6, connections=4, lock_s=2.0)


class FusedStore(PostgresStore):
    def __init__(self, database: str, fuse: Fuse) -> None:
        super().__init__(database, SCHEMA, BOUNDS)
        self.fuse = fuse

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresTransaction]:
        async with super().transaction() as tx:
            yield tx
            self.fuse.check("before a COMMIT")
        self.fuse.check("after a COMMIT")

    async def claim(self, lane: str, limit: int, flows: FlowChecksums) -> Sequence[Transfer]:
        claimed = await super().claim(lane, limit, flows)
        if claimed:
            self.fuse.check("after a claim")
        return claimed


class FusedCore:
    """The client of the core, with the fuse before and after each call."""

    name = CORE
    reversible = True

    def __init__(self, core: TradingCoreClient, fuse: Fuse) -> None:
        self.core, self.fuse = core, fuse

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        self.fuse.check("before a call")
        answers = await self.core.ask(questions)
        self.fuse.check("after a call")
        return answers

    async def remember(self, tx: PostgresTransaction) -> None:
        await self.core.remember(tx)


async def main(database: str, core: str, base: int, moments: int) -> None:
    fuse = Fuse(moments)
    async with FusedStore(database, fuse) as store:
        client = trading(store, core, log_alert)
        engine_parts: EngineParts[PostgresTransaction] = EngineParts(
            store=store,
            flows=FLOWS,
            outside=[FusedCore(client, fuse)],
            local=[Ledger()],
            clock=time.monotonic,
            dice=random.Random(),
            alert=log_alert,
            scan_s=0.1,
        )
        async with Engine(engine_parts) as engine:
            for number, part in enumerate(parts(base)):
                reply = await engine.transfer(request_of(part, number), wait_s=20)
                assert isinstance(reply, Receipt), reply
                assert reply.transfer.state == part.state, reply.transfer
        await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
