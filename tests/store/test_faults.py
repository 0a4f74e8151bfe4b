"""Faults of the database: retryable faults are retried, others are reported at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.conftest import SCHEMA
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
    to_savings,
)
from tidegate.core.answers import Alarm, Answer, Rejected
from tidegate.core.kind import Transfer
from tidegate.core.ports import KeyTaken, StoreFault, StoreUnavailable
from tidegate.core.request import Request
from tidegate.core.transfer import Question
from tidegate.engine.engine import Engine
from tidegate.store import transaction
from tidegate.store.faults import as_fault
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.store.transaction import PostgresTransaction

Session = psycopg.AsyncConnection[Any]
WAITING = (
    "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    " AND application_name = 'tidegate' AND datname = current_database()"
)
HOLD = "SELECT FROM ledger_accounts WHERE owner = 1 AND book = %s FOR UPDATE"
EXPECTED = {"OUTSIDE": -100, "FUNDING": 70, "SAVINGS": 30}


def configure(database: str, name: str, value: str) -> None:
    """Change a setting for all sessions that start later."""
    with superuser(database) as connection:
        statement = sql.SQL("ALTER DATABASE {} SET {} TO {}").format(
            sql.Identifier(connection.info.dbname), sql.Identifier(name), sql.Literal(value)
        )
        connection.execute(statement)


@asynccontextmanager
async def rival(database: str) -> AsyncIterator[Session]:
    """Another session with its own transaction, which is never the victim of a deadlock."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        await connection.execute(f"SET search_path TO {SCHEMA}, tidegate")
        await connection.execute("SET deadlock_timeout TO '30s'")
        await connection.execute("BEGIN")
        yield connection


async def waiting(session: Session) -> int:
    """The process id of the engine's session, once it waits for a lock."""
    for _ in range(500):
        # Inside a transaction the server repeats its first snapshot, unless it is cleared.
        await session.execute("SELECT pg_stat_clear_snapshot()")
        if found := await (await session.execute(WAITING)).fetchone():
            return int(found[0])
        await asyncio.sleep(0.01)
    raise AssertionError("the engine does not wait for a lock")


async def wait_for_faults(faults: list[str | None], count: int) -> None:
    for _ in range(1000):
        if len(faults) >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the store met no fault")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The SQLSTATE of every fault of the store; None for a lost connection."""
    codes: list[str | None] = []
    original = as_fault

    def recording(fault: psycopg.Error) -> StoreFault:
        codes.append(fault.sqlstate)
        return original(fault)

    monkeypatch.setattr(transaction, "as_fault", recording)
    return codes


async def _contested(
    setup: EngineSetup, act: Callable[[Session, asyncio.Task[Transfer]], Awaitable[None]]
) -> Transfer:
    """Transfer FUNDING → SAVINGS while a rival session holds SAVINGS and then acts."""
    async with running(setup) as engine, rival(setup.database) as session:
        await run_to_end(engine, deposit(1, 100))
        await run_to_end(engine, to_savings(1, 10))
        await session.execute(HOLD, ("SAVINGS",))
        transfer = asyncio.create_task(run_to_end(engine, to_savings(1, 20)))
        await act(session, transfer)
        return await transfer


def contested(
    setup: EngineSetup, act: Callable[[Session, asyncio.Task[Transfer]], Awaitable[None]]
) -> None:
    """Check that the money has moved exactly once, whatever the rival session did."""
    assert asyncio.run(_contested(setup, act)).state == "COMMITTED"
    assert balances(setup.database, 1) == EXPECTED
    assert rows(setup.database, "SELECT count(*) FROM history") == [(6,)]
    assert rows(setup.database, "SELECT count(*) FROM ledger_operations") == [(6,)]


def test_a_deadlock_is_tried_again(database: str, faults: list[str | None]) -> None:
    configure(database, "deadlock_timeout", "300ms")

    async def lock_in_the_opposite_order(session: Session, _: asyncio.Task[Transfer]) -> None:
        await waiting(session)
        await session.execute(HOLD, ("FUNDING",))
        await session.execute("ROLLBACK")

    contested(EngineSetup(database), lock_in_the_opposite_order)
    assert faults == ["40P01"]


