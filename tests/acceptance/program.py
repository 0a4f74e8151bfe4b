"""A program with a flow of its own, beside the API: `python -m tests.acceptance.program …`.

DATABASE CORE OWNER COUNT: it requests COUNT transfers of the flow `added`, alternating between both
directions, with the same keys at each start, and exits when all of them have ended.
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


def request_of(owner: int, number: int) -> tg.Request:
    inside, outside = tg.Party("ledger", "FUNDING", owner), tg.Party("core", "SPOT", owner)
    source, target = (inside, outside) if number % 2 else (outside, inside)
    parties = {"source": source, "target": target}
    return tg.Request(owner, ADDED.name, parties, USDT, 1_000, f"added-{number}")


async def work(setup: tg.Setup, owner: int, count: int) -> None:
    async with tg.open_gate(setup) as gate:
        for start in range(0, count, 10):
            requests = [
                request_of(owner, number) for number in range(start, min(start + 10, count))
            ]
            replies = await asyncio.gather(*(gate.engine.transfer(r, 60.0) for r in requests))
            for reply in replies:
                assert isinstance(reply, tg.Receipt), reply
                assert reply.transfer.state == "COMMITTED", reply.transfer
            print(f"ended {start + len(requests)}", flush=True)


def main() -> None:
    database, core, owner, count = sys.argv[1:]
    bounds = StoreLimits(lease_s=1.0, connections=4)
    setup = tg.Setup(database, SCHEMA, core, flows=(ADDED,), bounds=bounds, scan_s=0.1, ring_size=1)
    asyncio.run(work(setup, int(owner), int(count)))


if __name__ == "__main__":
    main()
