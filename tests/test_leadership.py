"""One process is the leader. Another one takes over when the leader stops checking."""

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
from tidegate.leadership import CHECK_TIMEOUT_S, IDLE_TIMEOUT_S, Leadership

pytestmark = pytest.mark.slow

_numbers = count()
HOLDER = (
    "SELECT l.pid FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database"
    " WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()"
)


@pytest.fixture
def refused(database: str) -> Iterator[str]:
    """The address of a login whose sessions are refused: 53300, too many connections."""
    name = sql.Identifier(f"refused_{next(_numbers)}")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN CONNECTION LIMIT 0").format(name))
        yield make_conninfo(database, user=name.as_string(connection).strip('"'))
        connection.execute(sql.SQL("DROP ROLE {}").format(name))


def play(scene: Callable[[list[Leadership]], Awaitable[None]], *databases: str) -> None:
    async def run() -> None:
        processes = [Leadership(database, SCHEMA) for database in databases]
        try:
            await scene(processes)
        finally:
            for process in processes:
                await process.close()

    asyncio.run(run())


async def becomes_leader(process: Leadership, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not process.held:
            await process.check()
            await asyncio.sleep(0.05)


def test_one_process_is_the_leader_and_the_other_knows_it(database: str) -> None:
    async def scene(processes: list[Leadership]) -> None:
        first, second = processes
        assert not first.known, "it has not checked yet"
        for _ in range(3):
            await first.check()
            await second.check()
            assert [(p.held, p.known) for p in processes] == [(True, True), (False, True)]
        await first.close()
        await becomes_leader(second, 5)
        assert [(p.held, p.known) for p in processes] == [(False, False), (True, True)]

    play(scene, database, database)


def test_each_of_two_stores_in_a_database_has_a_leader(database: str) -> None:
    async def scene(processes: list[Leadership]) -> None:
        other = Leadership(database, "store_two")
        await processes[0].check()
        await other.check()
        assert processes[0].held
        assert other.held
        await other.close()

    play(scene, database)


def test_a_process_without_a_session_knows_of_no_leader(database: str, refused: str) -> None:
    async def scene(processes: list[Leadership]) -> None:
        first, second = processes
        await first.check()
        with pytest.raises(StoreUnavailable, match="too many connections"):
            await second.check()
        assert (second.held, second.known) == (False, False)

    play(scene, database, refused)


def test_a_leader_whose_session_has_ended_is_no_longer_the_leader(database: str) -> None:
    async def scene(processes: list[Leadership]) -> None:
        [process] = processes
        await process.check()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({HOLDER}) AS holder")
        with pytest.raises(StoreUnavailable):
            await process.check()
        assert (process.held, process.known) == (False, False)
        await becomes_leader(process, 5)

    play(scene, database)


def test_the_server_ends_the_session_of_an_idle_leader(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was stopped, or its host has vanished, so that it cannot end its session."""
    monkeypatch.setattr(tidegate.leadership, "IDLE_TIMEOUT_S", 1.0)

    async def scene(processes: list[Leadership]) -> None:
        idle, other = processes
        await idle.check()
        await other.check()
        assert idle.held
        await becomes_leader(other, 5)
        with pytest.raises(StoreUnavailable):
            await idle.check()
        await idle.check()
        assert (idle.held, idle.known) == (False, True)

    play(scene, database, database)
    assert IDLE_TIMEOUT_S + CHECK_TIMEOUT_S < 60, (
        "a leader that has vanished is replaced within a minute"
    )


def test_the_server_probes_the_host_of_the_leader(database: str) -> None:
    """Reads `reset_val`, because in a session over a socket file the settings are shown as zero."""

    async def scene(processes: list[Leadership]) -> None:
        await processes[0].check()
        session = processes[0]._session
        assert session is not None
        cursor = await session.execute(
            "SELECT name, reset_val FROM pg_settings"
            " WHERE starts_with(name, 'tcp_') OR name = 'idle_session_timeout'"
        )
        settings = {name: int(value) for name, value in await cursor.fetchall()}
        assert settings["idle_session_timeout"] == IDLE_TIMEOUT_S * 1000
        assert 0 < settings["tcp_user_timeout"] <= IDLE_TIMEOUT_S * 1000
        idle_s = settings["tcp_keepalives_idle"]
        probes_s = settings["tcp_keepalives_interval"] * settings["tcp_keepalives_count"]
        assert min(idle_s, probes_s) > 0, "zero means two hours, the default of the system"
        assert idle_s + probes_s <= IDLE_TIMEOUT_S

    play(scene, database)
