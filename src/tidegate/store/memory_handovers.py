"""Handover lists of the in-memory store: which transfers a process holds, and until when."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from tidegate.store.memory_tables import HANDOVERS, TRANSFERS, MemoryRow, MemoryTables

if TYPE_CHECKING:
    from tidegate.store.memory_transaction import TwinTransaction

DELETED_EARLY_S = 1.0  # Lists of this age are checked: most of their transfers have ended by then.


class Handover(NamedTuple):
    """The transfers that one transaction handed over inside its process; not due until then."""

    until_s: float
    ids: Sequence[UUID]


def hand_over(tx: "TwinTransaction", ids: Sequence[UUID], until_s: float) -> None:
    """Mark rows that this transaction writes as held, and list them."""
    for id_ in ids:
        row: MemoryRow = tx.get(TRANSFERS, id_)
        tx.put(TRANSFERS, id_, row._replace(held=True))
    if ids:
        tx.tables.handovers += 1
        tx.put(HANDOVERS, tx.tables.handovers, Handover(until_s, ids))


def lapse(tables: MemoryTables, now_s: float, lease_s: float) -> None:
    """Rows that are still held when their lease is over become due like all others. A list is
    deleted when none of its transfers is held any more; for a locked row this is not known.
    """
    lists: dict[int, Handover] = tables.rows[HANDOVERS]  # type: ignore[assignment]
    horizon_s = now_s + max(lease_s - DELETED_EARLY_S, 0.0)
    for number in [number for number, entry in lists.items() if entry.until_s <= horizon_s]:
        until_s, ids = lists[number]
        held = [id_ for id_ in ids if _is_held(tables, id_)]
        free = [id_ for id_ in held if until_s <= now_s and (TRANSFERS, id_) not in tables.holders]
        for id_ in free:
            row: MemoryRow = tables.rows[TRANSFERS][id_]
            tables.rows[TRANSFERS][id_] = row._replace(held=False)
        if len(free) == len(held):
            del lists[number]


def listed(tables: MemoryTables) -> frozenset[UUID]:
    return frozenset(id_ for handover in tables.rows[HANDOVERS].values() for id_ in handover.ids)


def lapse_all(tables: MemoryTables, now_s: float) -> None:
    """Let the next scan read all lists, after the clock was set back."""
    lists = tables.rows[HANDOVERS]
    lists |= {
        number: handover._replace(until_s=min(handover.until_s, now_s))
        for number, handover in lists.items()
    }


def _is_held(tables: MemoryTables, id_: UUID) -> bool:
    row: MemoryRow | None = tables.rows[TRANSFERS].get(id_)
    return row is not None and row.held and row.transfer.kind.lane is not None
