"""The views with the specifications' names: the queries printed there run unchanged."""

import asyncio
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from ulid import ULID

from tests.store.scenario import (
    ETH,
    USDT,
    EngineSetup,
    Remote,
    balances,
    deposit,
    from_remote,
    refusing,
    rows,
    run_to_end,
    running,
    silent,
    submitted,
    superuser,
    to_remote,
    to_savings,
)
from tidegate.core.answers import Answer, Unknown
from tidegate.core.flow import Verb
from tidegate.core.kind import Transfer
from tidegate.core.money import MAX_AMOUNT
from tidegate.core.transfer import Question

# As printed in the specifications, with all spaces.
STALE = (
    "SELECT * FROM transfers_tb \n"
    "WHERE state IN (0, 10, 20, 30, -20)"
    " -- INIT, SOURCE_PENDING, SOURCE_DONE, TARGET_PENDING, COMPENSATING\n"
    "  AND updated_at < NOW() - INTERVAL '1 minute'; -- Stale threshold\n"
)
SCAN = (
    "SELECT req_id FROM trading.transfers WHERE state NOT IN ('committed', 'rolled_back', 'failed')"
)
ACCOUNT = (
    "SELECT * FROM balances_tb WHERE user_id = %s AND asset_id = %s AND account_type = 'FUNDING'"
)
OPERATION = "SELECT result FROM transfer_operations WHERE req_id = %s AND op_type = %s"


def columns(database: str, relation: str) -> dict[str, str]:
    found = rows(
        database,
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        relation,
    )
    return dict(found)


def test_transfers_tb_has_the_columns_printed(migrated: str) -> None:
    assert columns(migrated, "transfers_tb") == {
        "transfer_id": "text",
        "req_id": "text",
        "cid": "text",
        "user_id": "bigint",
        "asset_id": "integer",
        "amount": "numeric",
        "transfer_type": "smallint",
        "source_type": "smallint",
        "state": "smallint",
        "error_message": "text",
        "retry_count": "integer",
        "created_at": "timestamp with time zone",
        "updated_at": "timestamp with time zone",
    }


def test_trading_transfers_has_the_columns_printed(migrated: str) -> None:
    assert columns(migrated, "trading.transfers") == {
        "req_id": "uuid",
        "source": "text",
        "target": "text",
        "user_id": "bigint",
        "asset_id": "integer",
        "amount": "numeric",
        "state": "text",
        "created_at": "bigint",
        "updated_at": "bigint",
        "error": "text",
        "retry_count": "integer",
    }


def test_balances_and_operations_have_the_columns_printed(migrated: str) -> None:
    wanted = {"user_id", "asset_id", "account_type", "amount", "available", "status"}
    assert wanted <= columns(migrated, "balances_tb").keys()
    assert {"req_id", "op_type", "result"} <= columns(migrated, "transfer_operations").keys()


def refusing_credits(question: Question) -> Answer:
    return refusing(question) if question.verb is Verb.CREDIT else silent(question)


async def _create_in_every_state(database: str) -> dict[str, Transfer]:
    """One transfer for each code in which a transfer can rest."""
    found = {}
    async with running(EngineSetup(database)) as engine:
        await run_to_end(engine, deposit(1, 1_000_000_000))
        found["COMMITTED"] = await run_to_end(engine, to_remote(1, 1_500_000))
        found["FAILED"] = await run_to_end(engine, to_savings(1, 5_000_000_000))
    async with running(EngineSetup(database, Remote(refusing))) as engine:
        found["ROLLED_BACK"] = await run_to_end(engine, to_remote(1, 1))
    async with running(EngineSetup(database, Remote(silent))) as engine:
        found["TARGET_PENDING"] = await submitted(engine, to_remote(1, 2))
        found["SOURCE_PENDING"] = await submitted(engine, from_remote(1, 3))
        await asyncio.sleep(0.2)
    return found


def _code(database: str, transfer: Transfer) -> Any:
    statement = "SELECT state FROM transfers_tb WHERE req_id = %s"
    [(code,)] = rows(database, statement, str(ULID(transfer.id.bytes)))
    return code


