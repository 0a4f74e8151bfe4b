"""Faults planted in one side: the comparison must find each within a few seeds."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest

from tests.differential import Difference, RunOptions, run_differential
from tidegate.core.account import Account
from tidegate.core.kind import Transfer
from tidegate.core.ports import AfterLock, MemoryTransaction, no_action
from tidegate.store import transaction
from tidegate.store.memory_store import CIDS, MemoryStore
from tidegate.store.memory_transaction import TwinTransaction
from tidegate.systems.ledger import MemoryLedger
from tidegate.systems.ledger import postgres as ledger

pytestmark = pytest.mark.slow

SEEDS = 60
Plant = Callable[[pytest.MonkeyPatch], None]


def _without(
    monkeypatch: pytest.MonkeyPatch, statements: Any, name: str, selection: str, instead: str = ""
) -> None:
    assert selection in statements[name]
    monkeypatch.setitem(statements, name, statements[name].replace(selection, instead))


def stale_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin's lock returns every row, even if it has moved."""

    async def lock(
        self: MemoryStore,
        tx: TwinTransaction,
        transfers: Sequence[Transfer],
        after_lock: AfterLock = no_action,
    ) -> Sequence[Transfer]:
        await tx.lock("transfers", sorted(t.id for t in transfers))
        await after_lock()
        return transfers

    monkeypatch.setattr(MemoryStore, "lock", lock)


def no_compare_and_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statement moves a row at any version."""
    _without(monkeypatch, transaction.STATEMENTS, "record", "AND t.version = m.version")


def a_cid_per_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin accepts the same key for another transfer."""
    original = TwinTransaction.insert

    async def insert(self: TwinTransaction, table: str, key: Hashable, row: object) -> bool:
        if table == CIDS:
            self.put(table, key, row)
            return True
        return await original(self, table, key, row)

    monkeypatch.setattr(TwinTransaction, "insert", insert)


def no_skipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim waits for the rows that others have locked."""
    _without(monkeypatch, transaction.STATEMENTS, "claim", "SKIP LOCKED")


def no_account_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin's ledger locks nothing."""

    async def lock(self: MemoryLedger, tx: MemoryTransaction, accounts: Sequence[Account]) -> None:
        await tx.pause()

    monkeypatch.setattr(MemoryLedger, "lock", lock)


def released_at_any_version(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, transaction.STATEMENTS, "release", "AND x.version = r.version")


def held_amounts_not_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, ledger.STATEMENTS, "apply", "held = a.held + c.held_delta,")


def claimed_while_halted(monkeypatch: pytest.MonkeyPatch) -> None:
    condition = "WHERE NOT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL)"
    _without(monkeypatch, transaction.STATEMENTS, "claim", condition)


PLANTED: tuple[Plant, ...] = (
    stale_versions,
    no_compare_and_set,
    a_cid_per_transfer,
    no_skipping,
    no_account_locks,
    released_at_any_version,
    held_amounts_not_updated,
    claimed_while_halted,
)


@pytest.mark.parametrize("plant", PLANTED, ids=[plant.__name__ for plant in PLANTED])
def test_a_planted_fault_is_found(
    plant: Plant, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Difference, match=r"seed \d+, ") as caught:
        run_differential(range(SEEDS), database, RunOptions(shrink=False))
    monkeypatch.undo()
    # Without the fault the same seed shows no difference.
    assert run_differential([caught.value.selection.seed], database).operations > 0
