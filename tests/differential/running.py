"""Many seeds, one after another, on a database of their own; a difference told in few lines."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import NamedTuple

from tests.cluster import create_database, start_cluster, stop_cluster
from tests.conftest import SCHEMA
from tests.differential.scheduler import Counts, Difference, House, Part, Stage, opened
from tidegate.flows import FLOWS
from tidegate.store.migrate import migrate


class Wish(NamedTuple):
    """How long to go on, who is told on the way, and whether a difference is made short."""

    operations: int | None = None
    watch: Callable[[Counts], None] = lambda _: None
    shrink: bool = True


def run_differential(
    seeds: Iterable[int], database: str | None = None, wish: Wish | None = None
) -> Counts:
    """Play the seeds, or as many of them as make up the operations; raise the first Difference."""
    with ExitStack() as held:
        if database is None:
            cluster = start_cluster()
            held.callback(stop_cluster, cluster)
            database = create_database(cluster.url, "differential")
            migrate(database, SCHEMA, FLOWS.values())
        return asyncio.run(_run(database, seeds, wish or Wish()))


async def _run(database: str, seeds: Iterable[int], wish: Wish) -> Counts:
    total = Counts()
    async with opened(database) as house:
        for seed in seeds:
            total.add(await _play(house, Part(seed), shrink=wish.shrink))
            wish.watch(total)
            if wish.operations is not None and total.operations >= wish.operations:
                break
    return total


async def _play(house: House, part: Part, *, shrink: bool) -> Counts:
    try:
        return await Stage(house, part).run()
    except Difference as first:
        if not shrink:
            raise
        raise await _shortest(house, first) from first


async def _shortest(house: House, shown: Difference) -> Difference:
    """Leave out acts, many at first and then one by one, as long as the sides still differ."""
    size = len(shown.part.acts) // 2
    while size:
        for shorter in shown.part.shorter(size):
            try:
                await Stage(house, shorter).run()
            except Difference as difference:
                shown = difference
                break
        else:
            size //= 2
    return shown
