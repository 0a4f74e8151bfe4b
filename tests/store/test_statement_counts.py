"""Counting: a batch costs the same statements and commits, whatever its size."""

import asyncio
from collections.abc import Callable

import pytest

from tests.store.listening import Heard, listening
from tests.store.scenario import (
    Remote,
    Setting,
    deposit,
    from_remote,
    moved,
    refusing,
    rows,
    running,
    to_remote,
    to_savings,
)
from tidegate.core.request import Request

SIZES = (1, 10, 300)
BIRTH = ["look", "BEGIN", "begin"]
LEDGER = ["ledger look", "ledger apply"]
OPENING = ["ledger look", "ledger open", "ledger lock", "ledger look", "ledger apply"]
ANSWERED = ["halted", "BEGIN", "begin", "lock"]


async def _said(setting: Setting, heard: list[Heard], requests: list[Request]) -> list[str]:
    """What was said to PostgreSQL to bring this one batch to its end."""
    async with running(setting) as engine:
        await asyncio.gather(*[moved(engine, deposit(n, 1000)) for n in range(1, 301)])
        await asyncio.gather(*[moved(engine, to_savings(n, 1)) for n in range(1, 301)])
        heard.clear()
        await asyncio.gather(*[moved(engine, request) for request in requests])
        # Somebody who waits looks now and then, for what another process may have ended.
        return [said.name for said in heard if said.name != "find"]


def said(database: str, make: Callable[[int], Request], size: int, remote: Remote) -> list[str]:
    connection_class, heard = listening()
    # An hour between two scans: only what this batch needs is heard.
    setting = Setting(database, remote, scan_s=3600, connection_class=connection_class)
    return asyncio.run(_said(setting, heard, [make(n) for n in range(1, size + 1)]))


def transactions(database: str, flow: str, state: str) -> int:
    """How many transactions wrote the history of the transfers that ended so."""
    [(count,)] = rows(
        database,
        "SELECT count(DISTINCT h.xmin::text) FROM history AS h JOIN transfers AS t"
        " ON t.id = h.transfer_id WHERE t.flow = %s AND t.state = %s AND t.amount = 7",
        flow,
        state,
    )
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize("size", SIZES)
def test_a_batch_of_deposits_is_ten_statements_and_one_commit(database: str, size: int) -> None:
    told = said(database, lambda n: deposit(n, 7), size, Remote())
    assert told == [*BIRTH, "ledger lock", *LEDGER, *LEDGER, "insert", "COMMIT"]
    assert len(told) == 10
    assert told.count("COMMIT") == transactions(database, "deposit", "COMPLETED") == 1


@pytest.mark.parametrize("size", SIZES)
def test_first_deposits_open_their_accounts_in_six_more(database: str, size: int) -> None:
    told = said(database, lambda n: deposit(1000 + n, 7), size, Remote())
    assert told == [*BIRTH, "ledger lock", *OPENING, *OPENING, "insert", "COMMIT"]
    assert len(told) == 16
    assert told.count("COMMIT") == transactions(database, "deposit", "COMPLETED") == 1


@pytest.mark.parametrize("size", SIZES)
def test_between_two_books_of_the_ledger_is_ten_statements_and_one_commit(
    database: str, size: int
) -> None:
    told = said(database, lambda n: to_savings(n, 7), size, Remote())
    assert told == [*BIRTH, "ledger lock", *LEDGER, *LEDGER, "insert", "COMMIT"]
    assert told.count("COMMIT") == transactions(database, "internal_transfer", "COMMITTED") == 1


@pytest.mark.parametrize("size", SIZES)
def test_to_a_system_outside_is_fourteen_statements_and_two_commits(
    database: str, size: int
) -> None:
    told = said(database, lambda n: to_remote(n, 7), size, Remote())
    birth = [*BIRTH, "ledger lock", *LEDGER, "insert", "COMMIT"]
    assert told == [*birth, *ANSWERED, "record", "COMMIT"]
    assert (len(birth), len(told)) == (8, 14)
    assert told.count("COMMIT") == transactions(database, "internal_transfer", "COMMITTED") == 2


@pytest.mark.parametrize("size", SIZES)
def test_from_a_system_outside_is_fourteen_statements_and_two_commits(
    database: str, size: int
) -> None:
    told = said(database, lambda n: from_remote(n, 7), size, Remote())
    birth = [*BIRTH, "insert", "COMMIT"]
    assert told == [*birth, *ANSWERED, "ledger lock", *LEDGER, "record", "COMMIT"]
    assert (len(birth), len(told)) == (5, 14)
    assert told.count("COMMIT") == 2
    # The birth writes no answer into the history: nobody has been asked yet.
    assert transactions(database, "internal_transfer", "COMMITTED") == 1


@pytest.mark.parametrize("size", SIZES)
def test_a_refused_transfer_comes_home_in_the_same_two_commits(database: str, size: int) -> None:
    told = said(database, lambda n: to_remote(n, 7), size, Remote(refusing))
    birth = [*BIRTH, "ledger lock", *LEDGER, "insert", "COMMIT"]
    refund = ["ledger lock", "ledger look", "ledger look_undone", "ledger apply"]
    assert told == [*birth, *ANSWERED, *refund, "record", "COMMIT"]
    assert len(told) == 18
    assert told.count("COMMIT") == transactions(database, "internal_transfer", "ROLLED_BACK") == 2


@pytest.mark.parametrize("size", SIZES)
def test_the_same_requests_again_are_one_statement_and_no_commit(database: str, size: int) -> None:
    connection_class, heard = listening()
    setting = Setting(database, scan_s=3600, connection_class=connection_class)

    async def twice() -> list[str]:
        requests = [deposit(n, 7, f"cid {n}") for n in range(1, size + 1)]
        async with running(setting) as engine:
            first = await asyncio.gather(*[moved(engine, request) for request in requests])
            heard.clear()
            again = await asyncio.gather(*[moved(engine, request) for request in requests])
            assert [t.id for t in again] == [t.id for t in first]
            return [said.name for said in heard]

    assert asyncio.run(twice()) == ["look"]