def test_a_serialization_failure_is_tried_again(database: str, faults: list[str | None]) -> None:
    configure(database, "default_transaction_isolation", "repeatable read")

    async def change_what_is_waited_for(session: Session, _: asyncio.Task[Transfer]) -> None:
        await waiting(session)
        await session.execute(
            "UPDATE ledger_accounts SET version = version + 1 WHERE owner = 1 AND book = 'SAVINGS'"
        )
        await session.execute("COMMIT")

    contested(EngineSetup(database), change_what_is_waited_for)
    assert faults == ["40001"]


def test_a_lock_that_is_held_for_long_is_tried_again(
    database: str, faults: list[str | None]
) -> None:
    async def hold(session: Session, transfer: asyncio.Task[Transfer]) -> None:
        await wait_for_faults(faults, 2)
        assert not transfer.done()
        await session.execute("ROLLBACK")

    contested(EngineSetup(database, bounds=StoreLimits(lock_s=0.2)), hold)
    assert set(faults) == {"55P03"}


def test_a_statement_that_takes_too_long_is_tried_again(
    database: str, faults: list[str | None]
) -> None:
    async def hold(session: Session, _: asyncio.Task[Transfer]) -> None:
        await wait_for_faults(faults, 1)
        await session.execute("ROLLBACK")

    contested(EngineSetup(database, bounds=StoreLimits(statement_s=0.3)), hold)
    assert set(faults) == {"57014"}


def test_a_session_ended_in_the_middle_is_tried_again(
    database: str, faults: list[str | None]
) -> None:
    async def terminate(session: Session, _: asyncio.Task[Transfer]) -> None:
        for _time in range(2):
            await session.execute("SELECT pg_terminate_backend(%s)", (await waiting(session),))
            await asyncio.sleep(0.1)
        await session.execute("ROLLBACK")

    contested(EngineSetup(database), terminate)
    assert set(faults) <= {"57P01", None}
    assert len(faults) >= 2


def test_idle_sessions_that_are_ended_lose_and_repeat_nothing(database: str) -> None:
    """A caller may get a retryable fault, and then tries again with the same key."""

    async def tried(engine: Engine[PostgresTransaction], request: Request) -> None:
        for _ in range(StoreLimits().connections + 1):
            with contextlib.suppress(StoreUnavailable):
                await run_to_end(engine, request)
                return
        raise AssertionError("the pool does not recover")

    async def run() -> None:
        async with running(EngineSetup(database)) as engine:
            for amount in (10, 20, 30):
                await tried(engine, deposit(1, amount, cid=f"deposit {amount}"))
                with superuser(database) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE application_name = 'tidegate' AND datname = current_database()"
                    )

    asyncio.run(run())
    assert balances(database, 1) == {"OUTSIDE": -60, "FUNDING": 60}


def test_an_answer_is_recorded_after_a_deadlock(database: str, faults: list[str | None]) -> None:
    """The deadlock happens while an outside answer is recorded. It must not be asked again."""
    configure(database, "deadlock_timeout", "300ms")
    remote = Remote()

    async def run() -> Transfer:
        async with running(EngineSetup(database, remote)) as engine, rival(database) as session:
            await run_to_end(engine, deposit(1, 100))
            await session.execute(HOLD, ("FUNDING",))
            transfer = asyncio.create_task(run_to_end(engine, from_remote(1, 5)))
            await waiting(session)
            # The engine has locked the transfer, so this completes the deadlock.
            await session.execute(
                "SELECT FROM transfers WHERE flow = 'internal_transfer' FOR UPDATE"
            )
            await session.execute("ROLLBACK")
            return await transfer

    assert asyncio.run(run()).state == "COMMITTED"
    assert balances(database, 1) == {"OUTSIDE": -100, "FUNDING": 105}
    assert faults == ["40P01"]
    assert [(q.version, str(q.verb)) for q in remote.asked] == [(0, "debit")]


