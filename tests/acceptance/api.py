"""The API, or a worker, as a child of a test: `python -m tests.acceptance.api JSON`.

It is the program as it is, `serve_api(settings)` or `serve_worker(settings)`. If a moment is
named, the store and the client of the core are watched from outside, and the child kills itself
there; it does so only once it was armed by SIGUSR1, so that a test can prepare what it needs
through the same child.
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

BUG = "bug "  # Before the name of a moment: raise there, and do not kill.


class Parameters(msgspec.Struct, frozen=True):
    settings: Settings
    moment: str | None = None
    worker: bool = False
    armed: bool = False  # From its first moment on.


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
                self.fuse.burn(f"before {note}")
        for note in notes:
            self.fuse.burn(f"after {note}")

    async def write(
        self, tx: PostgresTransaction, moves: Moves, leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        rows = await super().write(tx, moves, leased)
        if moves.created:
            self.writing[id(tx)].append("birth")
        else:
            self.writing[id(tx)] += [f"record of {row.state}" for row in rows]
        return rows


class WatchedCore(TradingCoreClient):
    fuse: NamedFuse

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        for question in questions:
            self.fuse.burn(f"before {question.verb}")
        answers = await super().ask(questions)
        for question in questions:
            self.fuse.burn(f"after {question.verb}")
        return answers


def watch(moment: str, *, armed: bool) -> None:
    """Put the watched parts in the place of the plain ones; the program has no such switch."""
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
