"""The pipeline: statements are sent in batches, and replies never reach the wrong caller."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable

import psycopg
import pytest
import uvloop
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.conftest import SCHEMA
from tests.engine.proxy import Proxy
from tidegate.core.ports import StoreFault, StoreUnavailable
from tidegate.core.sql import EncodedText
from tidegate.store.pipeline import Pipeline, encode_value, text_of
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits

ONE = StoreLimits(connections=1)
SLEEP = "SELECT pg_sleep(%(seconds)s)"
NUMBER = "SELECT %(n)s::integer"
# The event loop of our programs, and the default one of programs that use Tidegate as a library.
LOOPS = (uvloop.new_event_loop, asyncio.SelectorEventLoop)


def on_one_session(
    database: str, scenario: Callable[[PostgresStore], Awaitable[None]], bounds: StoreLimits = ONE
) -> None:
    async def run_scenario() -> None:
        async with PostgresStore(database, SCHEMA, bounds) as store:
            await scenario(store)

    for factory in LOOPS:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(run_scenario())


def block(seconds: float) -> None:
    """Block the event loop, as a long computation or a stopped process does."""
    time.sleep(seconds)


def test_values_keep_their_names_and_their_order() -> None:
    text = text_of("SELECT %(b)s, %(a)s, %(b)s")
    assert (text.sql, text.names) == (b"SELECT $1, $2, $1", ("b", "a"))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), (True, b"t"), (7, b"7"), (0.5, b"0.5"), ("é", "é".encode()), (b"\1", b"\\x01")],
)
def test_every_value_is_encoded_as_postgres_reads_it(value: object, text: bytes | None) -> None:
    assert encode_value(value) == text


def test_a_text_is_never_cut_at_a_nul() -> None:
    with pytest.raises(psycopg.DataError):
        encode_value("all\0 of it")
    with pytest.raises(psycopg.DataError):
        encode_value(EncodedText(b"all\0 of it"))


def test_a_batch_larger_than_any_buffer_is_answered(database: str) -> None:
    """Client and server would wait for each other if the client did not read while it writes."""

    async def scenario(store: PostgresStore) -> None:
        async with store.session() as pipe:
            large = "x" * 3_000_000
            sent = [pipe.send("SELECT %(text)s::text", {"text": large}) for _ in range(8)]
            await pipe.sync()
            assert all(pipe.rows(reply) == [(large,)] for reply in sent)

    on_one_session(database, scenario)


def test_the_server_runs_a_statement_while_the_next_is_prepared(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        async with store.session() as pipe:
            pipe.send(NUMBER, {"n": 0})
            await pipe.sync()
            pipe.send(SLEEP, {"seconds": 1})
            pipe.dispatch()
            block(1.2)  # Simulates a client that takes this long to prepare the next statement.
            began_s = time.monotonic()
            pipe.send(NUMBER, {"n": 1})
            await pipe.sync()
            assert time.monotonic() - began_s < 0.6

    on_one_session(database, scenario)


def test_a_process_that_stands_still_between_two_statements_gives_its_locks_back(
    database: str,
) -> None:
    """Statements that were sent already hold locks, and the rest of the batch may never come."""

    async def scenario(store: PostgresStore) -> None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:

            async def locks_held() -> int:
                found = await other.execute(
                    # Migrations of other databases hold advisory locks too.
                    "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database"
                    " WHERE l.locktype = 'advisory' AND d.datname = current_database()"
                )
                [[held]] = await found.fetchall()
                return int(held)

            async def locking() -> None:
                async with store.transaction() as tx:
                    await tx.post("SELECT pg_advisory_xact_lock(%(n)s::bigint)", {"n": 77})
                    block(0.2)
                    assert await locks_held() == 1
                    block(1.3)
                    assert await locks_held() == 0

            with pytest.raises(StoreFault):
                await locking()
        assert await store.run(NUMBER, {"n": 4}) == [(4,)]

    on_one_session(database, scenario, ONE._replace(idle_in_transaction_s=1))


def test_rows_that_arrive_before_the_end_of_the_batch_are_no_disconnect(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        [(backend,)] = await store.run("SELECT pg_backend_pid()", {})
        async with store.session() as pipe:
            # More than the server buffers before the Sync at the end of the batch.
            early = pipe.send("SELECT repeat('x', 100_000)", {})
            pipe.dispatch()
            await asyncio.sleep(0.2)
            late = pipe.send(NUMBER, {"n": 3})
            await pipe.sync()
            assert pipe.rows(early) == [("x" * 100_000,)]
            assert pipe.rows(late) == [(3,)]
        assert await store.run("SELECT pg_backend_pid()", {}) == [(backend,)]

    on_one_session(database, scenario)


def test_a_session_that_dies_before_the_end_of_the_batch_is_lost(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        [(backend,)] = await store.run("SELECT pg_backend_pid()", {})
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:

            async def dying() -> None:
                async with store.session() as pipe:
                    pipe.send(NUMBER, {"n": 1})
                    pipe.dispatch()
                    await other.execute("SELECT pg_terminate_backend(%s)", (backend,))
                    await asyncio.sleep(0.2)
                    pipe.send(NUMBER, {"n": 2})
                    await pipe.sync()

            with pytest.raises(psycopg.OperationalError):
                await dying()
        assert await store.run(NUMBER, {"n": 4}) == [(4,)]

    on_one_session(database, scenario)


def test_an_error_ends_its_batch_and_not_the_session(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        async with store.session() as pipe:
            before = pipe.send(NUMBER, {"n": 1})
            pipe.send("SELECT 1 / %(n)s::integer", {"n": 0})
            after = pipe.send("SELECT %(n)s::bigint", {"n": 2})
            with pytest.raises(psycopg.errors.DivisionByZero):
                await pipe.sync()
            assert pipe.rows(before) == [(1,)]
            assert after.failed
            # The statement after the error was not prepared.
            again = pipe.send("SELECT %(n)s::bigint", {"n": 3})
            await pipe.sync()
            assert pipe.rows(again) == [(3,)]

    on_one_session(database, scenario)


def test_a_session_whose_wait_was_cancelled_is_not_used_again(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        running = asyncio.create_task(store.run(SLEEP, {"seconds": 30}))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await store.run(NUMBER, {"n": 5}) == [(5,)]

    on_one_session(database, scenario)


def test_a_reply_to_a_cancelled_wait_does_not_reach_another_caller(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        for pause_s in (0.0, 0.0005, 0.001, 0.002, 0.004):
            running = asyncio.create_task(store.run(NUMBER, {"n": 1}))
            await asyncio.sleep(pause_s)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert await store.run(NUMBER, {"n": 2}) == [(2,)]

    on_one_session(database, scenario)


def test_a_session_that_dies_while_idle_costs_no_retry_and_no_cpu_time(database: str) -> None:
    async def scenario(store: PostgresStore) -> None:
        reads: list[int] = []

        class Counting(Pipeline):
            def _read(self) -> None:
                reads.append(1)
                super()._read()

        store.pipe = Counting
        async with store.session() as pipe:
            await pipe._connection.close()
        [(backend,)] = await store.run("SELECT pg_backend_pid()", {})
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
            await other.execute("SELECT pg_terminate_backend(%s)", (backend,))
        before = len(reads)
        await asyncio.sleep(0.3)
        assert len(reads) - before <= 2, "the closed socket is still read"
        [(another,)] = await store.run("SELECT pg_backend_pid()", {})
        assert another != backend

    on_one_session(database, scenario)


def test_a_session_that_is_reset_after_an_error_message_fails_at_once(
    database: str,
) -> None:
    """The server closes a socket with unread input, which resets the connection. uvloop reports
    that only once, together with the error message before it.
    """

    async def scenario(store: PostgresStore) -> None:
        [(backend,)] = await store.run("SELECT pg_backend_pid()", {})
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
            os.kill(backend, signal.SIGSTOP)
            try:
                running = asyncio.create_task(store.run(NUMBER, {"n": 1}))
                await asyncio.sleep(0.1)
                await other.execute("SELECT pg_terminate_backend(%s)", (backend,))
            finally:
                os.kill(backend, signal.SIGCONT)
            with pytest.raises(StoreUnavailable, match="57P01"):
                await asyncio.wait_for(running, timeout=5)
        assert await store.run(NUMBER, {"n": 2}) == [(2,)]

    on_one_session(database, scenario)


def test_keepalives_detect_a_host_that_disappears(database: str) -> None:
    parts = conninfo_to_dict(database)
    proxy = Proxy(f"{parts['host']}/.s.PGSQL.{parts.get('port') or '5432'}")

    async def check_options() -> None:
        async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            address = make_conninfo(database, host="127.0.0.1", port=port)
            bounds = StoreLimits(connections=1, connection_lost_s=8)
            async with PostgresStore(address, SCHEMA, bounds) as store, store.session() as pipe:
                with socket.socket(fileno=os.dup(pipe._pgconn.socket)) as wire:
                    assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                    tcp = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
                    found = [wire.getsockopt(socket.IPPROTO_TCP, option) for option in tcp]
                    assert found == [4, 1, 8_000]

    asyncio.run(check_options())
