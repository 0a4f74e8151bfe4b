"""After a failover, open sessions are connected to the standby: they are replaced silently."""

import asyncio

import pytest

from tests.conftest import SCHEMA
from tests.engine.rig import Outside, Rig, request
from tests.engine.venue import Venue
from tidegate.core.ports import NotWritable, StoreFault
from tidegate.engine.pending_request import Receipt
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.store.writable import STATEMENTS, check_writable
from tidegate.systems.ledger import Ledger

READ_ONLY = "SELECT set_config('default_transaction_read_only', 'on', false)"


async def demote(store: PostgresStore, sessions: int) -> None:
    """Make this many open sessions read-only, as after a failover."""
    held = [store.session() for _ in range(sessions)]
    pipes = [await session.__aenter__() for session in held]
    for pipe in pipes:
        reply = pipe.send(READ_ONLY, {})
        await pipe.sync()
        assert pipe.rows(reply) == [("on",)]
    for session in held:
        await session.__aexit__(None, None, None)


def test_a_request_on_a_read_only_session_succeeds_on_a_new_one(database: str) -> None:
    async def scenario() -> None:
        async with PostgresStore(database, SCHEMA, StoreLimits(lease_s=1.0)) as store:
            rig = Rig(store, Ledger(), Outside(Venue()))
            await rig.endow(1_000)
            async with rig.engine() as engine:
                await demote(store, 4)
                for number in range(5):
                    transfer = engine.transfer(request("in", 5, f"c{number}"), wait_s=10.0)
                    receipt = await asyncio.wait_for(transfer, 15)
                    assert isinstance(receipt, Receipt)
                    assert receipt.transfer.state == "COMMITTED"
            assert await rig.funding() == 975

    asyncio.run(scenario())


def test_the_check_finds_a_read_only_session_and_replaces_all_of_them(database: str) -> None:
    async def scenario() -> None:
        async with PostgresStore(database, SCHEMA) as store:
            await check_writable(store)
            await demote(store, 3)
            with pytest.raises(NotWritable):
                await check_writable(store)
            assert store.trouble == "read-only"
            await check_writable(store)
            assert store.trouble is None

    asyncio.run(scenario())


def test_a_check_that_is_refused_does_not_block_other_writes(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with PostgresStore(database, SCHEMA) as store:
            store.trouble = "full"
            monkeypatch.setitem(STATEMENTS, "grow_file", "SELECT no_such_column")
            with pytest.raises(StoreFault):
                await check_writable(store)
            assert store.trouble is None

    asyncio.run(scenario())


def test_the_check_after_a_full_disk_leaves_no_table(database: str) -> None:
    async def scenario() -> None:
        async with PostgresStore(database, SCHEMA) as store:
            for _ in range(3):
                store.trouble = "full"
                await check_writable(store)
                assert store.trouble is None
            found = await store.run(
                "SELECT count(*) FROM pg_class WHERE relname = 'room_taken'", {}
            )
            assert found == [(0,)]

    asyncio.run(scenario())
