"""pgqueuer: the transfer as a job in the same PostgreSQL, worked off in this process."""

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import msgspec
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.driving import DONE, Outcome, drive
from bench.peers.job import Steps
from bench.rail import open_core, open_sql
from bench.spec import Result, Spec
from bench.traffic import Order, Traffic

BATCH, CONCURRENT, POOL = 100, 100, 8


async def run(spec: Spec) -> Result:
    traffic = Traffic(spec)
    ended: dict[str, asyncio.Future[None]] = {}
    working = await asyncpg.connect(spec.database)
    async with (
        open_sql(spec) as sql,
        open_core(spec) as core,
        asyncpg.create_pool(spec.database, min_size=POOL, max_size=POOL) as pool,
    ):
        queue = PgQueuer(AsyncpgDriver(working))
        await Queries(AsyncpgDriver(working)).install()
        asking, steps = Queries(AsyncpgPoolDriver(pool)), Steps(sql, core)

        async def transfer(job: Job) -> None:
            assert job.payload is not None
            id_, order = msgspec.json.decode(job.payload)
            await steps.transfer(UUID(id_), Order(*order), spec.direction)
            ended.pop(id_).set_result(None)

        queue.entrypoint("transfer")(transfer)
        worker = asyncio.create_task(
            queue.run(
                batch_size=BATCH,
                max_concurrent_tasks=2 * CONCURRENT,
                dequeue_timeout=timedelta(seconds=1),
            )
        )

        async def one(number: int) -> Outcome:
            id_ = str(uuid4())
            ended[id_] = end = asyncio.get_running_loop().create_future()
            payload = msgspec.json.encode((id_, traffic.order(number)))
            await asking.enqueue("transfer", payload)
            await end
            return DONE

        try:
            return await drive(spec, one)
        finally:
            queue.shutdown.set()
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
