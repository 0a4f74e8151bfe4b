"""The API, or a worker, as a child of a test: `python -m tests.acceptance.api JSON`.

It runs the unchanged program, `serve_api(settings)` or `serve_worker(settings)`. If a moment is
given, subclasses of the store and of the core's client kill the child at that moment. They do so
only after SIGUSR1 has armed them, so that a test can prepare its users through the same child.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from tests.acceptance.fuse import Bug, NamedFuse
from tidegate import app, serving
from tidegate.core.answers import Answer
from tidegate.core.kind import Transfer
from tidegate.core.moves import Moves
from tidegate.core.transfer import Question
from tidegate.settings import Settings
from tidegate.store.postgres import PostgresStore
from tidegate.store.transaction import PostgresTransaction
from tidegate.systems.trading import TradingCoreClient

BUG = "bug "  # The prefix of a moment at which the child raises an error instead of killing itself.


class Parameters(msgspec.Struct, frozen=True):
    settings: Settings
    moment: str | None = None
    worker: bool = False
    armed: bool = False  # Whether it is armed from the start.


class WatchedStore(PostgresStore):
    fuse: NamedFuse
    writing: dict[int, list[str]]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresTransaction]:
        notes: list[str] = []
        async with super().transaction() as tx:
            self.writing[id(tx)] = notes
            yield tx
            del self.writing[id(tx)]
            for note in notes:
                self.fuse.check(f"before {note}")
        for note in notes:
            self.fuse.check(f"after {note}")

    async def write(
        self, tx: PostgresTransaction, moves: Moves, leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        rows = await super().write(tx, moves, leased)
        if moves.created:
            self.writing[id(tx)].append("creation")
        else:
            self.writing[id(tx)] += [f"record of {row.state}" for row in rows]
        return rows


class WatchedCore(TradingCoreClient):
    fuse: NamedFuse

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        for question in questions:
            self.fuse.check(f"before {question.verb}")
        answers = await super().ask(questions)
        for question in questions:
            self.fuse.check(f"after {question.verb}")
        return answers


def watch(moment: str, *, armed: bool) -> None:
    """Replace the store and the core's client by subclasses. The program has no option for it."""
    planted = moment.startswith(BUG)
    fuse = (Bug if planted else NamedFuse)(moment.removeprefix(BUG), armed=armed)
    WatchedStore.fuse = WatchedCore.fuse = fuse
    WatchedStore.writing = {}
    setattr(app, "PostgresStore", WatchedStore)  # noqa: B010
    setattr(app, "TradingCoreClient", WatchedCore)  # noqa: B010


if __name__ == "__main__":
    parameters = msgspec.json.decode(sys.argv[1], type=Parameters)
    if parameters.moment is not None:
        watch(parameters.moment, armed=parameters.armed)
    serving.start_log("json")
    serve = serving.serve_worker if parameters.worker else serving.serve_api
    asyncio.run(serve(parameters.settings))
