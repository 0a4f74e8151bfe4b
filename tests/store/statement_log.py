"""Hear what a store says to PostgreSQL: each statement by its name, with its values."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegate.store import transaction
from tidegate.store.pipeline import Pipeline, StatementReply
from tidegate.systems.guild import postgres as guild
from tidegate.systems.ledger import postgres as ledger

NAMES = {text: name for name, text in transaction.STATEMENTS.items()}
NAMES |= {text: f"ledger {name}" for name, text in ledger.STATEMENTS.items()}
NAMES |= {text: f"guild {name}" for name, text in guild.STATEMENTS.items()}
SYNC = "sync"  # Where a flight is waited for.
TEXTS = {name: text for text, name in NAMES.items()}


class Heard(NamedTuple):
    name: str
    values: Mapping[str, Any]

    @property
    def size(self) -> int:
        """How much was sent: of a larger batch, more."""
        return max((len(v) for v in self.values.values() if isinstance(v, str)), default=0)


def listening() -> tuple[type[Pipeline], list[Heard]]:
    """A class of pipes that writes down what is sent, and what it has written."""
    heard: list[Heard] = []

    class Listening(Pipeline):
        def send(self, statement: str, values: Mapping[str, object]) -> StatementReply:
            heard.append(Heard(NAMES.get(statement, statement), values))
            return super().send(statement, values)

        def command(self, sql: bytes) -> StatementReply:
            heard.append(Heard(sql.decode(), {}))
            return super().command(sql)

        async def sync(self) -> None:
            heard.append(Heard(SYNC, {}))
            await super().sync()

    return Listening, heard
