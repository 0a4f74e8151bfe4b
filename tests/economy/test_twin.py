"""The twin in memory gives the same answers as the database for the same facts."""

import asyncio
import itertools
from contextlib import suppress
from typing import Any

import psycopg

from tests.conftest import SCHEMA
from tidegate.core.account import Account
from tidegate.core.answers import Answer, Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.transfer import Question
from tidegate.store.memory_store import MemoryStore
from tidegate.store.memory_tables import MemoryRow
from tidegate.store.postgres import PostgresStore
from tidegate.systems.guild import (
    POINT,
    Allowance,
    Checks,
    MemoryAllowance,
    MemoryChecks,
    memory,
    payment,
)
from tidegate.systems.ledger.judge import LedgerBalance

GUILD, ANNA, BEN, AMOUNT = 10, 1, 2, 100
NOON_S = 1_800_014_400.0  # Twelve o'clock UTC on some day.
STATUSES = (None, "ACTIVE", "FROZEN", "DISABLED")
HELD, SENT, LIMITS = (99, 100), (0, 401), (0, 500)
THROTTLED_S, EVERY, EXEMPT = (None, 50), (False, True), (False, True)
ALL = list(itertools.product(STATUSES, HELD, SENT, LIMITS, THROTTLED_S, EVERY, EXEMPT))


def comparable(answer: Answer) -> tuple[Any, ...]:
    """The answer without exact waits: the time to midnight differs between the clocks."""
    match answer:
        case Done():
            return ("done",)
        case Rejected(reason):
            return "rejected", str(reason)
        case Unknown(reason, alarm, retry_s):
            kind = "none" if retry_s is None else "soon" if retry_s < 60 else "later"
            return "unknown", reason, alarm, kind


async def on_postgres(
    sql: psycopg.Connection[Any], store: PostgresStore, case: tuple[Any, ...]
) -> list[tuple[Any, ...]]:
    status, held, sent, limit, throttled_s, every, exempt = case
    after = "every_transfer" if every else "daily_limit"
    with sql.transaction():
        for table in ("ledger_accounts", "economy.throttles", "economy.government_accounts"):
            sql.execute(f"DELETE FROM {table}")
        sql.execute(
            "UPDATE economy.guild_settings SET daily_limit = %s, cooldown_after = %s",
            (limit, after),
        )
        if status:
            sql.execute(
                "INSERT INTO ledger_accounts (owner, book, asset_id, available, status)"
                " VALUES (%s, 'member:1', 6, %s, %s)",
                (GUILD, held, status),
            )
        sql.execute(
            "INSERT INTO economy.throttles VALUES"
            " (%s, %s, now() + %s * interval '1 s', (now() AT TIME ZONE 'UTC')::date, %s)",
            (GUILD, ANNA, throttled_s, sent),
        )
        if exempt:
            sql.execute("INSERT INTO economy.government_accounts VALUES (%s, %s)", (GUILD, ANNA))
        [(id_,)] = sql.execute(
            "SELECT economy.fn_create_pending_transfer(%s, %s, %s, %s)", (GUILD, ANNA, BEN, AMOUNT)
        ).fetchall()
    with sql.transaction():
        # The state in which the engine leaves a request that it has taken.
        sql.execute("SET LOCAL session_replication_role = replica")
        sql.execute("UPDATE economy.pending_transfers SET status = 'checking'")
    parties, answers = payment(GUILD, ANNA, BEN), []
    for system in (Allowance(), Checks()):
        question = Question(id_, 0, Verb.CHECK, parties[system.name], POINT, AMOUNT)
        with suppress(Undo):
            async with store.transaction() as tx:
                [answer] = await system.ask(tx, [question])
                answers.append(comparable(answer))
                raise Undo
    return answers


class Undo(Exception):
    """Raised to roll the transaction back."""


async def on_the_twin(case: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    status, held, sent, limit, throttled_s, every, exempt = case
    store, answers = MemoryStore(lambda: NOON_S), []
    rows, at_us = store.tables.rows, int(NOON_S * 1_000_000)
    if status:
        account = Account(GUILD, "member:1", POINT)
        rows[memory.ACCOUNTS][account] = LedgerBalance(held, 0, status)
    until_us = None if throttled_s is None else at_us + throttled_s * 1_000_000
    day = at_us // memory.DAY_US
    rows[memory.THROTTLES][GUILD, ANNA] = memory.MemberThrottle(until_us, day, sent)
    rows[memory.SETTINGS][GUILD] = memory.GuildRules(limit, 300, every)
    if exempt:
        rows[memory.GOVERNMENT][GUILD, ANNA] = True
    rows[memory.PENDING]["id"] = memory.PoolRecord("checking")
    rows[memory.TRANSFERS]["id"] = MemoryRow(None, 0.0, None)  # type: ignore[arg-type]
    parties = payment(GUILD, ANNA, BEN)
    for system in (MemoryAllowance(), MemoryChecks()):
        question = Question("id", 0, Verb.CHECK, parties[system.name], POINT, AMOUNT)  # type: ignore[arg-type]
        with suppress(Undo):
            async with store.transaction() as tx:
                [answer] = await system.ask(tx, [question])
                answers.append(comparable(answer))
                raise Undo
    return answers


def test_the_twin_gives_the_answers_of_the_database(database: str) -> None:
    async def run() -> None:
        with psycopg.connect(database, autocommit=True) as sql:
            sql.execute(f"SET search_path TO {SCHEMA}, tidegate")
            async with PostgresStore(database, SCHEMA) as store:
                for case in ALL:
                    assert await on_postgres(sql, store, case) == await on_the_twin(case), case

    asyncio.run(run())


def test_all_combinations_are_tested() -> None:
    assert len(ALL) == 4 * 2**6
