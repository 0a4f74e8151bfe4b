"""Faults planted in either side: each must be seen within a few seeds."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest

from tests.differential import Difference, Wish, run_differential
from tidegate.core.account import Account
from tidegate.core.kind import Transfer
from tidegate.core.ports import Behind, MemoryTransaction, nothing
from tidegate.store import transaction
from tidegate.store.memory_store import CIDS, MemoryStore
from tidegate.store.memory_transaction import TwinTransaction
from tidegate.systems.ledger import MemoryLedger
from tidegate.systems.ledger import postgres as ledger

pytestmark = pytest.mark.slow

SEEDS = 60
Plant = Callable[[pytest.MonkeyPatch], None]


def _without(
    monkeypatch: pytest.MonkeyPatch, statements: Any, name: str, part: str, instead: str = ""
) -> None:
    assert part in statements[name]
    monkeypatch.setitem(statements, name, statements[name].replace(part, instead))


def stale_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin's lock returns every row, whatever has become of it."""

    async def lock(
        self: MemoryStore,
        tx: TwinTransaction,
        transfers: Sequence[Transfer],
        behind: Behind = nothing,
    ) -> Sequence[Transfer]:
        await tx.lock("transfers", sorted(t.id for t in transfers))
        await behind()
        return transfers

    monkeypatch.setattr(MemoryStore, "lock", lock)


def no_compare_and_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statement moves a row at whatever version it is."""
    _without(monkeypatch, transaction.STATEMENTS, "record", "AND t.version = m.version")


def a_cid_per_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin takes the same key for another transfer."""
    honest = TwinTransaction.insert

    async def insert(self: TwinTransaction, table: str, key: Hashable, row: object) -> bool:
        if table == CIDS:
            self.put(table, key, row)
            return True
        return await honest(self, table, key, row)

    monkeypatch.setattr(TwinTransaction, "insert", insert)


def no_skipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim waits for the rows that others have locked."""
    _without(monkeypatch, transaction.STATEMENTS, "claim", "SKIP LOCKED")


def no_account_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin's ledger locks nothing."""

    async def lock(self: MemoryLedger, tx: MemoryTransaction, accounts: Sequence[Account]) -> None:
        await tx.pause()

    monkeypatch.setattr(MemoryLedger, "lock", lock)


def released_whatever_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, transaction.STATEMENTS, "release", "AND x.version = r.version")


def held_money_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, ledger.STATEMENTS, "apply", "held = a.held + c.held_delta,")


def claimed_while_halted(monkeypatch: pytest.MonkeyPatch) -> None:
    brake = "WHERE NOT EXISTS (SELECT FROM halts WHERE resumed_at IS NULL)"
    _without(monkeypatch, transaction.STATEMENTS, "claim", brake)


PLANTED: tuple[Plant, ...] = (
    stale_versions,
    no_compare_and_set,
    a_cid_per_transfer,
    no_skipping,
    no_account_locks,
    released_whatever_its_version,
    held_money_forgotten,
    claimed_while_halted,
)


@pytest.mark.parametrize("plant", PLANTED, ids=[plant.__name__ for plant in PLANTED])
def test_a_planted_fault_is_seen(
    plant: Plant, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Difference, match=r"seed \d+, ") as seen:
        run_differential(range(SEEDS), database, Wish(shrink=False))
    monkeypatch.undo()
    # Without the fault there is nothing to see: it was this one.
    assert run_differential([seen.value.part.seed], database).operations > 0
