"""A store returns to a process only rows of flows that the process has installed."""

import asyncio

from tests.contracts.stores import (
    FLOW,
    OTHER,
    OURS,
    AnyStore,
    RunScenario,
    find_one,
    insert,
    new_transfer,
)
from tidegate.store.flow_checks import checksums


def test_rows_of_an_unknown_flow_are_left_for_others(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        known, unknown = new_transfer(), new_transfer(flow=OTHER)
        await insert(store, unknown, known)
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [known.id]
        left = await find_one(store, unknown.id)
        assert (left.attempts, left.version) == (0, 0), "it was changed"
        assert [t.id for t in await store.claim("venue", 5, checksums([OTHER]))] == [unknown.id]

    run(scenario)


def test_a_backlog_of_an_unknown_flow_does_not_delay_known_flows(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, *(new_transfer(flow=OTHER) for _ in range(20)))
        await asyncio.sleep(0.01)
        known = new_transfer()
        await insert(store, known)
        assert [t.id for t in await store.claim("venue", 1, OURS)] == [known.id]

    run(scenario)


def test_a_process_with_a_different_version_of_a_flow_changes_nothing(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        stale = {FLOW.name: "the checksum of another table"}
        assert await store.claim("venue", 5, stale) == []
        [claimed] = await store.claim("venue", 5, OURS)
        assert await store.askable([claimed], stale) == []
        assert await store.askable([claimed], {}) == []
        assert await store.askable([claimed], OURS) == [claimed]

    run(scenario)


def test_a_flow_that_is_not_installed_is_never_askable(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [claimed] = await store.claim("venue", 5, OURS | {"unheard of": "x"})
        assert await store.askable([claimed], {"unheard of": "x"}) == []

    run(scenario)


def test_the_longest_due_is_claimed_first_over_all_flows(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        order = []
        for flow in (OTHER, FLOW, OTHER, FLOW):
            order.append(new_transfer(flow=flow))
            await insert(store, order[-1])
            await asyncio.sleep(0.01)
        both = checksums([FLOW, OTHER])
        claimed = [t.id for _ in order for t in await store.claim("venue", 1, both)]
        assert claimed == [t.id for t in order]
        await asyncio.sleep(store.lease_s + 0.1)
        assert len(await store.claim("venue", 3, both)) == 3, "the limit is for all flows together"

    run(scenario)


def test_no_claimed_transfer_is_askable_while_halted(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        claimed = await store.claim("venue", 1, OURS)
        await store.halt("a drill", "operator")
        assert await store.askable(claimed, OURS) == []

    run(scenario)
