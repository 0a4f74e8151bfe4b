"""Statements to PostgreSQL and their rows back: many on one way, none waited for by itself.

It is libpq's pipeline, by psycopg's door to libpq. psycopg's own cursors wait for each statement;
here the server works on one while the next is being written, and all replies are read together.
"""

import asyncio
import itertools
import re
import select
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from tidegate.core.sql import Binary, EncodedText

_NAMED = re.compile(r"%\((\w+)\)s")
_FAILED = frozenset({ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED})


class StatementText(NamedTuple):
    """A statement as the server reads it, with the names of its values in their order."""

    sql: bytes
    names: tuple[str, ...]


@cache
def text_of(statement: str) -> StatementText:
    """Every statement comes out of a file of the package, so that there are few."""
    names: dict[str, int] = {}
    for name in _NAMED.findall(statement):
        names.setdefault(name, len(names) + 1)
    sql = _NAMED.sub(lambda found: f"${names[found[1]]}", statement)
    return StatementText(sql.encode(), tuple(names))


class StatementReply:
    """What a statement has answered, once its flight is back."""

    __slots__ = ("prepares", "result")

    def __init__(self, prepares: str | None = None) -> None:
        self.prepares = prepares
        self.result: PGresult | None = None

    @property
    def failed(self) -> bool:
        return self.result is not None and self.result.status in _FAILED


