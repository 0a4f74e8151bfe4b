"""Records the statements that a store sends to PostgreSQL, with their names and values."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegate.store import transaction
from tidegate.store.pipeline import Pipeline, StatementReply
from tidegate.systems.guild import postgres as guild
from tidegate.systems.ledger import postgres as ledger

NAMES = {text: name for name, text in transaction.STATEMENTS.items()}
NAMES |= {text: f"ledger {name}" for name, text in ledger.STATEMENTS.items()}
NAMES |= {text: f"guild {name}" for name, text in guild.STATEMENTS.items()}
SYNC = "sync"  # Recorded where the store waits for replies.
TEXTS = {name: text for text, name in NAMES.items()}


class SentStatement(NamedTuple):
    name: str
    values: Mapping[str, Any]

    @property
    def size(self) -> int:
        """The length of the longest value, which grows with the batch."""
        return max((len(v) for v in self.values.values() if isinstance(v, str)), default=0)


def recording_pipeline() -> tuple[type[Pipeline], list[SentStatement]]:
    """A pipeline class that records what it sends, and the list of records."""
    sent: list[SentStatement] = []

    class RecordingPipeline(Pipeline):
        def send(self, statement: str, values: Mapping[str, object]) -> StatementReply:
            sent.append(SentStatement(NAMES.get(statement, statement), values))
            return super().send(statement, values)

        def command(self, sql: bytes) -> StatementReply:
            sent.append(SentStatement(sql.decode(), {}))
            return super().command(sql)

        async def sync(self) -> None:
            sent.append(SentStatement(SYNC, {}))
            await super().sync()

    return RecordingPipeline, sent
