"""What an engine says to its store and its core, recorded: the tape that the ceiling plays.

Batches of 1 024 transfers, each batch alone: its look for known cids, its two transactions, and
its question to the core.
"""

import asyncio
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.ceiling import BATCH, Statement, Step, Unit
from bench.in_process import WAIT_S, alarmed, request_of
from bench.spec import STORE, Spec
from bench.traffic import Traffic
from tidegate import Question, Receipt, Setup, open_gate
from tidegate.store.pipe import Reply
from tidegate.store.postgres import PostgresStore, PostgresTransaction
from tidegate.systems.trading import Trading


class Recorder:
    """Listens at the doors through which an engine speaks to its store and its core."""

    def __init__(self) -> None:
        self.unit: Unit = []
        self._open: dict[int, list[Statement]] = {}
        self._kept: list[object] = []  # An id names one object only as long as it lives.

    def listen(self) -> None:
        send = PostgresTransaction.send
        recorder = self

        def tapped(tx: PostgresTransaction, text: str, values: Mapping[str, object]) -> Reply:
            recorder._in_transaction(tx, text, values)
            return send(tx, text, values)

        setattr(PostgresTransaction, "send", tapped)  # noqa: B010
        self._tap(PostgresStore, "run", self._alone)
        self._tap(Trading, "ask", self._asked)

    def _tap(self, door: type, name: str, hear: Any) -> None:
        inner = getattr(door, name)

        async def tapped(this: Any, *words: Any) -> Any:
            hear(this, *words)
            return await inner(this, *words)

        setattr(door, name, tapped)

    def _in_transaction(
        self, tx: PostgresTransaction, text: str, values: Mapping[str, object]
    ) -> None:
        if tx._begun is None:  # noqa: SLF001
            return  # It begins with this, or it is one statement without a beginning.
        if id(tx) not in self._open:
            self._kept.append(tx)
            self._open[id(tx)] = []
            self.unit.append(Step(self._open[id(tx)], transaction=True))
        self._open[id(tx)].append((text, values))

    def _alone(self, _: object, text: str, values: Mapping[str, object]) -> None:
        self.unit.append(Step([(text, values)]))

    def _asked(self, _: object, questions: Sequence[Question]) -> None:
        self.unit.append(Step(questions=questions))

    def cut(self) -> Unit:
        unit, self.unit = self.unit, []
        self._open, self._kept = {}, []
        return unit


async def record(spec: Spec, units: int) -> list[Unit]:
    traffic, recorder = Traffic(spec), Recorder()
    tape: list[Unit] = []
    # No scan and no poll shall speak between the batches.
    setup = Setup(spec.database, STORE, spec.core, scan_s=3600, alert=alarmed)
    async with open_gate(setup) as gate:
        recorder.listen()
        for number in range(units + 1):
            orders = (traffic.order(number * BATCH + place) for place in range(BATCH))
            requests = [request_of(order) for order in orders]
            receipts = await asyncio.gather(*(gate.engine.transfer(r, WAIT_S) for r in requests))
            assert all(isinstance(r, Receipt) and r.transfer.lane is None for r in receipts)
            unit = recorder.cut()
            if number > 0:  # With the first comes the greeting of the core.
                tape.append(_essential(unit))
    return tape


def _essential(unit: Unit) -> Unit:
    """Without the looks of a loop that found nothing to do, and of those that wait for an end."""
    shown = [s for s in unit if s.transaction or s.questions or "cids" in s.statements[0][1]]
    transactions = sum(step.transaction for step in shown)
    asked = sum(len(step.questions) for step in shown)
    assert (transactions, asked) == (2, BATCH), f"{transactions} transactions, {asked} questions"
    return shown


def main() -> None:
    """Record: told by a spec and a number of batches, written to the spec's tape."""
    spec = msgspec.json.decode(sys.argv[1], type=Spec)
    tape = asyncio.run(record(spec, int(sys.argv[2])))
    Path(spec.tape).write_bytes(pickle.dumps(tape))


if __name__ == "__main__":
    main()
