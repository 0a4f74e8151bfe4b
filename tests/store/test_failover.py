"""After a failover an open session leads to a standby: it is replaced, and nobody notices."""

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
    """Make so many open sessions read-only, as those of a server that is a standby now."""
    held = [store.session() for _ in range(sessions)]
    pipes = [await session.__aenter__() for session in held]
    for pipe in pipes:
        reply = pipe.send(READ_ONLY, {})
        await pipe.sync()
        assert pipe.rows(reply) == [("on",)]
    for session in held:
        await session.__aexit__(None, None, None)


def test_a_request_on_a_read_only_session_is_made_on_a_new_one(database: str) -> None:
    async def scene() -> None:
        async with PostgresStore(database, SCHEMA, StoreLimits(lease_s=1.0)) as store:
            rig = Rig(store, Ledger(), Outside(Venue()))
            await rig.endow(1_000)
            async with rig.engine() as engine:
                await demote(store, 4)
                for number in range(5):
                    asking = engine.transfer(request("in", 5, f"c{number}"), wait_s=10.0)
                    made = await asyncio.wait_for(asking, 15)
                    assert isinstance(made, Receipt)
                    assert made.transfer.state == "COMMITTED"
            assert await rig.funding() == 975

    asyncio.run(scene())


def test_the_check_finds_a_read_only_session_and_replaces_all_of_them(database: str) -> None:
    async def scene() -> None:
        async with PostgresStore(database, SCHEMA) as store:
            await check_writable(store)
            await demote(store, 3)
            with pytest.raises(NotWritable):
                await check_writable(store)
            assert store.trouble == "read-only"
            await check_writable(store)
            assert store.trouble is None

    asyncio.run(scene())


def test_a_check_that_is_refused_itself_does_not_hold_others_up(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with PostgresStore(database, SCHEMA) as store:
            store.trouble = "full"
            monkeypatch.setitem(STATEMENTS, "take_room", "SELECT no_such_column")
            with pytest.raises(StoreFault):
                await check_writable(store)
            assert store.trouble is None

    asyncio.run(scene())


def test_room_is_taken_and_given_back(database: str) -> None:
    async def scene() -> None:
        async with PostgresStore(database, SCHEMA) as store:
            for _ in range(3):
                store.trouble = "full"
                await check_writable(store)
                assert store.trouble is None
            found = await store.run(
                "SELECT count(*) FROM pg_class WHERE relname = 'room_taken'", {}
            )
            assert found == [(0,)]

    asyncio.run(scene())