class Pipeline:
    """One session, which takes flights of statements.

    An error ends the flight: the server skips what follows it, up to the Sync at the flight's end.
    If the connection is lost, or the wait is broken off, nobody knows how far the server came.
    """

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self._connection = connection
        self._pgconn: PGconn = connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._prepared: dict[str, bytes] = {}
        self._names = itertools.count()
        self._flight: list[StatementReply] = []
        self._at = 0  # Whose results are coming in.
        self._leg_open = False  # Something is in the flight that may not go yet.
        self._legs = 0  # Of the flight, whose ends the server has not confirmed.
        self._back: asyncio.Future[None] | None = None
        self._socket: int | None = None  # As long as we listen.
        self._hung_up = False  # The server, while nobody asked it anything.
        self.outdated = False  # Set when the session must not be used again.
        self._breaks = select.poll()
        self._reader = Transformer(connection)  # Kept, because it learns the types of its columns.
        self._pgconn.enter_pipeline_mode()

    @property
    def at_rest(self) -> bool:
        """Whether the next may use it: nothing waits, nothing is under way, nothing is open."""
        idle = self._pgconn.transaction_status == TransactionStatus.IDLE
        usable = not (self._hung_up or self.outdated)
        return idle and self._back is None and not self._flight and usable

    def send(self, statement: str, values: Mapping[str, object]) -> StatementReply:
        """Put a statement into the flight. It is not under way yet."""
        text = text_of(statement)
        given: list[bytes | None] = []
        formats = []
        for key in text.names:
            # A transfer is a hundred values: most are columns, which go as they are.
            value = values[key]
            binary = type(value) is Binary
            given.append(value if binary else as_sent(value))  # type: ignore[arg-type]
            formats.append(1 if binary else 0)
        if (name := self._prepared.get(statement)) is None:
            name = self._prepared[statement] = b"t%d" % next(self._names)
            self._pgconn.send_prepare(name, text.sql)
            self._flight.append(StatementReply(prepares=statement))
        self._pgconn.send_query_prepared(name, given, formats)
        return self._expect()

    def command(self, sql: bytes) -> StatementReply:
        """BEGIN and the like: there is nothing to prepare."""
        self._pgconn.send_query_params(sql, None)
        return self._expect()

    def go(self) -> None:
        """Let what is in the flight go already: the server works on it while we write the rest.

        It is a leg of its own, and the server is told where it ends. Then it knows that it waits
        for us: if this process stands still, it ends the transaction in time, and frees its locks.
        Without a transaction each leg is one, and what follows an error is not skipped.
        """
        self._pgconn.pipeline_sync()
        self._leg_open = False
        self._legs += 1

    def _expect(self) -> StatementReply:
        self._leg_open = True
        reply = StatementReply()
        self._flight.append(reply)
        return reply

    async def sync(self) -> None:
        """End the flight, and wait until all of it is answered; raise its first error."""
        self._back = self._loop.create_future()
        self._depart()
        await self._back
        flight, self._flight, self._at, self._back = self._flight, [], 0, None
        failed = [reply for reply in flight if reply.failed]
        for reply in failed:
            self._prepared.pop(reply.prepares or "", None)
        if failed:
            raise self._error(failed[0])

    def _depart(self) -> None:
        try:
            if self._leg_open:
                self.go()
            if self._socket is None:
                # From the first flight on: to begin and to end it for each costs system calls.
                self._socket = self._pgconn.socket
                self._loop.add_reader(self._socket, self._read)
                self._breaks.register(self._socket, 0)  # For nothing but an end or an error.
            if self._pgconn.flush():
                # The server may stop reading until we have read what it says: both go on.
                self._loop.add_writer(self._socket, self._write)
            if not self._legs:
                self._land()  # All of it is back already.
        except psycopg.Error as lost:
            self._fail(lost)

    def deaf(self) -> None:
        """Listen no more to a socket that is closed: its number will be another's."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._breaks.unregister(self._socket)
            self._socket = None

    def _write(self) -> None:
        try:
            if not self._pgconn.flush() and self._socket is not None:
                self._loop.remove_writer(self._socket)
        except psycopg.Error as lost:
            self._fail(lost)

    def _read(self) -> None:
        if self._back is None and not self._flight:
            self._hung_up = True
            self.deaf()  # A closed socket would tell us so without end.
            return
        try:
            self._take_in()
            # uvloop tells of a socket that was reset once, and never again. If there were words to
            # read before the error, this is the only time to come to it.
            while self._breaks.poll(0):
                self._take_in()
        except psycopg.Error as lost:
            self._fail(lost)

    def _take_in(self) -> None:
        self._pgconn.consume_input()
        self._collect()

    def _collect(self) -> None:
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is None:
                if self._at == len(self._flight) or self._flight[self._at].result is None:
                    return  # Nothing is there yet.
                self._at += 1
            elif result.status == ExecStatus.PIPELINE_SYNC:
                self._legs -= 1
                if not self._legs:
                    self._land()
                    return
            elif self._at < len(self._flight):
                self._flight[self._at].result = result

    def _land(self) -> None:
        if self._back is not None and not self._back.done():
            self._back.set_result(None)

    def _fail(self, lost: psycopg.Error) -> None:
        """The connection is gone. What the server said last says more than that."""
        self.deaf()
        if any(reply.failed for reply in self._flight):
            self._land()
        elif self._back is not None and not self._back.done():
            self._back.set_exception(lost)

    def _error(self, reply: StatementReply) -> psycopg.Error:
        assert reply.result is not None
        error = error_from_result(reply.result)
        if error.sqlstate is None and self._pgconn.status != ConnStatus.OK:
            return psycopg.OperationalError(str(error))
        return error

    async def roll_back(self) -> None:
        """Leave nothing open and nothing under way. A session that cannot do this is closed."""
        try:
            if self._back is not None:
                await self._connection.close()  # Broken off, or lost.
                return
            if self._flight:
                with suppress(psycopg.Error):
                    await self.sync()
            if not self.at_rest:
                self.command(b"ROLLBACK")
                await self.sync()
        except psycopg.Error:
            await self._connection.close()

    def rows(self, reply: StatementReply) -> list[Any]:
        assert reply.result is not None, "the flight is not back"
        if not reply.result.ntuples:
            return []  # As most look-ups of a batch: nothing has to be prepared to read it.
        self._reader.set_pgresult(reply.result)
        try:
            return self._reader.load_rows(0, reply.result.ntuples, tuple)
        finally:
            self._reader.set_pgresult(None)  # An idle session must not hold its last rows.


def as_sent(value: object) -> bytes | None:
    """As PostgreSQL reads it: as text, but for arrays of ids and hashes. What type it is, each
    statement says itself.
    """
    if isinstance(value, str | EncodedText):  # A whole column, mostly.
        sent = value if isinstance(value, EncodedText) else value.encode()
        if b"\0" in sent:
            raise psycopg.DataError("no text in PostgreSQL has a NUL in it")  # It would end there.
        return sent
    if value is None or isinstance(value, Binary):
        return value
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    assert isinstance(value, int | float | UUID), f"{value!r} has no text"
    return str(value).encode()
