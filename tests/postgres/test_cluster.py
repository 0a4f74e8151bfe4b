"""The server of the test run: one per run, with databases cloned from a template."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests import cluster


def test_databases_are_cloned_concurrently_and_dropped_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(cluster.ADDRESS, "unset")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    own = cluster.start_cluster()
    try:
        assert cluster.cluster_url() == own.url
        template = cluster.create_database(own.url, "template")
        with psycopg.connect(template) as connection:
            connection.execute("CREATE TABLE numbers AS SELECT 7 AS n")
        with ThreadPoolExecutor(2) as workers:
            clones = workers.map(
                lambda name: cluster.create_database(own.url, name, "template"), "abcd"
            )
        for name, clone in zip("abcd", clones, strict=True):
            with psycopg.connect(clone) as connection:
                assert connection.execute("SELECT n FROM numbers").fetchone() == (7,)
            connected = psycopg.connect(clone)
            cluster.drop_database(own.url, name)
            with pytest.raises(psycopg.OperationalError):
                connected.execute("SELECT 1")
    finally:
        cluster.stop_cluster(own)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(own.url)


def test_database_url_names_the_server_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cluster.ADDRESS, "unset")
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere/db")
    elsewhere = cluster.start_cluster()
    assert cluster.cluster_url() == "postgresql://elsewhere/db"
    cluster.stop_cluster(elsewhere)
