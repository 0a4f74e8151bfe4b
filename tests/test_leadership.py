"""One process leads. The others know that it does, and take over when it falls silent."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

import tidegate.leadership
from tests.conftest import SCHEMA
from tidegate.core.ports import StoreUnavailable
from tidegate.leadership import LOOK_S, SILENT_S, Leadership

pytestmark = pytest.mark.slow

_numbers = count()
HOLDER = (
    "SELECT l.pid FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database"
    " WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()"
)


@pytest.fixture
def refused(database: str) -> Iterator[str]:
    """The address of a login that gets no session: 53300, too many connections."""
    name = sql.Identifier(f"refused_{next(_numbers)}")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN CONNECTION LIMIT 0").format(name))
        yield make_conninfo(database, user=name.as_string(connection).strip('"'))
        connection.execute(sql.SQL("DROP ROLE {}").format(name))


def play(scene: Callable[[list[Leadership]], Awaitable[None]], *databases: str) -> None:
    async def whole() -> None:
        processes = [Leadership(database, SCHEMA) for database in databases]
        try:
            await scene(processes)
        finally:
            for process in processes:
                await process.close()

    asyncio.run(whole())


async def leads(process: Leadership, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not process.held:
            await process.look()
            await asyncio.sleep(0.05)


def test_one_process_leads_and_the_other_knows_that_it_does(database: str) -> None:
    async def scene(processes: list[Leadership]) -> None:
        first, second = processes
        assert not first.known, "it has not looked yet"
        for _ in range(3):
            await first.look()
            await second.look()
            assert [(p.held, p.known) for p in processes] == [(True, True), (False, True)]
        await first.close()
        await leads(second, 5)
        assert [(p.held, p.known) for p in processes] == [(False, False), (True, True)]

    play(scene, database, database)


def test_two_stores_of_one_database_have_a_leader_each(database: str) -> None:
    async def scene(processes: list[Leadership]) -> None:
        other = Leadership(database, "store_two")
        await processes[0].look()
        await other.look()
        assert processes[0].held
        assert other.held
        await other.close()

    play(scene, database)


def test_a_process_that_gets_no_session_knows_of_no_leader(database: str, refused: str) -> None:
    async def scene(processes: list[Leadership]) -> None:
        first, second = processes
        await first.look()
        with pytest.raises(StoreUnavailable, match="too many connections"):
            await second.look()
        assert (second.held, second.known) == (False, False)

    play(scene, database, refused)


def test_a_leader_whose_session_was_ended_leads_no_more(database: str) -> None:
    async def scene(processes: list[Leadership]) -> None:
        [process] = processes
        await process.look()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({HOLDER}) AS holder")
        with pytest.raises(StoreUnavailable):
            await process.look()
        assert (process.held, process.known) == (False, False)
        await leads(process, 5)

    play(scene, database)


def test_the_server_ends_the_session_of_a_leader_that_is_silent(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped, or its host has vanished: nothing on its side ends the session."""
    monkeypatch.setattr(tidegate.leadership, "SILENT_S", 1.0)

    async def scene(processes: list[Leadership]) -> None:
        silent, other = processes
        await silent.look()
        await other.look()
        assert silent.held
        await leads(other, 5)
        with pytest.raises(StoreUnavailable):
            await silent.look()
        await silent.look()
        assert (silent.held, silent.known) == (False, True)

    play(scene, database, database)
    assert SILENT_S + LOOK_S < 60, "a leader that has vanished is replaced within a minute"


def test_the_server_asks_whether_the_host_of_a_leader_is_still_there(database: str) -> None:
    """`reset_val`, because the settings read as zero in a session over a socket file."""

    async def scene(processes: list[Leadership]) -> None:
        await processes[0].look()
        session = processes[0]._session
        assert session is not None
        found = await session.execute(
            "SELECT name, reset_val FROM pg_settings"
            " WHERE starts_with(name, 'tcp_') OR name = 'idle_session_timeout'"
        )
        settings = {name: int(value) for name, value in await found.fetchall()}
        assert settings["idle_session_timeout"] == SILENT_S * 1000
        assert 0 < settings["tcp_user_timeout"] <= SILENT_S * 1000
        after_s = settings["tcp_keepalives_idle"]
        probes_s = settings["tcp_keepalives_interval"] * settings["tcp_keepalives_count"]
        assert min(after_s, probes_s) > 0, "zero is the two hours of the system"
        assert after_s + probes_s <= SILENT_S

    play(scene, database)