def test_each_state_has_the_code_printed(database: str) -> None:
    found = asyncio.run(_create_in_every_state(database))
    codes = {state: _code(database, transfer) for state, transfer in found.items()}
    assert codes == {
        "SOURCE_PENDING": 10,
        "TARGET_PENDING": 30,
        "COMMITTED": 40,
        "FAILED": -10,
        "ROLLED_BACK": -30,
    }
    scanned = {id_ for (id_,) in rows(database, SCAN)}
    assert scanned == {found["SOURCE_PENDING"].id, found["TARGET_PENDING"].id}
    shown = "SELECT transfer_type, source_type, error_message, retry_count > 0 FROM transfers_tb"
    by_id = f"{shown} WHERE transfer_id = %s"
    contents = {s: rows(database, by_id, str(ULID(t.id.bytes)))[0] for s, t in found.items()}
    assert contents == {
        "COMMITTED": (1, 1, None, False),
        "FAILED": (1, 1, "INSUFFICIENT_BALANCE", False),
        "ROLLED_BACK": (1, 1, "ACCOUNT_FROZEN", False),
        "TARGET_PENDING": (1, 1, "timeout", True),
        "SOURCE_PENDING": (2, 2, "timeout", True),
    }


def test_a_transfer_being_refunded_has_the_code_printed(database: str) -> None:
    async def compensating() -> Transfer:
        # The remote source is asked for the refund, and does not answer.
        async with running(EngineSetup(database, Remote(_debiting_only))) as engine:
            transfer = await submitted(engine, from_remote(1, 7))
            await asyncio.sleep(0.3)
            return transfer

    # Without a deposit there is no FUNDING, so that the credit is refused.
    transfer = asyncio.run(compensating())
    assert _code(database, transfer) == -20
    assert rows(database, SCAN) == [(transfer.id,)]
    shown = "SELECT source, target, state, amount, error FROM trading.transfers"
    assert rows(database, shown) == [
        ("trading", "funding", "compensating", 7, "TARGET_ACCOUNT_NOT_FOUND")
    ]


def _debiting_only(question: Question) -> Answer:
    return Remote().judge(question) if question.verb is Verb.DEBIT else Unknown("timeout")


def test_every_state_of_the_flow_has_the_code_printed(migrated: str) -> None:
    found = rows(migrated, "SELECT state, code FROM flow_states WHERE flow = 'internal_transfer'")
    assert dict(found) == {
        "INIT": 0,
        "SOURCE_PENDING": 10,
        "SOURCE_DONE": 20,
        "TARGET_PENDING": 30,
        "COMMITTED": 40,
        "FAILED": -10,
        "COMPENSATING": -20,
        "ROLLED_BACK": -30,
    }


async def _retry_for(database: str, seconds: float) -> None:
    """Run an engine for a while, with a remote system that never answers."""
    async with running(EngineSetup(database, Remote(silent))):
        await asyncio.sleep(seconds)


def test_MON_001_a_stale_transfer_is_found_while_it_is_retried(database: str) -> None:
    found = asyncio.run(_create_in_every_state(database))
    assert rows(database, STALE) == []
    with superuser(database) as connection:
        connection.execute("UPDATE transfers SET updated_at = updated_at - interval '2 minutes'")
    before = rows(database, "SELECT id, updated_at, retries FROM transfers ORDER BY id")
    for _ in range(2):
        with superuser(database) as connection:
            connection.execute("UPDATE transfers SET due_at = now() WHERE lane IS NOT NULL")
        asyncio.run(_retry_for(database, 0.3))
    after = rows(database, "SELECT id, updated_at, retries FROM transfers ORDER BY id")
    assert [row[:2] for row in after] == [row[:2] for row in before]
    assert sum(row[2] for row in after) >= sum(row[2] for row in before) + 4
    stale = {row[1] for row in rows(database, STALE)}
    open_ = (found["SOURCE_PENDING"], found["TARGET_PENDING"])
    assert stale == {str(ULID(transfer.id.bytes)) for transfer in open_}


def test_the_account_query_shows_decimals_and_the_status(database: str) -> None:
    asyncio.run(_create_in_every_state(database))
    with superuser(database) as connection:
        cursor = connection.execute(ACCOUNT, (1, USDT))
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        [row] = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    assert row["available"] == Decimal("998.499998")
    assert row["amount"] == row["available"] + row["frozen"]
    assert row["status"] == "ACTIVE"
    assert isinstance(row["available"], Decimal)
    assert rows(database, ACCOUNT, 2, USDT) == []


