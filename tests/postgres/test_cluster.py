"""The tests' own server: one for a run, databases cloned from a template."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests import cluster


def test_databases_are_cloned_side_by_side_and_dropped_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(cluster.ADDRESS, "the run's own server")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    mine = cluster.start_cluster()
    try:
        assert cluster.cluster_url() == mine.url
        template = cluster.create_database(mine.url, "template")
        with psycopg.connect(template) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        with ThreadPoolExecutor(2) as workers:
            clones = workers.map(
                lambda name: cluster.create_database(mine.url, name, "template"), "abcd"
            )
        for name, clone in zip("abcd", clones, strict=True):
            with psycopg.connect(clone) as connection:
                assert connection.execute("SELECT n FROM kept").fetchone() == (7,)
            connected = psycopg.connect(clone)
            cluster.drop_database(mine.url, name)
            with pytest.raises(psycopg.OperationalError):
                connected.execute("SELECT 1")
    finally:
        cluster.stop_cluster(mine)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(mine.url)


def test_database_url_names_the_server_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cluster.ADDRESS, "the run's own server")
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere/db")
    elsewhere = cluster.start_cluster()
    assert cluster.cluster_url() == "postgresql://elsewhere/db"
    cluster.stop_cluster(elsewhere)
