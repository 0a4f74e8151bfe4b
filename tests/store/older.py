"""Creates databases in the schema of older versions, with rows as those versions wrote them."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.conftest import SCHEMA
from tests.store.scenario import superuser
from tidegate.core.flow import Flow
from tidegate.core.kind import Party
from tidegate.flows import FLOWS
from tidegate.store import migrate as module
from tidegate.store.flow_checks import older_checks
from tidegate.store.flow_install import show
from tidegate.store.migrate import Migration, migrate, migrations
from tidegate.store.schemas import set_path

# The numbers of the last migrations before key spaces were added, and before fees were.
BEFORE_SPACES = {"shared": 1, "store": 6, "economy": 2}
BEFORE_FEES = {"shared": 1, "store": 8, "economy": 2}
FEWER_CHECKS = 19  # From this migration on, all flows share one constraint.
BEFORE_FEWER_CHECKS = {"shared": 2, "store": FEWER_CHECKS - 1, "economy": 8}
ENDS = {
    "deposit": "COMPLETED",
    "external_withdrawal": "COMPLETED",
    "internal_transfer": "COMMITTED",
    "member_transfer": "COMPLETED",
    "pool_transfer": "COMPLETED",
}
USDT = 3


def migrate_until(database: str, last: Mapping[str, int]) -> None:
    """Apply the migrations up to these numbers. Install the current flows as that version did."""

    def migrations_until(folder: str) -> list[Migration]:
        return [m for m in migrations(folder) if m.number <= last[folder]]

    def install_older(
        connection: psycopg.Connection, path: Sequence[str], flows: Sequence[Flow]
    ) -> list[str]:
        with connection.transaction():
            set_path(connection, path)
            for flow in flows:
                install_as_before(connection, flow)
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "migrations", migrations_until)
        if last["store"] < FEWER_CHECKS:
            patch.setattr(module, "install", install_older)
        migrate(database, SCHEMA, FLOWS.values(), economy=True)


def install_as_before(connection: psycopg.Connection, flow: Flow) -> None:
    """Add a separate constraint for the flow on each table, as all versions before 0019 did."""
    answers, rests = older_checks(flow)
    name = sql.Identifier(f"flow_{flow.name}")
    for table in ("history", "transfers", "archived_history", "archived_transfers"):
        change = "ALTER TABLE {t} DROP CONSTRAINT IF EXISTS {n}, ADD CONSTRAINT {n} CHECK ({c})"
        check = sql.SQL(answers if table.endswith("history") else rests)
        connection.execute(sql.SQL(change).format(t=sql.Identifier(table), n=name, c=check))
    show(connection, flow)


def old_fingerprint(flow: str, parties: Mapping[str, Party], asset_id: int, amount: int) -> bytes:
    """The fingerprint as it was computed before key spaces were added."""
    body: tuple[object, ...] = (flow, sorted(parties.items()), asset_id, str(amount), [])
    return hashlib.sha256(msgspec.json.encode(body)).digest()[:16]


class OldProcess:
    """Writes rows as the older version did: a key without a space, its fingerprint, and a transfer
    that has ended.

    It uses only columns of the older schema, so it can write after an upgrade too.
    """

    def __init__(self, database: str) -> None:
        self.database = database

    def transfer(
        self,
        flow: str,
        cid: str | None,
        parties: Mapping[str, Party],
        amount: int,
        asset_id: int = USDT,
    ) -> UUID:
        id_ = UUID(int=(int(time.time() * 1000) << 80) | (uuid4().int & (1 << 80) - 1))
        owner = parties["source"].owner
        fingerprint = old_fingerprint(flow, parties, asset_id, amount)
        with superuser(self.database) as sql, sql.transaction():
            sql.execute(
                "INSERT INTO cids (owner, cid, fingerprint, transfer_id) VALUES (%s, %s, %s, %s)",
                (owner, str(id_) if cid is None else cid, fingerprint, id_),
            )
            sql.execute(
                "INSERT INTO transfers (id, owner, flow, state, due_at, version, attempts, retries,"
                " paged, parties, asset_id, amount, cid, head_hash, created_at, updated_at)"
                " VALUES (%s, %s, %s, %s, now(), 1, 0, 0, false, %s, %s, %s, %s, %s, now(), now())",
                (
                    id_,
                    owner,
                    flow,
                    ENDS[flow],
                    Jsonb({r: [p.system, p.book, p.owner] for r, p in parties.items()}),
                    asset_id,
                    amount,
                    cid,
                    bytes(32),
                ),
            )
        return id_

    def archive(self, id_: UUID) -> None:
        """Move the transfer to the archive, as `tidegate archive` does. Its key is kept."""
        columns = (
            "id, owner, flow, state, lane, due_at, version, attempts, retries, paged, parties,"
            " asset_id, amount, cid, head_hash, deadline_at, expires_at, created_at, updated_at"
        )
        with superuser(self.database) as sql, sql.transaction():
            sql.execute(
                f"INSERT INTO archived_transfers ({columns})"
                f" SELECT {columns} FROM transfers WHERE id = %s",
                (id_,),
            )
            sql.execute("DELETE FROM transfers WHERE id = %s", (id_,))


def deposited(owner: int, book: str) -> dict[str, Party]:
    return {
        "source": Party("ledger", "OUTSIDE", owner),
        "target": Party("ledger", book, owner),
        "suspense": Party("ledger", "SUSPENSE", owner),
    }


def withdrawn(owner: int, book: str) -> dict[str, Party]:
    return {"source": Party("ledger", book, owner), "target": Party("ledger", "OUTSIDE", owner)}


def into_spot(owner: int) -> dict[str, Party]:
    return {"source": Party("ledger", "FUNDING", owner), "target": Party("core", "SPOT", owner)}


def between_members(guild: int, payer_id: int, payee_id: int) -> dict[str, Party]:
    """The parties of a payment that the library makes without the pool."""
    payer = f"member:{payer_id}"
    return {
        "allowance": Party("allowance", payer, guild),
        "source": Party("ledger", payer, guild),
        "target": Party("ledger", f"member:{payee_id}", guild),
    }
