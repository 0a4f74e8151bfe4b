"""The contents of all tables, read from both sides in the same form, and checks of the chains."""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import psycopg

from tidegate.core.kind import GENESIS, Transfer
from tidegate.core.transfer import HistoryEntry, entry_hash
from tidegate.store.memory_store import ATTEMPTS, CIDS, HISTORY
from tidegate.store.memory_tables import HANDOVERS, TRANSFERS, MemoryAnswer, MemoryRow, MemoryTables
from tidegate.store.rows import TRANSFER_COLUMNS, transfer_from
from tidegate.systems.guild.memory import PENDING, THROTTLES
from tidegate.systems.ledger.memory import ACCOUNTS, OPERATIONS

HALTS = "halts"
TableContents = Mapping[str, Mapping[Any, Any]]

EMPTY = (
    "TRUNCATE transfers, handovers, cids, history, attempts, ledger_accounts, ledger_operations,"
    " halts, core_positions, daily_totals, economy.throttles, economy.pending_transfers"
)
MICROSECONDS = "(extract(epoch FROM {}) * 1000000)::bigint"
# Without the values that depend on the time of the read.
COLUMNS = TRANSFER_COLUMNS.replace("extract(epoch FROM now() - t.updated_at)::float8", "0").replace(
    "coalesce(t.deadline_at <= now(), false)", "false"
)
READ = {
    TRANSFERS: f"SELECT {MICROSECONDS.format('t.due_at')}, {MICROSECONDS.format('t.deadline_at')},"
    f" t.held, {COLUMNS} FROM transfers AS t",
    HANDOVERS: f"SELECT {MICROSECONDS.format('until')}, ids FROM handovers",
    CIDS: "SELECT owner, cid, fingerprint, transfer_id FROM cids",
    HISTORY: "SELECT transfer_id, version, from_state, waypoints, to_state, verb, answer, reason,"
    f" evidence, actor, {MICROSECONDS.format('at')}, hash FROM history ORDER BY version",
    ATTEMPTS: "SELECT transfer_id, slot, version, retry, reason FROM attempts",
    ACCOUNTS: "SELECT owner, book, asset_id, available, held, status FROM ledger_accounts",
    OPERATIONS: "SELECT transfer_id, version, entry, owner, book, asset_id, verb, amount, undoes,"
    " result, reason, delta, held_delta, balance_after FROM ledger_operations",
    THROTTLES: "SELECT guild_id, member_id,"
    f" {MICROSECONDS.format('throttled_until')}, CASE WHEN isfinite(utc_day)"
    " THEN utc_day - '1970-01-01'::date ELSE -1 END, sent FROM economy.throttles",
    PENDING: "SELECT transfer_id, status, round, checks, retry_count"
    " FROM economy.pending_transfers",
    HALTS: "SELECT reason, actor FROM halts WHERE resumed_at IS NULL ORDER BY id",
}


async def read_postgres(admin: psycopg.AsyncConnection[Any]) -> TableContents:
    async with admin.pipeline():
        cursors = {name: await admin.execute(query) for name, query in READ.items()}
    rows = {name: await cursor.fetchall() for name, cursor in cursors.items()}
    history: dict[Any, list[MemoryAnswer]] = {}
    for id_, version, *row in rows[HISTORY]:
        start, waypoints, to, verb, answer, reason, evidence, actor, at, hash_ = row
        path = (start, *waypoints.split(), to)
        entry = HistoryEntry(version, path, verb, answer, reason, evidence or {}, actor)
        history.setdefault(id_, []).append(MemoryAnswer(entry, at, bytes(hash_)))
    attempts: dict[Any, dict[int, Any]] = {}
    for id_, slot, *columns in rows[ATTEMPTS]:
        attempts.setdefault(id_, {})[slot] = tuple(columns)
    return {
        TRANSFERS: {row[3]: (transfer_from(row[3:]), *row[:3]) for row in rows[TRANSFERS]},
        HANDOVERS: _in_order((until, sorted(ids)) for until, ids in rows[HANDOVERS]),
        CIDS: {row[:2]: (bytes(row[2]), row[3]) for row in rows[CIDS]},
        HISTORY: {id_: tuple(entries) for id_, entries in history.items()},
        ATTEMPTS: attempts,
        ACCOUNTS: {row[:3]: (*map(int, row[3:5]), row[5]) for row in rows[ACCOUNTS]},
        OPERATIONS: {row[:3]: row[3:] for row in rows[OPERATIONS]},
        THROTTLES: {row[:2]: row[2:] for row in rows[THROTTLES]},
        PENDING: {row[0]: row[1:] for row in rows[PENDING]},
        HALTS: dict(enumerate(rows[HALTS])),
    }


def read_twin(tables: MemoryTables) -> TableContents:
    rows = tables.rows
    return {
        TRANSFERS: {id_: _comparable(row) for id_, row in rows[TRANSFERS].items()},
        HANDOVERS: _in_order(
            (round(listed.until_s * 1_000_000), sorted(listed.ids))
            for listed in rows[HANDOVERS].values()
        ),
        CIDS: dict(rows[CIDS]),
        HISTORY: dict(rows[HISTORY]),
        ATTEMPTS: dict(rows[ATTEMPTS]),
        ACCOUNTS: {a: tuple(balance) for a, balance in rows[ACCOUNTS].items()},
        OPERATIONS: {
            (*operation[:2], operation.entry): (*operation.account, *operation[3:-1])
            for operations in rows[OPERATIONS].values()
            for operation in operations
        },
        THROTTLES: {member: tuple(row) for member, row in rows[THROTTLES].items()},
        PENDING: {
            id_: (row.status, row.round, dict(row.checks), row.retry_count)
            for id_, row in rows[PENDING].items()
        },
        HALTS: dict(enumerate((h.reason, h.actor) for h in tables.halts.shown())),
    }


def _comparable(row: MemoryRow) -> tuple[Transfer, int, int | None, bool]:
    timeless = row.transfer.replace(waited_s=0.0, expired=False)
    deadline_us = None if row.deadline_s is None else round(row.deadline_s * 1_000_000)
    return timeless, round(row.due_s * 1_000_000), deadline_us, row.held


def _in_order(lists: Iterable[tuple[int, list[UUID]]]) -> dict[int, tuple[int, list[UUID]]]:
    """Sorted by contents: the numbers depend on the order in which sessions were served."""
    return dict(enumerate(sorted(lists)))


def difference(twin: TableContents, postgres: TableContents) -> str:
    """The differences as text; empty if there is none."""
    lines = []
    for name in twin:
        for key in {**twin[name], **postgres[name]}:
            ours, theirs = twin[name].get(key), postgres[name].get(key)
            if ours != theirs:
                lines.append(f"{name} {key}:\n    twin       {ours}\n    postgresql {theirs}")
    return "\n".join(lines)


def broken_chains(contents: TableContents) -> list[Any]:
    """The transfers whose history does not match its hashes or the transfer's head hash."""
    broken = []
    for id_, (transfer, *_) in contents[TRANSFERS].items():
        head, entries, intact = GENESIS, contents[HISTORY].get(id_, ()), True
        for answered in entries:
            head = entry_hash(head, id_, transfer.flow, answered.entry, answered.at_us)
            intact = intact and head == answered.hash
        versions = [answered.entry.version for answered in entries]
        if not intact or head != transfer.head_hash or versions != list(range(transfer.version)):
            broken.append(id_)
    return broken
