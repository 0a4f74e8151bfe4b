"""Every PostgreSQL on this machine: the same migrations, the same engine, the same end."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import psycopg
import pytest
from ulid import ULID

from tests.cluster import create_database
from tests.conftest import SCHEMA
from tests.store.chain import broken
from tests.store.scenario import (
    Remote,
    Setting,
    balances,
    deposit,
    from_remote,
    moved,
    rows,
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

FOUND = installed_binaries()


@pytest.fixture(scope="module", params=FOUND, ids=lambda found: ".".join(map(str, found.version)))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of its own, on which no role and no store was ever made."""
    binaries: Binaries = request.param
    with private_directory() as directory, Server(directory, binaries) as server:
        yield server


def test_more_than_one_postgres_is_tried() -> None:
    assert FOUND
    assert len({found.version for found in FOUND}) == len(FOUND)


def test_databases_of_one_server_are_migrated_at_once(server: Server) -> None:
    """Their roles are shared: whoever comes second finds them, or finds them being made."""
    urls = [create_database(server.url(), f"apart_{n}") for n in range(4)]
    together = Barrier(len(urls))

    def run(url: str) -> list[str]:
        together.wait()
        return migrate(url, SCHEMA, FLOWS.values())

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


async def _moved(database: str) -> list[Transfer]:
    async with running(Setting(database, Remote(judge))) as engine:
        return [
            await moved(engine, request)
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


def test_money_moves_there_and_back(server: Server) -> None:
    database = create_database(server.url(), "moving")
    migrate(database, SCHEMA, FLOWS.values())
    transfers = asyncio.run(_moved(database))
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
    [put_away, forgotten] = archive(database, SCHEMA, ArchiveAges(0, 0))
    assert (put_away.transfers, forgotten.cids) == (6, 6)
    assert rows(database, "SELECT count(*) FROM transfers") == [(0,)]
    assert dict(rows(database, "SELECT req_id, state FROM transfers_tb")) == expected
    with superuser(database) as connection:
        assert list(broken(connection)) == []
        connection.execute("SET ROLE tidegate_engine")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM history")