def test_an_operation_is_found_by_its_transfer_and_kind(database: str) -> None:
    found = asyncio.run(_create_in_every_state(database))
    text = {state: str(ULID(transfer.id.bytes)) for state, transfer in found.items()}
    assert rows(database, OPERATION, text["COMMITTED"], "WITHDRAW") == [("SUCCESS",)]
    assert rows(database, OPERATION, text["COMMITTED"], "DEPOSIT") == []
    assert rows(database, OPERATION, text["FAILED"], "WITHDRAW") == [("EXPLICIT_FAIL",)]
    assert rows(database, OPERATION, text["ROLLED_BACK"], "WITHDRAW") == [("SUCCESS",)]
    assert rows(database, OPERATION, text["ROLLED_BACK"], "REFUND") == [("SUCCESS",)]
    assert rows(database, OPERATION, text["SOURCE_PENDING"], "WITHDRAW") == []
    refused = "SELECT reason, delta FROM transfer_operations WHERE req_id = %s"
    assert rows(database, refused, text["FAILED"]) == [("INSUFFICIENT_BALANCE", Decimal(0))]


@pytest.mark.parametrize(
    "number", [0, 1, 2**128 - 1, 2**127, 0x0191_2345_6789_ABCD_EF01_2345_6789_ABCD]
)
def test_an_id_is_written_as_a_standard_ulid(migrated: str, number: int) -> None:
    [(written,)] = rows(migrated, "SELECT ulid(%s)", UUID(int=number))
    assert written == str(ULID.from_int(number))
    assert len(written) == 26


def test_ids_sort_as_text_as_they_sort_in_the_table(migrated: str) -> None:
    ids = "SELECT md5(n::text)::uuid AS id FROM generate_series(1, 500) AS n"
    by_id = rows(migrated, f"SELECT id FROM ({ids}) AS t ORDER BY id")
    by_text = rows(migrated, f'SELECT id FROM ({ids}) AS t ORDER BY ulid(id) COLLATE "C"')
    assert by_id == by_text
    written = rows(migrated, f"SELECT id, ulid(id) FROM ({ids}) AS t")
    assert all(text == str(ULID(id_.bytes)) for id_, text in written)


@pytest.mark.parametrize("amount", [12345678901234567890123456789012345678, MAX_AMOUNT, 1])
def test_an_asset_with_eighteen_decimals_keeps_all_digits(database: str, amount: int) -> None:
    async def deposited() -> Transfer:
        async with running(EngineSetup(database)) as engine:
            return await run_to_end(engine, deposit(4, amount, asset_id=ETH))

    transfer = asyncio.run(deposited())
    assert transfer.amount == amount
    assert balances(database, 4) == {"FUNDING": amount, "OUTSIDE": -amount}
    digits = str(amount).rjust(19, "0")
    shown = f"{digits[:-18]}.{digits[-18:]}"
    assert rows(
        database, "SELECT available::text FROM balances_tb WHERE account_type = 'FUNDING'"
    ) == [(shown,)]
    operations = rows(
        database,
        "SELECT delta::text, balance_after::text FROM transfer_operations"
        " WHERE op_type = 'DEPOSIT'",
    )
    assert operations == [(shown, shown)]


def test_times_are_milliseconds_in_the_older_view(database: str) -> None:
    asyncio.run(_create_in_every_state(database))
    [(ms, at)] = rows(
        database,
        "SELECT o.created_at, n.created_at FROM trading.transfers AS o"
        " JOIN transfers_tb AS n ON n.req_id = ulid(o.req_id) WHERE o.state = 'committed'",
    )
    assert isinstance(at, datetime)
    assert abs(ms - at.timestamp() * 1000) <= 1


def test_no_role_can_write_through_a_view(migrated: str) -> None:
    privilege = "SELECT has_table_privilege('tidegate_engine', 'trading.transfers', %s)"
    for kind in ("INSERT", "UPDATE", "DELETE"):
        assert rows(migrated, privilege, kind) == [(False,)]
    with psycopg.connect(migrated) as connection:
        connection.execute("SET ROLE tidegate_engine")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="cannot update view"):
            connection.execute("UPDATE trading.transfers SET amount = 0")
