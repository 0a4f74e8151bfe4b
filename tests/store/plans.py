"""Reads the plans of the hot statements from PostgreSQL, with real values."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from tests.store.scenario import (
    EngineSetup,
    Remote,
    deposit,
    issue,
    pool_payment,
    refusing,
    run_to_end,
    running,
    to_remote,
)
from tests.store.statement_log import TEXTS, recording_pipeline
from tidegate.store.pipeline import text_of

Plan = Mapping[str, Any]

BIG = {
    *("transfers", "history", "cids", "ledger_operations", "ledger_accounts"),
    *("archived_transfers", "archived_history", "throttles", "pending_transfers"),
}
SCANS = {"Index Scan", "Index Only Scan"}
GUILD = 9


class StatementCase(NamedTuple):
    """A statement with the values of a batch of this size."""

    name: str
    size: int


async def sent_statements(database: str, size: int) -> dict[StatementCase, Mapping[str, Any]]:
    """The statements that a real engine sends while it moves a batch out and back again."""
    pipe, sent = recording_pipeline()
    setup = EngineSetup(database, Remote(refusing), pipe=pipe)
    async with running(setup) as engine:
        owners = range(1, size + 1)
        await asyncio.gather(
            *[run_to_end(engine, deposit(n, 100, f"cid {size} {n}")) for n in owners]
        )
        ended = await asyncio.gather(*[run_to_end(engine, to_remote(n, 10)) for n in owners])
        await engine.parts.store.release(ended)
        await engine.parts.store.find([transfer.id for transfer in ended])
        await engine.parts.store.claim("ledger", size, engine.context.tables)
        await asyncio.gather(*[run_to_end(engine, issue(GUILD, n, 100)) for n in owners])
        await asyncio.gather(
            *[run_to_end(engine, pool_payment(GUILD, n, n + size, 10)) for n in owners]
        )
    largest: dict[StatementCase, Mapping[str, Any]] = {}
    for statement in sorted(sent, key=lambda statement: statement.size):
        if statement.name in TEXTS:
            largest[StatementCase(statement.name, size)] = statement.values
    return largest


def prepare(connection: psycopg.Connection, statements: list[StatementCase]) -> None:
    for name in {case.name for case in statements}:
        for size in {case.size for case in statements}:
            text = text_of(TEXTS[name]).sql.decode()
            prepared = sql.SQL("PREPARE {} AS ").format(_prepared(StatementCase(name, size)))
            connection.execute(prepared.as_string(connection) + text)


def plan_of(
    connection: psycopg.Connection,
    case: StatementCase,
    values: Mapping[str, Any],
    options: LiteralString = "FORMAT JSON",
) -> Plan:
    """The plan that the server would now use for a statement prepared in this session."""
    order = text_of(TEXTS[case.name]).names
    literals = sql.SQL(", ").join(sql.Literal(values[name]) for name in order)
    explain = sql.SQL("EXPLAIN (" + options + ") EXECUTE {} ({})").format(_prepared(case), literals)
    [(output,)] = connection.execute(explain).fetchall()
    tree = json.loads(output) if isinstance(output, str) else output
    root: Plan = tree[0]["Plan"]
    return root


def _prepared(case: StatementCase) -> sql.Identifier:
    return sql.Identifier(f"{case.name} {case.size}")


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def indexes(plan: Plan) -> set[str]:
    """The indexes that a plan uses on the big tables."""
    return {
        node["Index Name"]
        for node in nodes(plan)
        if node["Node Type"] in SCANS and node["Relation Name"] in BIG
    }


def read_in_full(plan: Plan) -> list[str]:
    """The scans of a plan that read all rows of a big table, or a whole index."""
    return [
        f"{node['Node Type']} on {node['Relation Name']}"
        for node in nodes(plan)
        if node.get("Relation Name") in BIG
        and node["Node Type"].endswith("Scan")
        and not (node["Node Type"] in SCANS and "Index Cond" in node)
    ]


def compared_in_full(plan: Plan) -> list[str]:
    """The joins of a plan that compare every row of one side with every row of the other."""
    return [
        node["Join Filter"]
        for node in nodes(plan)
        if node["Node Type"] == "Nested Loop" and "Join Filter" in node
    ]
