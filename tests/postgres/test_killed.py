"""The embedded server when it or its parent is killed."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.postgres.test_server import EVERY_POSTGRES, ask, execute
from tidegate.postgres import Binaries, PostgresError, Server, find_binaries
from tidegate.postgres.child import choose_account, spawn
from tidegate.postgres.directories import PREFIX, private_directory, runnable

pytestmark = pytest.mark.slow

PARENT = Path(__file__).with_name("parent.py")
TIMEOUT_S = 30.0


def parent(directory: Path, binaries: Binaries, uid: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PARENT), str(directory), str(binaries.directory), str(uid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    assert select.select([child.stdout], [], [], TIMEOUT_S)[0], "the parent printed nothing"
    return child.stdout.readline()


def kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate(timeout=TIMEOUT_S)


def ended(descriptor: int) -> bool:
    try:
        return bool(select.select([descriptor], [], [], TIMEOUT_S)[0])
    finally:
        os.close(descriptor)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.001)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@EVERY_POSTGRES
def test_the_server_dies_with_its_parent_and_keeps_what_it_stored(
    directory: Path, binaries: Binaries
) -> None:
    child = parent(directory, binaries, os.geteuid())
    server = os.pidfd_open(int(read_line(child)))
    kill(child)
    assert ended(server), "the server outlived its parent"
    assert not (directory / "postgres" / "cluster" / "postmaster.pid").exists()
    with Server(directory) as again:
        assert ask(again, "SELECT count(*) FROM numbers") == 0
        assert "was shut down at" in again.log_path.read_text()


@pytest.mark.slow
def test_a_restart_waits_for_the_server_of_a_killed_parent(directory: Path) -> None:
    for _ in range(3):
        child = parent(directory / "a", find_binaries(), os.geteuid())
        read_line(child)
        kill(child)
        with Server(directory / "a") as server:
            execute(server, "DROP TABLE numbers")


@EVERY_POSTGRES
def test_a_killed_server_recovers(directory: Path, binaries: Binaries) -> None:
    with Server(directory, binaries) as server:
        execute(server, "CREATE TABLE numbers AS SELECT 7 AS n")
        os.kill(server.pid, signal.SIGKILL)
    assert (directory / "postgres" / "cluster" / "postmaster.pid").exists()
    with Server(directory) as server:
        assert ask(server, "SELECT n FROM numbers") == 7
        assert "automatic recovery in progress" in server.log_path.read_text()


def test_a_stale_lock_file_with_the_pid_of_another_program_is_ignored(directory: Path) -> None:
    with Server(directory) as server:
        os.kill(server.pid, signal.SIGKILL)
    cluster = directory / "postgres" / "cluster"
    other = spawn(["sleep", "600"], choose_account(cluster))
    try:
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            lines = (cluster / name).read_text().splitlines()
            (cluster / name).write_text("\n".join([str(other.pid), *lines[1:], ""]))
        with Server(directory) as server:
            assert ask(server, "SELECT 1") == 1
    finally:
        other.kill()
        other.wait()


def test_a_server_started_by_another_program_is_not_touched(directory: Path) -> None:
    with Server(directory):
        pass
    cluster = directory / "postgres" / "cluster"
    account = choose_account(cluster)
    descriptor = os.open(cluster, os.O_RDONLY | os.O_DIRECTORY)
    settings = ["--listen_addresses=", "--unix_socket_directories=."]
    with runnable(find_binaries(), account) as reachable:
        command = [str(reachable.postgres), "-D", f"/proc/self/fd/{descriptor}", *settings]
        other = spawn(command, account, inherited=[descriptor])
        try:
            wait_for((cluster / ".s.PGSQL.5432").exists)
            with pytest.raises(PostgresError, match=rf"\(pid {other.pid}\) already runs on"):
                Server(directory).start()
            assert other.poll() is None
        finally:
            os.close(descriptor)
            other.send_signal(signal.SIGINT)
            other.wait(TIMEOUT_S)


@pytest.mark.slow
def test_a_long_recovery_is_not_a_failure(directory: Path) -> None:
    with Server(directory) as server:
        execute(server, "CREATE TABLE numbers AS SELECT 7 AS n")
        os.kill(server.pid, signal.SIGKILL)
    cluster = directory / "postgres" / "cluster"
    (cluster / "recovery.signal").touch()
    os.chown(cluster / "recovery.signal", cluster.stat().st_uid, -1)
    slow = {"restore_command": "sleep 0.5; false", "hot_standby": "off"}
    began = time.monotonic()
    with Server(directory, settings=slow) as server:
        assert ask(server, "SELECT n FROM numbers") == 7
    assert time.monotonic() - began > 1


def test_a_first_start_that_was_killed_is_repeated(directory: Path) -> None:
    child = parent(directory, find_binaries(), os.geteuid())
    home = directory / "postgres"
    wait_for(lambda: any(home.glob("initdb-*/global/pg_control")))
    (initdb,) = children_of(child.pid)
    kill(child)
    os.kill(initdb, signal.SIGKILL)
    assert not (home / "cluster").exists()
    assert list(home.glob("initdb-*"))
    with Server(directory) as server:
        assert ask(server, "SELECT 1") == 1
    assert not list(home.glob("initdb-*"))


def test_private_directories_of_killed_programs_are_removed_and_used_ones_are_not(
    directory: Path,
) -> None:
    dead = directory / f"{PREFIX}dead"
    dead.mkdir()
    (dead / "file").touch()
    with private_directory(directory) as first, private_directory(directory) as second:
        assert first.is_dir()
        assert second.is_dir()
        assert not dead.exists()
    assert list(directory.iterdir()) == []


def test_a_backend_that_is_killed_does_not_end_the_server(directory: Path) -> None:
    with Server(directory) as server:
        with psycopg.connect(server.url()) as connection:
            row = connection.execute("SELECT pg_backend_pid()").fetchone()
            assert row is not None
            os.kill(row[0], signal.SIGKILL)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")

        def answers() -> bool:
            try:
                return ask(server, "SELECT 1") == 1
            except psycopg.OperationalError:
                return False

        wait_for(answers)
