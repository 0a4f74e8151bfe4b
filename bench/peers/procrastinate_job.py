"""procrastinate: the transfer as a job in the same PostgreSQL, worked off in this process."""

import asyncio
from uuid import UUID, uuid4

from procrastinate import App, PsycopgConnector

from bench.driving import DONE, Outcome, drive
from bench.peers.job import Steps
from bench.rail import open_core, open_sql
from bench.spec import Result, Spec
from bench.traffic import Order, Traffic

CONCURRENCY = 20


async def run(spec: Spec) -> Result:
    traffic = Traffic(spec)
    ended: dict[str, asyncio.Future[None]] = {}
    app = App(connector=PsycopgConnector(conninfo=spec.database, min_size=4, max_size=32))
    async with open_sql(spec) as sql, open_core(spec) as core, app.open_async():
        await app.schema_manager.apply_schema_async()
        steps = Steps(sql, core)

        async def transfer(id_: str, order: list[object]) -> None:
            asked = Order(*order)  # type: ignore[arg-type]
            await steps.transfer(UUID(id_), asked, spec.direction)
            ended.pop(id_).set_result(None)

        task = app.task(name="transfer")(transfer)
        worker = asyncio.create_task(
            app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)
        )

        async def one(number: int) -> Outcome:
            id_ = str(uuid4())
            ended[id_] = end = asyncio.get_running_loop().create_future()
            await task.defer_async(id_=id_, order=list(traffic.order(number)))
            await end
            return DONE

        try:
            return await drive(spec, one)
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
