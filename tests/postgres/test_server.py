"""The embedded server in normal operation."""

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


def ask(server: Server, query: str) -> object:
    with psycopg.connect(server.url()) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def execute(server: Server, statement: str) -> None:
    with psycopg.connect(server.url()) as connection:
        connection.execute(statement)


@EVERY_POSTGRES
def test_stored_rows_survive_a_restart(directory: Path, binaries: Binaries) -> None:
    with Server(directory, binaries) as server:
        execute(server, "CREATE TABLE numbers AS SELECT 7 AS n")
    with Server(directory) as server:
        assert ask(server, "SELECT n FROM numbers") == 7
        assert ask(server, "SHOW server_version_num") == str(
            binaries.version[0] * 10000 + binaries.version[1]
        )


@EVERY_POSTGRES
def test_the_cluster_is_durable_and_closed_to_the_network(
    directory: Path, binaries: Binaries
) -> None:
    with Server(directory, binaries, {"max_connections": "17"}) as server:
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
        assert (directory / "postgres" / "cluster").stat().st_mode & 0o077 == 0
        assert "ready to accept connections" in server.log_path.read_text()
    assert not (directory / "postgres" / "cluster" / "postmaster.pid").exists()


@EVERY_POSTGRES
@pytest.mark.parametrize("name", ["with a space, 'quotes' and a comma", "long" * 50])
def test_any_path_works(directory: Path, name: str, binaries: Binaries) -> None:
    with Server(directory / name / "deeper", binaries) as server:
        assert ask(server, "SELECT 1") == 1


def test_existing_files_keep_their_owner_and_mode(directory: Path) -> None:
    existing = directory / "given"
    existing.mkdir(mode=0o750)
    (existing / "existing file").touch()
    watched = [existing, *existing.iterdir(), *existing.parents]
    before = [(path.stat().st_mode, path.stat().st_uid) for path in watched]
    users = pwd.getpwall()
    with Server(existing) as server:
        assert os.stat(f"/proc/{server.pid}").st_uid != 0
    assert [(path.stat().st_mode, path.stat().st_uid) for path in watched] == before
    assert pwd.getpwall() == users


def test_the_server_runs_as_the_owner_of_its_cluster(directory: Path) -> None:
    with Server(directory):
        pass
    cluster = directory / "postgres" / "cluster"
    owner = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
    for path in (cluster, *cluster.rglob("*")):
        os.chown(path, owner, -1)
    with Server(directory) as server:
        assert os.stat(f"/proc/{server.pid}").st_uid == owner
        assert ask(server, "SELECT 1") == 1


def test_a_second_server_on_the_same_directory_is_refused(directory: Path) -> None:
    with Server(directory) as server:
        with pytest.raises(PostgresError, match="another Tidegate runs its PostgreSQL in"):
            Server(directory).start()
        assert ask(server, "SELECT 1") == 1


def test_a_failed_start_shows_the_servers_log(directory: Path) -> None:
    server = Server(directory, settings={"shared_buffers": "plenty"})
    with pytest.raises(PostgresError, match="did not start") as caught:
        server.start()
    assert 'invalid value for parameter "shared_buffers": "plenty"' in str(caught.value)
    assert str(server.log_path) in str(caught.value)
    with Server(directory) as repaired:
        assert ask(repaired, "SELECT 1") == 1


def test_a_start_that_times_out_leaves_no_server_running(directory: Path) -> None:
    with Server(directory):
        pass
    with pytest.raises(PostgresError, match="not ready after 0 s"):
        Server(directory, timeouts=ServerTimeouts(start_s=0)).start()
    with Server(directory, timeouts=ServerTimeouts(start_s=60)) as server:
        assert ask(server, "SELECT 1") == 1


def test_a_stop_that_times_out_is_forced_and_loses_nothing(directory: Path) -> None:
    with Server(directory, timeouts=ServerTimeouts(stop_s=0)) as server:
        execute(server, "CREATE TABLE numbers AS SELECT 7 AS n")
    with Server(directory) as server:
        assert ask(server, "SELECT n FROM numbers") == 7


def test_a_server_can_be_stopped_twice_and_started_again(directory: Path) -> None:
    server = Server(directory)
    server.stop()
    for _ in range(2):
        server.start()
        assert ask(server, "SELECT 1") == 1
        server.stop()
        server.stop()


def test_a_start_outside_the_main_thread_is_refused(directory: Path) -> None:
    refusals: list[str] = []

    def start() -> None:
        try:
            Server(directory, find_binaries()).start()
        except PostgresError as error:
            refusals.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(60)
    assert refusals == ["PostgreSQL must be started from the main thread"]


def test_a_setting_cannot_open_the_server_to_the_network(directory: Path) -> None:
    with pytest.raises(PostgresError, match="sets listen_addresses itself"):
        Server(directory, settings={"listen_addresses": "*"})


def test_a_directory_that_cannot_be_created_is_a_clear_error(directory: Path) -> None:
    (directory / "taken").touch()
    with pytest.raises(PostgresError, match=r"cannot use .*taken/postgres"):
        Server(directory / "taken").start()


def test_database_url_replaces_the_embedded_server(directory: Path) -> None:
    with database_url({"DATABASE_URL": "postgresql://elsewhere/db"}, directory) as url:
        assert url == "postgresql://elsewhere/db"
    assert list(directory.iterdir()) == []
    with database_url({}, directory) as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
