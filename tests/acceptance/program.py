"""A program with a flow of its own, beside the API: `python -m tests.acceptance.program …`.

DATABASE CORE OWNER COUNT: it asks for COUNT transfers of the flow `added`, both ways in turn, under
the same keys whenever it is started, and ends when all of them have ended.
"""

import asyncio
import sys

import tidegate as tg
from tests.conftest import SCHEMA
from tidegate.flows import FLOWS
from tidegate.store.sessions import StoreLimits

INTERNAL = FLOWS["internal_transfer"]
ADDED = tg.Flow("added", first=INTERNAL.first, rows=INTERNAL.rows)
USDT = 3


def wanted(owner: int, number: int) -> tg.Request:
    inside, outside = tg.Party("ledger", "FUNDING", owner), tg.Party("core", "SPOT", owner)
    source, target = (inside, outside) if number % 2 else (outside, inside)
    parties = {"source": source, "target": target}
    return tg.Request(owner, ADDED.name, parties, USDT, 1_000, f"added-{number}")


async def work(setup: tg.Setup, owner: int, count: int) -> None:
    async with tg.open_gate(setup) as gate:
        for start in range(0, count, 10):
            asked = [wanted(owner, number) for number in range(start, min(start + 10, count))]
            said = await asyncio.gather(*(gate.engine.transfer(each, 60.0) for each in asked))
            for each in said:
                assert isinstance(each, tg.Receipt), each
                assert each.transfer.state == "COMMITTED", each.transfer
            print(f"ended {start + len(asked)}", flush=True)


def main() -> None:
    database, core, owner, count = sys.argv[1:]
    bounds = StoreLimits(lease_s=1.0, connections=4)
    setup = tg.Setup(database, SCHEMA, core, flows=(ADDED,), bounds=bounds, scan_s=0.1, ring_size=1)
    asyncio.run(work(setup, int(owner), int(count)))


if __name__ == "__main__":
    main()
