"""Plans of the hot statements: asked of PostgreSQL with real values, read as trees."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from tests.store.scenario import (
    Remote,
    Setting,
    deposit,
    issue,
    moved,
    paid,
    refusing,
    running,
    to_remote,
)
from tests.store.statement_log import TEXTS, listening
from tidegate.store.pipeline import text_of

Plan = Mapping[str, Any]

BIG = {
    *("transfers", "history", "cids", "ledger_operations", "ledger_accounts"),
    *("archived_transfers", "archived_history", "throttles", "pending_transfers"),
}
SCANS = {"Index Scan", "Index Only Scan"}
GUILD = 9


class Asked(NamedTuple):
    """A statement with the values of a batch of this many."""

    name: str
    size: int


async def asked(database: str, size: int) -> dict[Asked, Mapping[str, Any]]:
    """What a real engine says to PostgreSQL while it moves a batch there and back again."""
    pipe, heard = listening()
    setting = Setting(database, Remote(refusing), pipe=pipe)
    async with running(setting) as engine:
        owners = range(1, size + 1)
        await asyncio.gather(*[moved(engine, deposit(n, 100, f"cid {size} {n}")) for n in owners])
        ended = await asyncio.gather(*[moved(engine, to_remote(n, 10)) for n in owners])
        await engine.parts.store.release(ended)
        await engine.parts.store.find([transfer.id for transfer in ended])
        await engine.parts.store.claim("ledger", size, engine.context.tables)
        await asyncio.gather(*[moved(engine, issue(GUILD, n, 100)) for n in owners])
        await asyncio.gather(*[moved(engine, paid(GUILD, n, n + size, 10)) for n in owners])
    largest: dict[Asked, Mapping[str, Any]] = {}
    for said in sorted(heard, key=lambda said: said.size):
        if said.name in TEXTS:
            largest[Asked(said.name, size)] = said.values
    return largest


def prepare(connection: psycopg.Connection, statements: list[Asked]) -> None:
    for name in {asked.name for asked in statements}:
        for size in {asked.size for asked in statements}:
            text = text_of(TEXTS[name]).sql.decode()
            prepared = sql.SQL("PREPARE {} AS ").format(_prepared(Asked(name, size)))
            connection.execute(prepared.as_string(connection) + text)


def plan_of(
    connection: psycopg.Connection,
    asked: Asked,
    values: Mapping[str, Any],
    options: LiteralString = "FORMAT JSON",
) -> Plan:
    """The plan that the server would run now for a statement prepared in this session."""
    order = text_of(TEXTS[asked.name]).names
    given = sql.SQL(", ").join(sql.Literal(values[name]) for name in order)
    question = sql.SQL("EXPLAIN (" + options + ") EXECUTE {} ({})").format(_prepared(asked), given)
    [(answer,)] = connection.execute(question).fetchall()
    tree = json.loads(answer) if isinstance(answer, str) else answer
    root: Plan = tree[0]["Plan"]
    return root


def _prepared(asked: Asked) -> sql.Identifier:
    return sql.Identifier(f"{asked.name} {asked.size}")


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def indexes(plan: Plan) -> set[str]:
    """The indexes by which a plan meets the big tables."""
    return {
        node["Index Name"]
        for node in nodes(plan)
        if node["Node Type"] in SCANS and node["Relation Name"] in BIG
    }


def read_in_full(plan: Plan) -> list[str]:
    """The big tables of which a plan reads every row, or every entry of an index."""
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
