"""Two versions on one store: each works only on the flows that it knows."""

import asyncio
from typing import Any

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.engine.rig import OWNER, Play, Rig, made, request
from tidegate.core.flow import Flow
from tidegate.core.kind import Transfer
from tidegate.core.request import Request
from tidegate.engine.engine import Engine
from tidegate.engine.pending_request import Receipt
from tidegate.flows import FLOWS
from tidegate.store.memory_store import MemoryStore

KNOWN = FLOWS["internal_transfer"]
ADDED = Flow("added", first=KNOWN.first, rows=KNOWN.rows)
COUNT = 40


def added(direction: str, amount: int, cid: str | None = None) -> Request:
    base = request(direction, amount, cid)
    return Request(OWNER, ADDED.name, base.parties, base.asset_id, amount, cid)


def versions(rig: Rig, database: str) -> tuple[Engine[Any], Engine[Any]]:
    """An engine without the added flow, and one that knows it.

    Their rings have one entry: nearly all rows stay in the table, where both may claim them.
    """
    old = rig.engine(1, ring_size=1)
    rig.install(database, ADDED)
    return old, rig.engine(2, ring_size=1)


def replace_table(rig: Rig, database: str) -> None:
    """Change the stored checksum of a flow, as a migration by another version does."""
    if isinstance(rig.store, MemoryStore):
        rig.store.tables.flows[KNOWN.name] = "another"
        return
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            f"UPDATE {SCHEMA}.flow_tables SET checksum = 'another' WHERE flow = %s", (KNOWN.name,)
        )


async def load(engine: Engine[Any], wanted: list[Request]) -> list[Transfer]:
    return list(await asyncio.gather(*(made(engine, request_) for request_ in wanted)))


def test_a_flow_is_added_under_load_while_an_old_worker_goes_on(play: Play, database: str) -> None:
    async def scene(rig: Rig) -> None:
        old, new = versions(rig, database)
        async with old, new:
            begun = await asyncio.gather(
                load(old, [request("in", 1) for _ in range(COUNT)]),
                load(new, [added("in", 2) for _ in range(COUNT)]),
                load(new, [added("out", 2) for _ in range(COUNT)]),
                load(new, [request("out", 1) for _ in range(COUNT)]),
            )
            ended = await rig.ended([t for transfers in begun for t in transfers])
            assert not old.died.done()
            assert not new.died.done()
        assert {t.state for t in ended} == {"COMMITTED"}
        assert rig.alerts == []
        assert await rig.funding() == 1_000

    play(scene)


def test_an_old_worker_alone_leaves_the_rows_of_a_new_flow(play: Play, database: str) -> None:
    """As after a downgrade: the rows wait unchanged until a process knows their flow again."""

    async def scene(rig: Rig) -> None:
        old, new = versions(rig, database)
        new.lanes["venue"].stop()
        async with new:
            waiting = await load(new, [added("in", 5) for _ in range(10)])
        async with old:
            known = await load(old, [request("in", 1) for _ in range(10)])
            await rig.ended(known)
            await asyncio.sleep(4 * old.parts.scan_s)
            assert not old.died.done()
        left = await rig.store.find([t.id for t in waiting])
        assert {(t.state, t.version) for t in left} == {("TARGET_PENDING", 1)}
        async with rig.engine(3):
            ended = await rig.ended(waiting)
        assert {t.state for t in ended} == {"COMMITTED"}

    play(scene)


def test_transfers_in_the_ring_are_not_asked_about_after_their_flow_table_was_replaced(
    play: Play, database: str
) -> None:
    """A worker that runs while its flow table is changed releases the rows and asks nothing."""

    async def scene(rig: Rig) -> None:
        old = rig.engine(1)
        old.lanes["venue"].stop()
        async with old:
            [transfer] = await load(old, [request("in", 5)])
            await asyncio.to_thread(replace_table, rig, database)
            assert len(old.lanes["venue"].ring) == 1
            assert await old.lanes["venue"]._popped(lambda _: None) == []
        assert rig.outside.calls == []
        [left] = await rig.store.find([transfer.id])
        assert left.version == 1

    play(scene)


def test_a_request_for_a_flow_that_the_process_does_not_know_is_refused(
    play: Play, database: str
) -> None:
    async def scene(rig: Rig) -> None:
        old, new = versions(rig, database)
        async with old, new:
            assert await old.submit(added("in", 1)) == "INVALID_REQUEST"
            first = await made(new, added("in", 1, "same"))
            await rig.ended([first])

    play(scene)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_caller_learns_of_an_end_that_another_version_may_have_recorded(
    direction: str, play: Play, database: str
) -> None:
    async def scene(rig: Rig) -> None:
        old, new = versions(rig, database)
        async with old, new:
            receipt = await new.transfer(added(direction, 3), 10.0)
            assert isinstance(receipt, Receipt)
            assert receipt.transfer.state == "COMMITTED"

    play(scene)
