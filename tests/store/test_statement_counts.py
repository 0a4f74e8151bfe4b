"""Counting: a batch costs the same statements and commits, whatever its size."""

import asyncio
from collections.abc import Callable

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
from tests.store.statement_log import SYNC, Heard, listening
from tidegate.core.request import Request

SIZES = (1, 10, 300)
Flight = list[str]  # What travels together, and is waited for once.

# Keys are not looked up first: the store's clock was read lately, and nobody repeats a request.
RESERVED = ["BEGIN", "begin", "reserve", "ledger lock", "ledger look"]
BIRTH: list[Flight] = [RESERVED]
BROUGHT = ["ledger apply", "create", "COMMIT"]
ANSWERED = ["BEGIN", "begin", "lock"]
SETTLED = [*ANSWERED, "ledger lock", "ledger look"]

Make = Callable[[int, int], Request]


async def _said(setting: Setting, heard: list[Heard], make: Make) -> list[list[Flight]]:
    said = []
    async with running(setting) as engine:
        owners = range(1, max(SIZES) + 1)
        await asyncio.gather(*[moved(engine, deposit(owner, 100_000)) for owner in owners])
        await asyncio.gather(*[moved(engine, to_savings(owner, 1)) for owner in owners])
        for size in SIZES:
            heard.clear()
            requests = [make(owner, 1000 + size) for owner in range(1, size + 1)]
            await asyncio.gather(*[moved(engine, request) for request in requests])
            # Somebody who waits looks now and then, for what another process may have ended.
            flights = flown(heard)
            said.append([flight for flight in flights if flight != ["ended"]])
    return said


def flown(heard: list[Heard]) -> list[Flight]:
    flights: list[Flight] = [[]]
    for each in heard:
        if each.name == SYNC:
            flights.append([])
        else:
            flights[-1].append(each.name)
    assert not flights.pop(), "something was sent and never waited for"
    return flights


def said(database: str, make: Make, remote: Remote | None = None) -> list[Flight]:
    """What was said to PostgreSQL to bring a batch to its end: the same for every size."""
    pipe, heard = listening()
    # An hour between two scans: only what the batch needs is heard.
    setting = Setting(database, remote or Remote(), scan_s=3600, pipe=pipe)
    one, *others = asyncio.run(_said(setting, heard, make))
    assert all(other == one for other in others)
    return one


def length(flights: list[Flight]) -> int:
    return sum(map(len, flights))


def transactions(database: str, state: str) -> int:
    """How many transactions wrote the history of each batch that ended so."""
    found = rows(
        database,
        "SELECT t.amount - 1000, count(DISTINCT t.id), count(DISTINCT h.xmin::text)"
        "  FROM transfers AS t JOIN history AS h ON h.transfer_id = t.id"
        " WHERE t.state = %s AND t.amount BETWEEN 1001 AND 2000 GROUP BY 1 ORDER BY 1",
        state,
    )
    assert [(size, count) for size, count, _ in found] == [(size, size) for size in SIZES]
    [count] = {count for _, _, count in found}
    assert isinstance(count, int)
    return count


def test_a_batch_of_deposits_is_ten_statements_in_three_flights(database: str) -> None:
    told = said(database, deposit)
    assert told == [*BIRTH, ["ledger apply", "ledger look"], BROUGHT]
    assert length(told) == 10
    assert transactions(database, "COMPLETED") == 1


def test_first_deposits_open_their_accounts_in_six_more(database: str) -> None:
    told = said(database, lambda owner, amount: deposit(1000 * amount + owner, amount))
    opening = ["ledger open", "ledger lock", "ledger look"]
    assert told == [*BIRTH, opening, ["ledger apply", "ledger look"], opening, BROUGHT]
    assert length(told) == 16
    assert transactions(database, "COMPLETED") == 1


def test_between_two_books_of_the_ledger_is_ten_statements_in_three_flights(
    database: str,
) -> None:
    told = said(database, to_savings)
    assert told == [*BIRTH, ["ledger apply", "ledger look"], BROUGHT]
    assert length(told) == 10
    assert transactions(database, "COMMITTED") == 1


def test_to_a_system_outside_is_fourteen_statements_in_five_flights(database: str) -> None:
    told = said(database, to_remote)
    assert told == [*BIRTH, BROUGHT, ["askable"], ANSWERED, ["record", "COMMIT"]]
    assert length(told) == 14
    assert transactions(database, "COMMITTED") == 2


def test_from_a_system_outside_is_fourteen_statements_in_five_flights(database: str) -> None:
    told = said(database, from_remote)
    birth = [["BEGIN", "begin", "reserve"], ["create", "COMMIT"]]
    assert told == [*birth, ["askable"], SETTLED, ["ledger apply", "record", "COMMIT"]]
    assert length(told) == 14
    # The birth writes no answer into the history: nobody has been asked yet.
    assert transactions(database, "COMMITTED") == 1


def test_a_refused_transfer_comes_home_in_the_same_two_commits(database: str) -> None:
    told = said(database, to_remote, Remote(refusing))
    refund = [SETTLED, ["ledger look_undone"], ["ledger apply", "record", "COMMIT"]]
    assert told == [*BIRTH, BROUGHT, ["askable"], *refund]
    assert length(told) == 18
    assert transactions(database, "ROLLED_BACK") == 2


def test_the_same_requests_again_are_looked_up_and_not_committed(database: str) -> None:
    """The first repeat finds its key taken. For a moment after it keys are looked up first."""
    pipe, heard = listening()
    setting = Setting(database, scan_s=3600, pipe=pipe)

    async def twice() -> None:
        async with running(setting) as engine:
            for size in SIZES:
                requests = [deposit(n, size, f"{size} {n}") for n in range(1, size + 1)]
                first = await asyncio.gather(*[moved(engine, request) for request in requests])
                heard.clear()
                again = await asyncio.gather(*[moved(engine, request) for request in requests])
                assert [t.id for t in again] == [t.id for t in first]
                tried = [] if size > SIZES[0] else [RESERVED, ["ROLLBACK"]]
                assert flown(heard) == [*tried, ["look"]]

    asyncio.run(twice())
