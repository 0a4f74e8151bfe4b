"""Hear what a store says to PostgreSQL: each statement by its name, with its values."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import psycopg

from tidegate.store import postgres as store
from tidegate.systems.guild import postgres as guild
from tidegate.systems.ledger import postgres as ledger

NAMES = {text: name for name, text in store.STATEMENTS.items()}
NAMES |= {text: f"ledger {name}" for name, text in ledger.STATEMENTS.items()}
NAMES |= {text: f"guild {name}" for name, text in guild.STATEMENTS.items()}
TEXTS = {name: text for text, name in NAMES.items()}


class Heard(NamedTuple):
    name: str
    values: Mapping[str, Any]

    @property
    def size(self) -> int:
        """The length of the batch; 0 where there is none."""
        return max((len(v) for v in self.values.values() if isinstance(v, list)), default=0)


def listening() -> tuple[type[psycopg.AsyncConnection[Any]], list[Heard]]:
    """A class of connections that writes down what is executed, and what it has written."""
    heard: list[Heard] = []

    class Listening(psycopg.AsyncConnection[Any]):
        async def execute(self, query: Any, params: Any = None, **rest: Any) -> Any:
            if isinstance(query, str):
                heard.append(Heard(NAMES.get(query, query), params or {}))
            return await super().execute(query, params, **rest)

    return Listening, heard


def numbered(statement: str) -> tuple[str, list[str]]:
    """A statement with `$1` for its first value and so on, and the names in that order."""
    order: dict[str, int] = {}

    def place(found: "re.Match[str]") -> str:
        return f"${order.setdefault(found[1], len(order) + 1)}"

    return re.sub(r"%\((\w+)\)s", place, statement), list(order)
