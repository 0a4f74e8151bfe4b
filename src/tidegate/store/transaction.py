"""An open transaction on PostgreSQL, and the statements of the store by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from tidegate.core.ports import BRIEF_S, StoreFault, TransactionStart
from tidegate.core.sql import load
from tidegate.store.faults import as_fault, commit_fault
from tidegate.store.pipeline import Pipeline, StatementReply
from tidegate.store.rows import TRANSFER_COLUMNS

STATEMENTS = {
    name: statement.replace("{transfer}", TRANSFER_COLUMNS)
    for name, statement in load("tidegate.store", "transfers.sql").items()
}


class PostgresTransaction:
    """An open transaction, which local systems use too.

    `send` only queues a statement. Waiting for the rows of one statement sends all that are
    queued. An error is raised at that moment, at the COMMIT at the latest. The server skips the
    statements after an error, so the transaction has no effect.
    """

    def __init__(self, pipe: Pipeline) -> None:
        self._pipe = pipe
        self.locked: dict[Any, Any] = {}
        self.locking: list[tuple[Sequence[Any], StatementReply]] = []
        self.looking: tuple[Sequence[Any], StatementReply] | None = None
        self._begun: TransactionStart | StatementReply | None = None

    def begin(self, plans: str) -> None:
        self._command(b"BEGIN")
        self._begun = self.send(STATEMENTS["begin"], {"plans": plans})

    async def begun(self) -> TransactionStart:
        if isinstance(self._begun, StatementReply):
            [row] = await self.rows(self._begun)
            self._begun = TransactionStart(*row[:4])
        assert self._begun is not None, "this transaction was not started by `begin`"
        return self._begun

    async def wait_briefly(self) -> None:
        self.send(STATEMENTS["short_lock_timeout"], {"lock_ms": str(int(BRIEF_S * 1000))})

    def send(self, statement: str, values: Mapping[str, object]) -> StatementReply:
        try:
            return self._pipe.send(statement, values)
        except psycopg.Error as fault:
            raise as_fault(fault) from fault

    async def rows(self, reply: StatementReply) -> list[Any]:
        if reply.result is None:
            await self._sync()
        return self._pipe.rows(reply)

    async def fetch(self, statement: str, values: Mapping[str, object]) -> list[Any]:
        return await self.rows(self.send(statement, values))

    async def post(self, statement: str, values: Mapping[str, object]) -> None:
        self.send(statement, values)
        self.dispatch()

    def dispatch(self) -> None:
        """Let the server run what is queued while the caller prepares more statements."""
        try:
            self._pipe.dispatch()
        except psycopg.Error as fault:
            raise as_fault(fault) from fault

    async def commit(self) -> None:
        committed = self._command(b"COMMIT")
        try:
            await self._pipe.sync()
        except psycopg.Error as fault:
            xid = self._begun.xid if isinstance(self._begun, TransactionStart) else None
            raise commit_fault(fault, xid) from fault
        assert committed.result is not None
        status = committed.result.command_status
        if status != b"COMMIT":
            raise StoreFault(f"PostgreSQL answered COMMIT with {status!r}")

    def _command(self, sql: bytes) -> StatementReply:
        try:
            return self._pipe.command(sql)
        except psycopg.Error as fault:
            raise as_fault(fault) from fault

    async def _sync(self) -> None:
        try:
            await self._pipe.sync()
        except psycopg.Error as fault:
            raise as_fault(fault) from fault
