"""Sends statements to PostgreSQL in pipeline mode and reads the replies of many together.

This is the pipeline mode of libpq, used through psycopg's binding. psycopg's own cursors wait for
each statement. Here the server runs one statement while the client writes the next.
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
    """A statement as the server reads it, with the names of its parameters in order."""

    sql: bytes
    names: tuple[str, ...]


@cache
def text_of(statement: str) -> StatementText:
    """Cached without a limit: all statements come from the package's files, so they are few."""
    names: dict[str, int] = {}
    for name in _NAMED.findall(statement):
        names.setdefault(name, len(names) + 1)
    sql = _NAMED.sub(lambda match: f"${names[match[1]]}", statement)
    return StatementText(sql.encode(), tuple(names))


class StatementReply:
    """The result of a statement; None until the replies of its batch are read."""

    __slots__ = ("prepares", "result")

    def __init__(self, prepares: str | None = None) -> None:
        self.prepares = prepares
        self.result: PGresult | None = None

    @property
    def failed(self) -> bool:
        return self.result is not None and self.result.status in _FAILED


class Pipeline:
    """One session, which runs batches of statements.

    After an error the server skips the rest of the batch, up to the Sync message at its end. If the
    connection is lost, or the wait is cancelled, it is unknown how much the server has done.
    """

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self._connection = connection
        self._pgconn: PGconn = connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._prepared: dict[str, bytes] = {}
        self._names = itertools.count()
        self._queued: list[StatementReply] = []
        self._index = 0  # The index in `_queued` whose results are read next.
        self._sync_due = False  # Statements are queued after the last Sync.
        self._syncs_open = 0  # Syncs that the server has not confirmed yet.
        self._replies_read: asyncio.Future[None] | None = None  # Set while `sync` waits.
        self._socket: int | None = None  # Set while the event loop watches the socket.
        self._closed_by_server = False  # The server closed the connection while it was idle.
        self.outdated = False  # Set when the session must not be used again.
        self._error_poll = select.poll()
        self._reader = Transformer(connection)  # Kept, because it caches the types of columns.
        self._pgconn.enter_pipeline_mode()

    @property
    def is_idle(self) -> bool:
        """Whether another caller may use it: nothing is queued, running, or in a transaction."""
        idle = self._pgconn.transaction_status == TransactionStatus.IDLE
        usable = not (self._closed_by_server or self.outdated)
        return idle and self._replies_read is None and not self._queued and usable

    def send(self, statement: str, values: Mapping[str, object]) -> StatementReply:
        """Queue a statement. `dispatch` or `sync` sends it."""
        text = text_of(statement)
        parameters: list[bytes | None] = []
        formats = []
        for key in text.names:
            # A transfer has about a hundred values. Most are encoded columns, sent unchanged.
            value = values[key]
            binary = type(value) is Binary
            parameters.append(value if binary else encode_value(value))  # type: ignore[arg-type]
            formats.append(1 if binary else 0)
        if (name := self._prepared.get(statement)) is None:
            name = self._prepared[statement] = b"t%d" % next(self._names)
            self._pgconn.send_prepare(name, text.sql)
            self._queued.append(StatementReply(prepares=statement))
        self._pgconn.send_query_prepared(name, parameters, formats)
        return self._add_reply()

    def command(self, sql: bytes) -> StatementReply:
        """Queue a command such as BEGIN, without preparing it."""
        self._pgconn.send_query_params(sql, None)
        return self._add_reply()

    def dispatch(self) -> None:
        """Send a Sync, so that the server runs the queued statements while we write the rest.

        After a Sync the server knows that it waits for the client. So if this process stops, the
        server's idle-in-transaction timeout ends the transaction and frees its locks. Outside a
        transaction each Sync commits the statements before it, and an error before the Sync does
        not skip the statements after it.
        """
        self._pgconn.pipeline_sync()
        self._sync_due = False
        self._syncs_open += 1

    def _add_reply(self) -> StatementReply:
        self._sync_due = True
        reply = StatementReply()
        self._queued.append(reply)
        return reply

    async def sync(self) -> None:
        """End the batch, wait for all replies, and raise the first error."""
        self._replies_read = self._loop.create_future()
        self._send_all()
        await self._replies_read
        replies, self._queued, self._index, self._replies_read = self._queued, [], 0, None
        failed = [reply for reply in replies if reply.failed]
        for reply in failed:
            self._prepared.pop(reply.prepares or "", None)
        if failed:
            raise self._error(failed[0])

    def _send_all(self) -> None:
        try:
            if self._sync_due:
                self.dispatch()
            if self._socket is None:
                # The socket stays registered from the first batch on: to register it for each
                # batch costs system calls.
                self._socket = self._pgconn.socket
                self._loop.add_reader(self._socket, self._read)
                self._error_poll.register(self._socket, 0)  # Reports only a hang-up or an error.
            if self._pgconn.flush():
                # The server may stop reading until we read its replies, so do both at once.
                self._loop.add_writer(self._socket, self._write)
            if not self._syncs_open:
                self._finish()  # All replies are read already.
        except psycopg.Error as lost:
            self._fail(lost)

    def stop_listening(self) -> None:
        """Stop watching a socket that is being closed: its number may be used again."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._error_poll.unregister(self._socket)
            self._socket = None

    def _write(self) -> None:
        try:
            if not self._pgconn.flush() and self._socket is not None:
                self._loop.remove_writer(self._socket)
        except psycopg.Error as lost:
            self._fail(lost)

    def _read(self) -> None:
        if self._replies_read is None and not self._queued:
            self._closed_by_server = True
            self.stop_listening()  # A closed socket is reported as readable for ever.
            return
        try:
            self._receive()
            # uvloop reports a reset socket only once. If there was input to read before the error,
            # the error must be read now.
            while self._error_poll.poll(0):
                self._receive()
        except psycopg.Error as lost:
            self._fail(lost)

    def _receive(self) -> None:
        self._pgconn.consume_input()
        self._collect_results()

    def _collect_results(self) -> None:
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is None:
                if self._index == len(self._queued) or self._queued[self._index].result is None:
                    return  # The next result has not arrived yet.
                self._index += 1
            elif result.status == ExecStatus.PIPELINE_SYNC:
                self._syncs_open -= 1
                if not self._syncs_open:
                    self._finish()
                    return
            elif self._index < len(self._queued):
                self._queued[self._index].result = result

    def _finish(self) -> None:
        if self._replies_read is not None and not self._replies_read.done():
            self._replies_read.set_result(None)

    def _fail(self, lost: psycopg.Error) -> None:
        """The connection is lost. Prefer an error that the server has sent before, if any."""
        self.stop_listening()
        if any(reply.failed for reply in self._queued):
            self._finish()
        elif self._replies_read is not None and not self._replies_read.done():
            self._replies_read.set_exception(lost)

    def _error(self, reply: StatementReply) -> psycopg.Error:
        assert reply.result is not None
        error = error_from_result(reply.result)
        if error.sqlstate is None and self._pgconn.status != ConnStatus.OK:
            return psycopg.OperationalError(str(error))
        return error

    async def roll_back(self) -> None:
        """End what is open or running. If that fails, close the session."""
        try:
            if self._replies_read is not None:
                await self._connection.close()  # The wait was cancelled, or the connection lost.
                return
            if self._queued:
                with suppress(psycopg.Error):
                    await self.sync()
            if not self.is_idle:
                self.command(b"ROLLBACK")
                await self.sync()
        except psycopg.Error:
            await self._connection.close()

    def rows(self, reply: StatementReply) -> list[Any]:
        assert reply.result is not None, "the replies of this batch are not read yet"
        if not reply.result.ntuples:
            return []  # Most lookups find nothing: skip the setup of the reader.
        self._reader.set_pgresult(reply.result)
        try:
            return self._reader.load_rows(0, reply.result.ntuples, tuple)
        finally:
            self._reader.set_pgresult(None)  # An idle session must not hold its last rows.


def encode_value(value: object) -> bytes | None:
    """Encode a parameter as text; a Binary array is sent unchanged. The statement itself casts
    each parameter to its type.
    """
    if isinstance(value, str | EncodedText):  # Mostly a whole column.
        encoded = value if isinstance(value, EncodedText) else value.encode()
        if b"\0" in encoded:
            # The server would cut the text at the NUL.
            raise psycopg.DataError("PostgreSQL text cannot contain a NUL character")
        return encoded
    if value is None or isinstance(value, Binary):
        return value
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    if isinstance(value, bool):
        return b"t" if value else b"f"
    assert isinstance(value, int | float | UUID), f"{value!r} cannot be sent as a parameter"
    return str(value).encode()
