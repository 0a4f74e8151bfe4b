"""Runs the migrations and the engine on every PostgreSQL version of this machine."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import psycopg
import pytest
from ulid import ULID

from tests.cluster import create_database
from tests.conftest import SCHEMA
from tests.store.chain import broken_chains
from tests.store.scenario import (
    EngineSetup,
    Remote,
    balances,
    deposit,
    from_remote,
    rows,
    run_to_end,
    running,
    superuser,
    to_remote,
    to_savings,
)
from tidegate.core.answers import Answer, Done, Rejected
from tidegate.core.kind import Transfer
from tidegate.core.transfer import Question
from tidegate.flows import FLOWS
from tidegate.postgres import Binaries, Server, installed_binaries, private_directory
from tidegate.store.archive import ArchiveAges, archive
from tidegate.store.migrate import migrate

pytestmark = pytest.mark.slow

INSTALLED = installed_binaries()


@pytest.fixture(scope="module", params=INSTALLED, ids=lambda b: ".".join(map(str, b.version)))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A new server, without roles and stores."""
    binaries: Binaries = request.param
    with private_directory() as directory, Server(directory, binaries) as server:
        yield server


def test_each_installed_version_is_tested_once() -> None:
    assert INSTALLED
    assert len({found.version for found in INSTALLED}) == len(INSTALLED)


def test_databases_of_one_server_are_migrated_at_once(server: Server) -> None:
    """The databases share their roles: a migration finds that another one created them first."""
    urls = [create_database(server.url(), f"apart_{n}") for n in range(4)]
    start = Barrier(len(urls))

    def run(url: str) -> list[str]:
        start.wait()
        return migrate(url, SCHEMA, FLOWS.values(), economy=True)

    with ThreadPoolExecutor(len(urls)) as workers:
        applied = list(workers.map(run, urls))
    assert all(names == applied[0] and names for names in applied)
    found = rows(
        urls[0],
        "SELECT rolname FROM pg_roles WHERE starts_with(rolname, 'tidegate') ORDER BY rolname",
    )
    roles = ("auditor", "economy", "engine", "inbox", "migrator")
    names = [f"tidegate_{role}" for role in roles]
    assert found == [(name,) for name in names]


def judge(question: Question) -> Answer:
    return Rejected("ACCOUNT_FROZEN") if question.amount == 13 else Done({"at": "outside"})


async def _ended_transfers(database: str) -> list[Transfer]:
    async with running(EngineSetup(database, Remote(judge))) as engine:
        return [
            await run_to_end(engine, request)
            for request in (
                deposit(1, 1000, "the first"),
                deposit(1, 1000, "the first"),
                to_savings(1, 100),
                to_savings(1, 5000),
                to_remote(1, 50),
                to_remote(1, 13),
                from_remote(1, 7),
            )
        ]


def test_money_moves_in_both_directions(server: Server) -> None:
    database = create_database(server.url(), "moving")
    migrate(database, SCHEMA, FLOWS.values(), economy=True)
    transfers = asyncio.run(_ended_transfers(database))
    assert [transfer.state for transfer in transfers] == [
        "COMPLETED",
        "COMPLETED",
        "COMMITTED",
        "FAILED",
        "COMMITTED",
        "ROLLED_BACK",
        "COMMITTED",
    ]
    assert balances(database, 1) == {"OUTSIDE": -1000, "FUNDING": 857, "SAVINGS": 100}
    expected = {
        str(ULID(transfer.id.bytes)): code
        for transfer, code in zip(transfers[2:], (40, -10, 40, -30, 40), strict=True)
    }
    assert dict(rows(database, "SELECT req_id, state FROM transfers_tb")) == expected
    [archived, deleted] = archive(database, SCHEMA, ArchiveAges(0, 0))
    assert (archived.transfers, deleted.cids) == (6, 6)
    assert rows(database, "SELECT count(*) FROM transfers") == [(0,)]
    assert dict(rows(database, "SELECT req_id, state FROM transfers_tb")) == expected
    with superuser(database) as connection:
        assert list(broken_chains(connection)) == []
        connection.execute("SET ROLE tidegate_engine")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM history")
