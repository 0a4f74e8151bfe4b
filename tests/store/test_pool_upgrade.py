"""An upgrade of the pool: transfers with dates that only older versions accepted."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.economy.rig import ANNA, BEN, GUILD, Rig, rigged
from tests.store.older import BEFORE_FEES, OldProcess, migrate_until
from tests.store.scenario import rows, superuser
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import issue
from tidegate.flows import FLOWS
from tidegate.store.migrate import migrate
from tidegate.store.pool_schema import pool_problems

FIRST, LAST = datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
DATES = {
    "infinity": LAST,
    "294276-12-31": LAST,
    "-infinity": FIRST,
    "4000-01-01 BC": FIRST,
}
SOON = "2999-01-01 00:00+00"
EXPIRES = "SELECT expires_at FROM economy.pending_transfers WHERE transfer_id = %s"


def insert(database: str, date: str) -> UUID:
    """Insert a transfer as a user of plain SQL did. It waits for its checks."""
    [(id_,)] = rows(
        database,
        "INSERT INTO pending_transfers (guild_id, initiator_id, target_id, amount, expires_at)"
        " VALUES (%s, %s, %s, 10, %s) RETURNING transfer_id",
        *(GUILD, ANNA, BEN, date),
    )
    assert isinstance(id_, UUID)
    return id_


def end(database: str, id_: UUID) -> None:
    """End a transfer as the engine does: both records in one transaction."""
    with superuser(database) as sql, sql.transaction():
        sql.execute("UPDATE transfers SET state = 'REJECTED', lane = NULL WHERE id = %s", (id_,))
        sql.execute(
            "UPDATE pending_transfers SET status = 'rejected' WHERE transfer_id = %s", (id_,)
        )


def problems(database: str) -> list[str]:
    with psycopg.connect(database) as connection:
        return list(pool_problems(connection))


@pytest.fixture
def old(unmigrated: str) -> str:
    migrate_until(unmigrated, BEFORE_FEES)
    return unmigrated


@pytest.mark.parametrize("date", DATES)
def test_dates_of_the_pool_are_brought_into_bounds(old: str, date: str) -> None:
    waiting, ended, archived = (insert(old, date) for _ in range(3))
    plain = [insert(old, SOON) for _ in range(2)]
    for id_ in (ended, archived, plain[1]):
        end(old, id_)
    for id_ in (archived, plain[1]):
        OldProcess(old).archive(id_)
    archived_rows = "SELECT id, expires_at::text FROM archived_transfers ORDER BY id"
    before = rows(old, archived_rows)
    migrate(old, SCHEMA, FLOWS.values(), economy=True)
    for id_ in (waiting, ended, archived):
        assert rows(old, EXPIRES, id_) == [(DATES[date],)]
    for id_ in plain:
        assert rows(old, EXPIRES, id_) == [(datetime(2999, 1, 1, tzinfo=UTC),)]
    for id_ in (waiting, ended):
        [(expires,)] = rows(old, "SELECT expires_at FROM transfers WHERE id = %s", id_)
        assert expires == DATES[date], "the engine's record differs"
    assert rows(old, archived_rows) == before, "the archive was changed"
    listed = rows(old, "SELECT count(*) FROM fn_list_pending_transfers(%s)", GUILD)
    assert listed == [(5,)]
    assert problems(old) == []
    with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="would differ"):
        rows(old, "UPDATE pending_transfers SET status = 'approved' RETURNING 1")


@pytest.mark.parametrize(("date", "status"), [("infinity", "completed"), ("-infinity", "rejected")])
def test_a_transfer_with_such_a_date_ends_after_the_upgrade(
    old: str, date: str, status: str
) -> None:
    id_ = insert(old, date)
    migrate(old, SCHEMA, FLOWS.values(), economy=True)

    async def scenario() -> None:
        async with rigged(old) as rig:
            await endow(rig)
            async with rig.engine():
                row = await rig.until(id_, "completed", "rejected")
            assert row["status"] == status
            assert rig.balance(BEN) == (10 if status == "completed" else 0)

    asyncio.run(scenario())
    assert problems(old) == []


async def endow(rig: Rig) -> None:
    """Issue points while the lane of checks is stopped: they would find no account yet."""
    engine: Any = rig.engine()
    engine.lanes["checks"].stop()
    async with engine:
        receipt = await engine.transfer(issue(GUILD, ANNA, 100, None))
    assert isinstance(receipt, Receipt)
    assert receipt.transfer.state == "COMPLETED"


def test_migrating_a_second_store_does_not_change_the_pool(old: str) -> None:
    id_ = insert(old, "infinity")
    migrate(old, "store_two", FLOWS.values(), economy=True)
    found = rows(old, "SELECT expires_at::text FROM pending_transfers WHERE transfer_id = %s", id_)
    assert found == [("infinity",)]
    migrate(old, SCHEMA, FLOWS.values(), economy=True)
    assert rows(old, EXPIRES, id_) == [(LAST,)]
