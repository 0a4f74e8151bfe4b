"""A guild with funded members on PostgreSQL, and an engine that runs their transfers."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from tests.conftest import SCHEMA
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.engine.alerts import Alert
from tidegate.engine.engine import Engine, EngineParts
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import forms_of
from tidegate.flows import FLOWS
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.systems.guild import POINT, Allowance, Checks, book_of
from tidegate.systems.ledger import OUTSIDE, SUSPENSE, Ledger

GUILD, ANNA, BEN, CARA = 10, 1, 2, 3
WAIT_S = 20.0
_seeds = itertools.count(1)

Row: TypeAlias = dict[str, Any]


@dataclass
class Rig:
    """The database of a test of the pool, and engines on it."""

    database: str
    store: PostgresStore
    sql: psycopg.Connection[Row]
    alerts: list[Alert] = field(default_factory=list)

    def engine(self, scan_s: float = 0.05) -> Engine[Any]:
        return Engine(
            EngineParts(
                store=self.store,
                flows=FLOWS,
                outside=[],
                local=[Ledger(), Allowance(), Checks()],
                clock=time.monotonic,
                dice=random.Random(next(_seeds)),
                alert=self.alerts.append,
                scan_s=scan_s,
                forms=forms_of({}, {}),
            )
        )

    async def endow(self, amount: int, *members: int, guild: int = GUILD) -> None:
        """Create points by a deposit."""
        async with self.engine() as engine:
            for member in members:
                parties = {
                    "source": Party("ledger", OUTSIDE, guild),
                    "target": Party("ledger", book_of(member), guild),
                    "suspense": Party("ledger", SUSPENSE, guild),
                }
                reply = await engine.transfer(Request(guild, "deposit", parties, POINT, amount))
                assert isinstance(reply, Receipt)
                assert reply.transfer.state == "COMPLETED"

    def insert(self, amount: int, initiator: int = ANNA, target: int = BEN, **more: Any) -> UUID:
        """Insert a transfer by plain SQL."""
        row = {"guild_id": GUILD, "initiator_id": initiator, "target_id": target, **more}
        columns = ", ".join((*row, "amount"))
        values = ", ".join(f"%({name})s" for name in (*row, "amount"))
        inserted = self.sql.execute(
            f"INSERT INTO economy.pending_transfers ({columns}) VALUES ({values})"
            " RETURNING transfer_id",
            {**row, "amount": amount},
        ).fetchone()
        assert inserted is not None
        id_: UUID = inserted["transfer_id"]
        return id_

    def rows(self, statement: str, *values: object) -> list[Row]:
        return self.sql.execute(statement, values).fetchall()

    def run(self, statement: str, *values: object) -> None:
        self.sql.execute(statement, values)

    def pending(self, id_: UUID) -> Row:
        [row] = self.rows("SELECT * FROM economy.pending_transfers WHERE transfer_id = %s", id_)
        return row

    def balance(self, member: int, guild: int = GUILD) -> int:
        rows = self.rows(
            "SELECT available FROM ledger_accounts WHERE owner = %s AND book = %s AND asset_id = 6",
            guild,
            book_of(member),
        )
        return int(rows[0]["available"]) if rows else 0

    async def until(self, id_: UUID, *statuses: str) -> Row:
        """Wait until the transfer has one of the statuses; return its row."""
        return await self.when(id_, lambda row: row["status"] in statuses)

    async def when(self, id_: UUID, holds: Callable[[Row], bool]) -> Row:
        until_s = time.monotonic() + WAIT_S
        while not holds(row := self.pending(id_)):
            assert time.monotonic() < until_s, f"still {row}; {self.alerts}"
            await asyncio.sleep(0.02)
        return row

    async def approve(self, *ids: UUID) -> None:
        """Run the transfers until they are approved, and no further."""
        engine = self.engine()
        engine.lanes["allowance"].stop()
        async with engine:
            for id_ in ids:
                await self.until(id_, "approved")

    async def take(self, *ids: UUID) -> None:
        """Run the transfers until the engine has taken them from the inbox, and no further."""
        engine = self.engine()
        engine.lanes["checks"].stop()
        async with engine:
            for id_ in ids:
                await self.until(id_, "checking")

    def due_in_s(self, id_: UUID) -> float:
        [row] = self.rows(
            "SELECT extract(epoch FROM due_at - now())::float8 AS s FROM transfers WHERE id = %s",
            id_,
        )
        return float(row["s"])

    @contextmanager
    def listening(self) -> Iterator["ReceivedEvents"]:
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute("LISTEN economy_events")
            yield ReceivedEvents(connection)


@dataclass
class ReceivedEvents:
    """All events of the channel, in order."""

    connection: psycopg.Connection[Any]
    received: list[Row] = field(default_factory=list)

    def events(self, kind: str | None = None) -> list[Row]:
        for notice in self.connection.notifies(timeout=0.3):
            self.received.append(json.loads(notice.payload))
        return [event for event in self.received if kind in (None, event["event_type"])]


@asynccontextmanager
async def rigged(database: str, address: str | None = None) -> AsyncIterator[Rig]:
    """`address` is another address of the same database, used by the engine only."""
    bounds = StoreLimits(lease_s=1.0, lock_s=5.0)
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as connection:
        connection.execute(f"SET search_path TO {SCHEMA}, tidegate")
        async with PostgresStore(address or database, SCHEMA, bounds) as store:
            yield Rig(database, store, connection)


Scene: TypeAlias = Callable[[Rig], Awaitable[None]]
Play: TypeAlias = Callable[[Scene], None]


def player(database: str) -> Play:
    async def run(scene: Scene) -> None:
        async with rigged(database) as rig:
            await rig.endow(1_000, ANNA, BEN)
            await scene(rig)

    return lambda scene: asyncio.run(run(scene))
