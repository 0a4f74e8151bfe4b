"""An open transaction on PostgreSQL, and the statements of the store by their names."""

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
    """An open transaction, in which local systems answer too.

    `send` only puts a statement beside those that wait already. Whoever waits for the rows of one
    lets all of them go. What fails is told then, at the COMMIT at the latest; the server skips
    whatever follows it, so that nothing of all this has happened.
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
        assert self._begun is not None, "this transaction was not begun here"
        return self._begun

    async def wait_briefly(self) -> None:
        self.send(STATEMENTS["brief"], {"lock_ms": str(int(BRIEF_S * 1000))})

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
        self.go()

    def go(self) -> None:
        """Whoever does not need the rows at once has more to write: both go on side by side."""
        try:
            self._pipe.go()
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
            raise StoreFault(f"COMMIT was answered by {status!r}")

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
