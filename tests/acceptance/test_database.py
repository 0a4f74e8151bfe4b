"""A full, read-only or unreachable database: 503 in bounded time, an alert, then it recovers."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.acceptance.rig import Answer, Stack, User, stacked, until
from tests.cluster import cluster_url, drop_database
from tests.crash.small_disk import SmallDisk
from tidegate.engine.alerts import AlertCode

pytestmark = pytest.mark.slow
BOUND_S = 20.0
NAME = "database_unusable"


def as_owner(*statements: sql.SQL | sql.Composed) -> None:
    with psycopg.connect(cluster_url(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def name_of(database: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(database)["dbname"])


def end_sessions(database: str) -> None:
    as_owner(
        sql.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}").format(
            sql.Literal(name_of(database))
        )
    )


def ready(stack: Stack) -> Answer:
    return stack.api.call("GET", "/readyz")


def refused(answer: Answer) -> None:
    assert (answer.status, answer.code) == (503, "DATABASE_UNAVAILABLE"), answer
    assert answer.body["retryable"] is True


def assert_reported(stack: Stack, cause: str) -> None:
    """Alerts, /readyz and the metrics report it, and replies come in bounded time."""
    until(lambda: ready(stack).body.get("database") == cause)
    assert ready(stack).status == 503
    page = str(stack.api.call("GET", "/metrics").body)
    assert f'tidegate_database_unusable{{cause="{cause}"}} 1.0' in page
    until(lambda: NAME in stack.api.output())
    assert f"the database is {cause}" in stack.api.output()


def goes_on(stack: Stack, user: User, cid: str) -> None:
    """It recovers by itself, and a repeated request that failed before creates one transfer."""
    until(lambda: ready(stack).status == 200)
    until(lambda: "cleared: database check" in stack.api.output())
    assert user.move("in", "1", cid=cid).status in (200, 201)
    assert len(user.transfers()) == 1
    user.has(99, 1)


def test_a_database_that_becomes_read_only_is_reported_and_recovers(stack: Stack) -> None:
    stack.start_api()
    user = stack.user(funding=100)
    only = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on")
    again = sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only")
    here = sql.Identifier(name_of(stack.database))
    as_owner(only.format(here))
    try:
        end_sessions(stack.database)
        began_s = time.monotonic()
        answer = user.move("in", "1", cid="c")
        assert time.monotonic() - began_s < BOUND_S
        refused(answer)
        assert_reported(stack, "read-only")
    finally:
        as_owner(again.format(here))
    goes_on(stack, user, "c")


def test_an_unreachable_database_is_reported_and_recovers(stack: Stack) -> None:
    stack.start_api()
    user = stack.user(funding=100)
    here = sql.Identifier(name_of(stack.database))
    as_owner(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(here))
    try:
        end_sessions(stack.database)
        began_s = time.monotonic()
        answer = user.move("in", "1", cid="c")
        assert time.monotonic() - began_s < BOUND_S
        refused(answer)
        assert_reported(stack, "unreachable")
    finally:
        as_owner(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(here))
    goes_on(stack, user, "c")


@contextmanager
def small_tablespace() -> Iterator[SmallDisk]:
    """A tablespace on a separate disk, owned by the user that runs the server."""
    with psycopg.connect(cluster_url()) as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        owner = Path(f"/proc/{row[0]}").stat()
    directory = Path(tempfile.mkdtemp(prefix="tg-full-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=96m,mode=0700", "tidegate-full", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        assert "CI" not in os.environ, "the full disk must be tried in CI: let it mount a tmpfs"
        pytest.skip("nothing may be mounted here")
    try:
        place = directory / "space"
        place.mkdir(mode=0o700)
        for path in (directory, place):
            os.chown(path, owner.st_uid, owner.st_gid)
        as_owner(sql.SQL("CREATE TABLESPACE small LOCATION {}").format(sql.Literal(str(place))))
        yield SmallDisk(directory)
        as_owner(sql.SQL("DROP TABLESPACE small"))
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
        directory.rmdir()


def test_a_full_disk_is_reported_and_recovers_when_there_is_space(template: str) -> None:
    name = f"{template}_full"
    with small_tablespace() as disk:
        create = "CREATE DATABASE {} TEMPLATE {} TABLESPACE small"
        as_owner(sql.SQL(create).format(sql.Identifier(name), sql.Identifier(template)))
        with stacked(make_conninfo(cluster_url(), dbname=name)) as stack:
            stack.start_core()
            stack.start_api()
            user, rich = stack.user(funding=100), stack.user(funding=1_000)
            disk.fill(0)
            answer = fill_pages(rich)
            refused(answer)
            assert_reported(stack, "full")
            began_s = time.monotonic()
            refused(user.move("in", "1", cid="c"))
            assert time.monotonic() - began_s < BOUND_S
            disk.free()
            goes_on(stack, user, "c")
        drop_database(cluster_url(), name)


def fill_pages(user: User) -> Answer:
    """Make transfers until a table cannot grow any more."""
    for number in range(2_000):
        began_s = time.monotonic()
        answer = user.move("in", "0.01", cid=f"fill-{number}", wait_s=0)
        assert time.monotonic() - began_s < BOUND_S
        if answer.status not in (201, 202):
            return answer
    raise AssertionError("the disk is not full")


def test_the_alert_has_its_code() -> None:
    assert AlertCode.DATABASE_UNUSABLE == NAME
