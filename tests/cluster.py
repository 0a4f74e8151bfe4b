"""One PostgreSQL for a whole test run, and databases cloned from a template."""

import os
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tidegate.postgres import Server, private_directory

# The process that starts the pytest workers also starts the server, and sets this variable to its
# address. The workers inherit the environment.
ADDRESS = "TIDEGATE_TEST_DATABASE"

# Nothing here makes the server less durable than in production, or the tests would prove less.
SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "64MB",
    # A run creates hundreds of short-lived databases. The planner's statistics of one must not
    # depend on how long the run has taken.
    "autovacuum": "off",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """The address of the tests' server, and what to close at the end."""

    url: str
    resources: ExitStack


def start_cluster() -> Cluster:
    """Start the tests' server from the main thread, unless `DATABASE_URL` names one."""
    with ExitStack() as resources:
        url = os.environ.get("DATABASE_URL")
        if not url:
            directory = resources.enter_context(private_directory())
            url = resources.enter_context(Server(directory, settings=SETTINGS)).url()
        os.environ[ADDRESS] = url
        return Cluster(url, resources.pop_all())


def stop_cluster(cluster: Cluster) -> None:
    """Stop the server and remove its files."""
    os.environ.pop(ADDRESS, None)
    cluster.resources.close()


def cluster_url() -> str:
    """The address of the run's server, in the process that started it and in every worker."""
    return os.environ[ADDRESS]


def create_database(url: str, name: str, template: str | None = None) -> str:
    """Create the database `name`, cloned from `template` if given, and return its address."""
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
        sql.Identifier(name), sql.Identifier(template or "template1")
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)
    return make_conninfo(url, dbname=name)


def leave_database(url: str, name: str) -> None:
    """Disconnect all clients of a database. It is dropped only on a server that is not ours.

    Dropping a database is a checkpoint of all of them, which took longer than most tests. Our own
    server is removed as a whole.
    """
    if os.environ.get("DATABASE_URL"):
        drop_database(url, name)
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )


def drop_database(url: str, name: str) -> None:
    """Drop the database `name`, even if clients are connected to it."""
    statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)
