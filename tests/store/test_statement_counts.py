"""A batch of any size costs the same number of statements and commits."""

import asyncio
from collections.abc import Callable

from tests.store.scenario import (
    EngineSetup,
    Remote,
    deposit,
    from_remote,
    refusing,
    rows,
    run_to_end,
    running,
    to_remote,
    to_savings,
)
from tests.store.statement_log import SYNC, SentStatement, recording_pipeline
from tidegate.core.request import Request

SIZES = (1, 10, 300)
RoundTrip = list[str]  # The statements that are sent before the next wait for replies.

# Keys are not looked up first: the store's clock was read recently, and no request is repeated.
RESERVE = ["BEGIN", "begin", "reserve", "ledger lock", "ledger look"]
CREATION: list[RoundTrip] = [RESERVE]
CREATE = ["ledger apply", "create", "COMMIT"]
LOCK = ["BEGIN", "begin", "lock"]
SETTLE = [*LOCK, "ledger lock", "ledger look"]

Make = Callable[[int, int], Request]


async def _batches(
    setup: EngineSetup, sent: list[SentStatement], make: Make
) -> list[list[RoundTrip]]:
    batches = []
    async with running(setup) as engine:
        owners = range(1, max(SIZES) + 1)
        await asyncio.gather(*[run_to_end(engine, deposit(owner, 100_000)) for owner in owners])
        await asyncio.gather(*[run_to_end(engine, to_savings(owner, 1)) for owner in owners])
        for size in SIZES:
            sent.clear()
            requests = [make(owner, 1000 + size) for owner in range(1, size + 1)]
            await asyncio.gather(*[run_to_end(engine, request) for request in requests])
            # A waiting caller sometimes looks whether another process has ended its transfer.
            round_trips = round_trips_of(sent)
            batches.append([round_trip for round_trip in round_trips if round_trip != ["ended"]])
    return batches


def round_trips_of(sent: list[SentStatement]) -> list[RoundTrip]:
    round_trips: list[RoundTrip] = [[]]
    for statement in sent:
        if statement.name == SYNC:
            round_trips.append([])
        else:
            round_trips[-1].append(statement.name)
    assert not round_trips.pop(), "the replies of the last statements were not read"
    return round_trips


def statements_of(database: str, make: Make, remote: Remote | None = None) -> list[RoundTrip]:
    """The statements that bring a batch to its end. They must be the same for every size."""
    pipe, sent = recording_pipeline()
    # An hour between two scans, so that only the statements of the batch are sent.
    setup = EngineSetup(database, remote or Remote(), scan_s=3600, pipe=pipe)
    first, *others = asyncio.run(_batches(setup, sent, make))
    assert all(other == first for other in others)
    return first


def statement_count(round_trips: list[RoundTrip]) -> int:
    return sum(map(len, round_trips))


def transactions(database: str, state: str) -> int:
    """The number of transactions that wrote the history of each batch that ended in this state."""
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


def test_a_batch_of_deposits_is_ten_statements_in_three_round_trips(database: str) -> None:
    statements = statements_of(database, deposit)
    assert statements == [*CREATION, ["ledger apply", "ledger look"], CREATE]
    assert statement_count(statements) == 10
    assert transactions(database, "COMPLETED") == 1


def test_first_deposits_open_their_accounts_with_six_more(database: str) -> None:
    statements = statements_of(
        database, lambda owner, amount: deposit(1000 * amount + owner, amount)
    )
    opening = ["ledger open", "ledger lock", "ledger look"]
    assert statements == [*CREATION, opening, ["ledger apply", "ledger look"], opening, CREATE]
    assert statement_count(statements) == 16
    assert transactions(database, "COMPLETED") == 1


def test_between_two_books_of_the_ledger_is_ten_statements_in_three_round_trips(
    database: str,
) -> None:
    statements = statements_of(database, to_savings)
    assert statements == [*CREATION, ["ledger apply", "ledger look"], CREATE]
    assert statement_count(statements) == 10
    assert transactions(database, "COMMITTED") == 1


def test_to_an_outside_system_is_fourteen_statements_in_five_round_trips(database: str) -> None:
    statements = statements_of(database, to_remote)
    assert statements == [*CREATION, CREATE, ["askable"], LOCK, ["record", "COMMIT"]]
    assert statement_count(statements) == 14
    assert transactions(database, "COMMITTED") == 2


def test_from_an_outside_system_is_fourteen_statements_in_five_round_trips(database: str) -> None:
    statements = statements_of(database, from_remote)
    creation = [["BEGIN", "begin", "reserve"], ["create", "COMMIT"]]
    assert statements == [*creation, ["askable"], SETTLE, ["ledger apply", "record", "COMMIT"]]
    assert statement_count(statements) == 14
    # The creation writes no history row: no system has been asked yet.
    assert transactions(database, "COMMITTED") == 1


def test_a_refused_transfer_is_refunded_in_the_same_two_commits(database: str) -> None:
    statements = statements_of(database, to_remote, Remote(refusing))
    refund = [SETTLE, ["ledger look_undone"], ["ledger apply", "record", "COMMIT"]]
    assert statements == [*CREATION, CREATE, ["askable"], *refund]
    assert statement_count(statements) == 18
    assert transactions(database, "ROLLED_BACK") == 2


def test_repeated_requests_are_looked_up_and_not_committed(database: str) -> None:
    """The first repeat finds its key taken. For a moment after that, keys are looked up first."""
    pipe, sent = recording_pipeline()
    setup = EngineSetup(database, scan_s=3600, pipe=pipe)

    async def send_twice() -> None:
        async with running(setup) as engine:
            for size in SIZES:
                requests = [deposit(n, size, f"{size} {n}") for n in range(1, size + 1)]
                first = await asyncio.gather(*[run_to_end(engine, request) for request in requests])
                sent.clear()
                again = await asyncio.gather(*[run_to_end(engine, request) for request in requests])
                assert [t.id for t in again] == [t.id for t in first]
                tried = [] if size > SIZES[0] else [RESERVE, ["ROLLBACK"]]
                assert round_trips_of(sent) == [*tried, ["look"]]

    asyncio.run(send_twice())
