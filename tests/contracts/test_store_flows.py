"""A store gives a process only rows of flows that it knows, whoever else works on it."""

import asyncio

from tests.contracts.stores import FLOW, OTHER, OURS, AnyStore, Play, insert, new_transfer, one
from tidegate.store.flow_checks import checksums


def test_rows_of_an_unknown_flow_are_left_for_others(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        ours, theirs = new_transfer(), new_transfer(flow=OTHER)
        await insert(store, theirs, ours)
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [ours.id]
        left = await one(store, theirs.id)
        assert (left.attempts, left.version) == (0, 0), "not touched"
        assert [t.id for t in await store.claim("venue", 5, checksums([OTHER]))] == [theirs.id]

    play(scene)


def test_many_rows_of_an_unknown_flow_in_front_do_not_starve_ours(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, *(new_transfer(flow=OTHER) for _ in range(20)))
        await asyncio.sleep(0.01)
        ours = new_transfer()
        await insert(store, ours)
        assert [t.id for t in await store.claim("venue", 1, OURS)] == [ours.id]

    play(scene)


def test_a_process_with_another_table_of_the_same_name_touches_nothing(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        stale = {FLOW.name: "the checksum of another table"}
        assert await store.claim("venue", 5, stale) == []
        [asked] = await store.claim("venue", 5, OURS)
        assert await store.askable([asked], stale) == []
        assert await store.askable([asked], {}) == []
        assert await store.askable([asked], OURS) == [asked]

    play(scene)


def test_a_flow_that_is_not_installed_is_nobodys(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [asked] = await store.claim("venue", 5, OURS | {"unheard of": "x"})
        assert await store.askable([asked], {"unheard of": "x"}) == []

    play(scene)


def test_the_longest_due_comes_first_over_all_flows(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
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

    play(scene)


def test_nothing_handed_over_is_asked_while_halted(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        asked = await store.claim("venue", 1, OURS)
        await store.halt("a drill", "operator")
        assert await store.askable(asked, OURS) == []

    play(scene)
