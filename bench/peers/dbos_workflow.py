"""DBOS: the transfer as a workflow of two steps, each recorded by DBOS in the same PostgreSQL."""

from uuid import UUID, uuid4

from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench.driving import DONE, Outcome, drive
from bench.peers.job import Steps
from bench.rail import open_core, open_sql
from bench.spec import Result, Spec
from bench.traffic import Order, Traffic


def workflow_of(steps: Steps) -> object:
    async def withdraw(id_: str, order: Order) -> bool:
        return await steps.withdraw(UUID(id_), Order(*order))

    async def deposit(id_: str, order: Order) -> bool:
        return await steps.deposit(UUID(id_), Order(*order))

    first, second = DBOS.step()(withdraw), DBOS.step()(deposit)

    async def transfer(id_: str, order: Order) -> bool:
        return bool(await first(id_, order) and await second(id_, order))

    return DBOS.workflow()(transfer)


async def run(spec: Spec) -> Result:
    traffic = Traffic(spec)
    address = spec.database.replace("postgresql://", "postgresql+psycopg://")
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": address,
        "sys_db_pool_size": 32,
        "log_level": "ERROR",
    }
    async with open_sql(spec) as sql, open_core(spec) as core:
        DBOS(config=config)
        workflow = workflow_of(Steps(sql, core))
        DBOS.launch()

        async def one(number: int) -> Outcome:
            id_ = str(uuid4())
            with SetWorkflowID(id_):
                handle = await DBOS.start_workflow_async(workflow, id_, traffic.order(number))
            assert await handle.get_result(), "both steps were done"
            return DONE

        try:
            return await drive(spec, one)
        finally:
            DBOS.destroy()
