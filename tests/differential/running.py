"""Many seeds, one after another, on a database of their own; a difference told in few lines."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from tests.cluster import create_database, start_cluster, stop_cluster
from tests.conftest import SCHEMA
from tests.differential.stage import Counts, Difference, House, Part, Stage, opened
from tidegate.flows import FLOWS
from tidegate.store.migrate import migrate

Watch = Callable[[Counts], None]


def run_differential(
    seeds: Iterable[int],
    database: str | None = None,
    *,
    operations: int | None = None,
    watch: Watch | None = None,
) -> Counts:
    """Play the seeds, or as many of them as make up the operations; raise the first Difference."""
    with ExitStack() as held:
        if database is None:
            cluster = start_cluster()
            held.callback(stop_cluster, cluster)
            database = create_database(cluster.url, "differential")
            migrate(database, SCHEMA, FLOWS.values())
        return asyncio.run(_run(database, seeds, operations, watch))


async def _run(
    database: str, seeds: Iterable[int], operations: int | None, watch: Watch | None
) -> Counts:
    total = Counts()
    async with opened(database) as house:
        for seed in seeds:
            if operations is not None and total.operations >= operations:
                break
            total.add(await _play(house, Part(seed)))
            if watch is not None:
                watch(total)
    return total


async def _play(house: House, part: Part) -> Counts:
    try:
        return await Stage(house, part).run()
    except Difference as first:
        raise await _shortest(house, part, first) from None


async def _shortest(house: House, part: Part, shown: Difference) -> Difference:
    """The same seed with fewer acts, then with fewer sessions, as long as the sides differ."""
    for shorter in part.shorter():
        try:
            await Stage(house, shorter).run()
        except Difference as difference:
            return await _shortest(house, shorter, difference)
    return shown
