"""One PostgreSQL for a whole test run, and databases cloned from a template."""

import os
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tidegate.postgres import Server, private_directory

# The process that starts the workers starts the server too, and leaves its address here for
# them: they inherit the environment.
ADDRESS = "TIDEGATE_TEST_DATABASE"

# Nothing here makes the server less durable than in use: a test that passes says something.
SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "64MB",
    # There are hundreds of databases here, each of them for a moment. What a planner knows of one
    # must not depend on how long the run has taken.
    "autovacuum": "off",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the tests' server is, and what to close at the end."""

    url: str
    held: ExitStack


def start_cluster() -> Cluster:
    """Start the tests' server, unless `DATABASE_URL` names one; from the main thread."""
    with ExitStack() as held:
        url = os.environ.get("DATABASE_URL")
        if not url:
            directory = held.enter_context(private_directory())
            url = held.enter_context(Server(directory, settings=SETTINGS)).url()
        os.environ[ADDRESS] = url
        return Cluster(url, held.pop_all())


def stop_cluster(cluster: Cluster) -> None:
    """Stop the server and remove its files."""
    os.environ.pop(ADDRESS, None)
    cluster.held.close()


def cluster_url() -> str:
    """The address of the run's server, in the process that started it and in every worker."""
    return os.environ[ADDRESS]


def create_database(url: str, name: str, template: str | None = None) -> str:
    """Make the database `name`, cloned from `template` if one is named, and return its address."""
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
        sql.Identifier(name), sql.Identifier(template or "template1")
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)
    return make_conninfo(url, dbname=name)


def leave_database(url: str, name: str) -> None:
    """Be done with a database. On our own server, which is removed as a whole, it stays.

    To drop one is a checkpoint of all of them, which took longer than most tests.
    """
    if os.environ.get("DATABASE_URL"):
        drop_database(url, name)
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )


def drop_database(url: str, name: str) -> None:
    """Remove the database `name`, whoever is still connected to it."""
    statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)
