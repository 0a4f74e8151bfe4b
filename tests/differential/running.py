"""Runs many seeds one after another on a separate database, and shortens a difference."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import NamedTuple

from tests.cluster import create_database, start_cluster, stop_cluster
from tests.conftest import SCHEMA
from tests.differential.scheduler import (
    Counts,
    Difference,
    SeedActs,
    SeedRun,
    Sides,
    prepared_sides,
)
from tidegate.flows import FLOWS
from tidegate.store.migrate import migrate


class RunOptions(NamedTuple):
    """How many operations to run, a callback for progress, and whether to shrink a difference."""

    operations: int | None = None
    watch: Callable[[Counts], None] = lambda _: None
    shrink: bool = True


def run_differential(
    seeds: Iterable[int], database: str | None = None, options: RunOptions | None = None
) -> Counts:
    """Run the seeds until the number of operations is reached; raise the first Difference."""
    with ExitStack() as stack:
        if database is None:
            cluster = start_cluster()
            stack.callback(stop_cluster, cluster)
            database = create_database(cluster.url, "differential")
            migrate(database, SCHEMA, FLOWS.values(), economy=True)
        return asyncio.run(_run(database, seeds, options or RunOptions()))


async def _run(database: str, seeds: Iterable[int], options: RunOptions) -> Counts:
    total = Counts()
    async with prepared_sides(database) as sides:
        for seed in seeds:
            total.add(await _run_seed(sides, SeedActs(seed), shrink=options.shrink))
            options.watch(total)
            if options.operations is not None and total.operations >= options.operations:
                break
    return total


async def _run_seed(sides: Sides, selection: SeedActs, *, shrink: bool) -> Counts:
    try:
        return await SeedRun(sides, selection).run()
    except Difference as first:
        if not shrink:
            raise
        raise await _shortest(sides, first) from first


async def _shortest(sides: Sides, found: Difference) -> Difference:
    """Leave out acts, first many and then single ones, as long as the sides still differ."""
    size = len(found.selection.acts) // 2
    while size:
        for shorter in found.selection.shorter(size):
            try:
                await SeedRun(sides, shorter).run()
            except Difference as difference:
                found = difference
                break
        else:
            size //= 2
    return found