RETRIED = [
    *("40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "57P05"),
    *("25006", "53100", "53200", "53300", "53400", "08000", "08003", "08006"),
]
FINAL = [
    *("22012", "22P05", "23502", "23514", "42501", "42P01", "42601"),
    *("0A000", "40002", "57000", "P0001", "XX000"),
]


async def _raised(database: str, codes: list[str]) -> dict[str, StoreFault]:
    """The fault of the store for an error that the server raises with each code."""
    raised = {}
    async with PostgresStore(database, SCHEMA) as store:
        for code in codes:
            statement = f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END $$"
            with pytest.raises(StoreFault, match=code) as caught:
                await store.run(statement, {})
            raised[code] = caught.value
    return raised


def test_codes_that_prove_that_nothing_happened_are_retryable(database: str) -> None:
    for fault in asyncio.run(_raised(database, RETRIED)).values():
        assert isinstance(fault, StoreUnavailable)
        assert fault.retryable


def test_every_other_code_is_a_fault_of_the_statement(database: str) -> None:
    for fault in asyncio.run(_raised(database, FINAL)).values():
        assert type(fault) is StoreFault
        assert not fault.retryable


def test_a_unique_violation_is_a_taken_key(database: str) -> None:
    [fault] = asyncio.run(_raised(database, ["23505"])).values()
    assert type(fault) is KeyTaken
    assert not fault.retryable


def test_a_transaction_that_was_idle_too_long_is_retryable(
    database: str, faults: list[str | None]
) -> None:
    """The server ends the session of a worker that stops, and rolls its transaction back."""

    async def stay_idle() -> None:
        bounds = StoreLimits(idle_in_transaction_s=0.1)
        async with PostgresStore(database, SCHEMA, bounds) as store, store.transaction() as tx:
            await tx.fetch("SELECT 1", {})
            await asyncio.sleep(0.5)
            await tx.fetch("SELECT 1", {})

    with pytest.raises(StoreFault) as caught:
        asyncio.run(stay_idle())
    assert caught.value.retryable, faults


def test_an_unknown_fault_of_the_server_is_not_retryable(database: str) -> None:
    async def divide() -> None:
        async with PostgresStore(database, SCHEMA) as store:
            await store.run("SELECT 1 / 0", {})

    with pytest.raises(StoreFault, match="22012") as caught:
        asyncio.run(divide())
    assert not caught.value.retryable


def test_a_creation_that_the_database_refuses_does_not_affect_the_others(database: str) -> None:
    """One transfer of a batch violates a constraint: its caller gets the error, and the others
    are created.
    """
    with superuser(database) as connection:
        connection.execute("ALTER TABLE transfers ADD CHECK (amount <> 13)")
    setup = EngineSetup(database)

    async def run() -> list[object]:
        async with running(setup) as engine:
            requests = [deposit(owner, 13 if owner == 5 else 10) for owner in range(1, 9)]
            calls = [engine.transfer(request, 5.0) for request in requests]
            return list(await asyncio.gather(*calls, return_exceptions=True))

    results = asyncio.run(run())
    [refused] = [result for result in results if isinstance(result, Exception)]
    assert isinstance(refused, StoreFault)
    assert "23514" in str(refused)
    assert rows(database, "SELECT owner FROM transfers ORDER BY owner") == [
        (owner,) for owner in range(1, 9) if owner != 5
    ]
    assert rows(database, "SELECT FROM ledger_operations WHERE owner = 5") == []
    assert [alert.alarm for alert in setup.alerts] == [Alarm.PAGE]


def test_a_value_that_cannot_be_sent_is_not_retryable(database: str) -> None:
    async def send() -> None:
        async with PostgresStore(database, SCHEMA) as store:
            await store.run("SELECT %(text)s::text", {"text": "no column holds a \x00"})

    with pytest.raises(StoreFault) as caught:
        asyncio.run(send())
    assert not caught.value.retryable


def test_an_answer_that_cannot_be_stored_does_not_affect_the_others(database: str) -> None:
    """A refusal with a zero byte in its reason is still a refusal."""

    def mixed(question: Question) -> Answer:
        return Rejected("no\x00" if question.amount == 13 else "no")

    async def run() -> None:
        async with running(EngineSetup(database, Remote(mixed))) as engine:
            requests = [from_remote(owner, 13 if owner == 3 else 10) for owner in range(1, 6)]
            await asyncio.gather(*[engine.transfer(request, 3.0) for request in requests])

    asyncio.run(run())
    ended = rows(database, "SELECT owner FROM transfers WHERE state = 'FAILED' ORDER BY owner")
    assert ended == [(1,), (2,), (3,), (4,), (5,)]
