"""The ceiling: the engine's own statements, fed again without engine or client.

To play a tape is to send the same text with the same values to a copy of the same database and
core as it was recorded on, with nothing looked at, decided or gathered.
"""

import asyncio
import pickle
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from bench.driving import Outcome, Window
from bench.rail import open_trading
from bench.spec import STORE, Result, Spec
from tidegate import Question
from tidegate.core.answers import Done
from tidegate.store.postgres import Bounds, PostgresStore
from tidegate.systems.trading import Trading

BATCH = 1_024
Statement: TypeAlias = tuple[str, Mapping[str, object]]


class Step(NamedTuple):
    """One transaction, one statement outside of any, or one question to the core."""

    statements: Sequence[Statement] = ()
    transaction: bool = False
    questions: Sequence[Question] = ()


Unit: TypeAlias = list[Step]


async def play(spec: Spec, tape: Sequence[Unit]) -> Result:
    window, waiting = Window(spec), iter(tape)
    bounds = Bounds(connections=spec.inflight)
    async with (
        PostgresStore(spec.database, STORE, bounds) as store,
        open_trading(spec.core) as core,
    ):

        async def loop() -> None:
            while not window.over:
                started_s = time.perf_counter()
                unit = next(waiting, None)
                if unit is None:
                    raise RuntimeError("the tape is too short for this machine: record more")
                for step in unit:
                    await _feed(store, core, step)
                window.note(started_s, Outcome(ended=BATCH))

        async with asyncio.TaskGroup() as group:
            for _ in range(spec.inflight):
                group.create_task(loop())
    return window.result()


async def _feed(store: PostgresStore, core: Trading, step: Step) -> None:
    if step.questions:
        answers = await core.ask(step.questions)
        assert all(isinstance(answer, Done) for answer in answers), "the core did them all"
    elif step.transaction:
        async with store.transaction() as tx:
            # Where a statement can be sent without waiting for its rows, none is waited for.
            send = getattr(tx, "post", tx.fetch)
            for text, values in step.statements:
                await send(text, values)
    else:
        [(text, values)] = step.statements
        await store.run(text, values)


async def run(spec: Spec) -> Result:
    return await play(spec, load(spec))


def load(spec: Spec) -> list[Unit]:
    tape: list[Unit] = pickle.loads(Path(spec.tape).read_bytes())
    return tape
