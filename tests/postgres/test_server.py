"""What the embedded server promises while nobody is killed."""

import os
import pwd
import threading
from pathlib import Path

import psycopg
import pytest

from tidegate.postgres import (
    Binaries,
    PostgresError,
    Server,
    ServerTimeouts,
    database_url,
    find_binaries,
    installed_binaries,
)

pytestmark = pytest.mark.slow

EVERY_POSTGRES = pytest.mark.parametrize(
    "binaries", installed_binaries(), ids=lambda binaries: f"postgres{binaries.version[0]}"
)


def ask(server: Server, question: str) -> object:
    with psycopg.connect(server.url()) as connection:
        row = connection.execute(question).fetchone()
    assert row is not None
    return row[0]


def tell(server: Server, statement: str) -> None:
    with psycopg.connect(server.url()) as connection:
        connection.execute(statement)


@EVERY_POSTGRES
def test_what_is_stored_is_there_after_a_restart(room: Path, binaries: Binaries) -> None:
    with Server(room, binaries) as server:
        tell(server, "CREATE TABLE kept AS SELECT 7 AS n")
    with Server(room) as server:
        assert ask(server, "SELECT n FROM kept") == 7
        assert ask(server, "SHOW server_version_num") == str(
            binaries.version[0] * 10000 + binaries.version[1]
        )


@EVERY_POSTGRES
def test_the_cluster_is_durable_and_closed_to_the_network(room: Path, binaries: Binaries) -> None:
    with Server(room, binaries, {"max_connections": "17"}) as server:
        for setting, value in {
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
            "data_checksums": "on",
            "listen_addresses": "",
            "server_encoding": "UTF8",
            "TimeZone": "UTC",
            "max_connections": "17",
        }.items():
            assert ask(server, f"SHOW {setting}") == value
        assert ask(server, "SELECT 'Z' < 'a' AND 'z' < 'ä'") is True
        assert (room / "postgres" / "cluster").stat().st_mode & 0o077 == 0
        assert "ready to accept connections" in server.log_path.read_text()
    assert not (room / "postgres" / "cluster" / "postmaster.pid").exists()


@EVERY_POSTGRES
@pytest.mark.parametrize("name", ["with a space, 'quotes' and a comma", "long" * 50])
def test_any_path_will_do(room: Path, name: str, binaries: Binaries) -> None:
    with Server(room / name / "deeper", binaries) as server:
        assert ask(server, "SELECT 1") == 1


def test_nothing_that_was_there_changes_its_owner_or_mode(room: Path) -> None:
    given = room / "given"
    given.mkdir(mode=0o750)
    (given / "somebody's file").touch()
    watched = [given, *given.iterdir(), *given.parents]
    before = [(path.stat().st_mode, path.stat().st_uid) for path in watched]
    users = pwd.getpwall()
    with Server(given) as server:
        assert os.stat(f"/proc/{server.pid}").st_uid != 0
    assert [(path.stat().st_mode, path.stat().st_uid) for path in watched] == before
    assert pwd.getpwall() == users


def test_the_server_runs_as_the_owner_of_its_cluster(room: Path) -> None:
    with Server(room):
        pass
    cluster = room / "postgres" / "cluster"
    owner = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
    for path in (cluster, *cluster.rglob("*")):
        os.chown(path, owner, -1)
    with Server(room) as server:
        assert os.stat(f"/proc/{server.pid}").st_uid == owner
        assert ask(server, "SELECT 1") == 1


def test_a_second_server_on_the_same_directory_is_refused(room: Path) -> None:
    with Server(room) as server:
        with pytest.raises(PostgresError, match="another Tidegate runs its PostgreSQL in"):
            Server(room).start()
        assert ask(server, "SELECT 1") == 1


def test_a_refused_start_shows_what_the_server_said(room: Path) -> None:
    server = Server(room, settings={"shared_buffers": "plenty"})
    with pytest.raises(PostgresError, match="did not start") as caught:
        server.start()
    assert 'invalid value for parameter "shared_buffers": "plenty"' in str(caught.value)
    assert str(server.log_path) in str(caught.value)
    with Server(room) as repaired:
        assert ask(repaired, "SELECT 1") == 1


def test_a_start_past_its_bound_leaves_no_server_behind(room: Path) -> None:
    with Server(room):
        pass
    with pytest.raises(PostgresError, match="not ready after 0 s"):
        Server(room, bounds=ServerTimeouts(start_s=0)).start()
    with Server(room, bounds=ServerTimeouts(start_s=60)) as server:
        assert ask(server, "SELECT 1") == 1


def test_a_stop_past_its_bound_is_forced_and_loses_nothing(room: Path) -> None:
    with Server(room, bounds=ServerTimeouts(stop_s=0)) as server:
        tell(server, "CREATE TABLE kept AS SELECT 7 AS n")
    with Server(room) as server:
        assert ask(server, "SELECT n FROM kept") == 7


def test_a_server_can_be_stopped_twice_and_started_again(room: Path) -> None:
    server = Server(room)
    server.stop()
    for _ in range(2):
        server.start()
        assert ask(server, "SELECT 1") == 1
        server.stop()
        server.stop()


def test_a_thread_that_would_take_the_server_along_is_refused(room: Path) -> None:
    refusals: list[str] = []

    def start() -> None:
        try:
            Server(room, find_binaries()).start()
        except PostgresError as error:
            refusals.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(60)
    assert refusals == ["PostgreSQL must be started from the main thread"]


def test_the_closed_door_cannot_be_opened_by_a_setting(room: Path) -> None:
    with pytest.raises(PostgresError, match="sets listen_addresses itself"):
        Server(room, settings={"listen_addresses": "*"})


def test_a_directory_that_cannot_be_made_is_one_clear_error(room: Path) -> None:
    (room / "taken").touch()
    with pytest.raises(PostgresError, match=r"cannot use .*taken/postgres"):
        Server(room / "taken").start()


def test_database_url_takes_the_place_of_the_embedded_server(room: Path) -> None:
    with database_url({"DATABASE_URL": "postgresql://elsewhere/db"}, room) as url:
        assert url == "postgresql://elsewhere/db"
    assert list(room.iterdir()) == []
    with database_url({}, room) as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
