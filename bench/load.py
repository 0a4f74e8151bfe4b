"""The process that makes the load of one case: told by one argument, heard on its output."""

import asyncio
import gc
import importlib
import sys

import msgspec

from bench.driving import say
from bench.spec import Spec

MODULES = {
    "literal": "bench.literal",
    "tidegate": "bench.in_process",
    "pool": "bench.pool",
    "ceiling": "bench.ceiling",
    "http": "bench.http_client",
    "tpcb": "bench.peers.tpcb",
    "dbos": "bench.peers.dbos_workflow",
    "procrastinate": "bench.peers.procrastinate_job",
    "pgqueuer": "bench.peers.pgqueuer_job",
}


def main() -> None:
    spec = msgspec.json.decode(sys.argv[1], type=Spec)
    module = importlib.import_module(MODULES[spec.kind])
    # For everybody alike, as a program that only serves would set it.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    result = asyncio.run(module.run(spec))
    say(msgspec.json.encode(result).decode())
    sys.stdin.read()  # Until we are let go: whoever measures us reads our memory first.


if __name__ == "__main__":
    main()
