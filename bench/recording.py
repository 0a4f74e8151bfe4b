"""What an engine says to its store and its core, recorded: the tapes that the ceiling plays.

Batches of 1 024 transfers, each batch alone: its look for known cids, its two transactions, and
its question to the core. Each tape is of an engine in a process of its own and of its own share of
the owners. So the tapes may be played side by side, as long as each is played in its own order.
"""

import asyncio
import itertools
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from bench.ceiling import BATCH, Statement, Step, Unit, share_of, tape_of, within_share
from bench.fronts import ROOT
from bench.in_process import WAIT_S, alarmed, request_of
from bench.spec import STORE, Spec
from bench.traffic import Order, Traffic
from tidegate import Gate, Question, Receipt, Setup, open_gate
from tidegate.app import collect_seldom
from tidegate.store.pipeline import StatementReply
from tidegate.store.postgres import PostgresStore
from tidegate.store.transaction import PostgresTransaction
from tidegate.systems.trading import TradingCoreClient

PATIENCE_S = 120.0  # To start, to end the last batch, and to write the tape.


class Recorder:
    """Listens at the doors through which an engine speaks to its store and its core."""

    def __init__(self) -> None:
        self.unit: Unit = []
        self._open: dict[int, list[Statement]] = {}
        self._kept: list[object] = []  # An id names one object only as long as it lives.

    def listen(self) -> None:
        send = PostgresTransaction.send
        recorder = self

        def tapped(
            tx: PostgresTransaction, text: str, values: Mapping[str, object]
        ) -> StatementReply:
            recorder._in_transaction(tx, text, values)
            return send(tx, text, values)

        setattr(PostgresTransaction, "send", tapped)  # noqa: B010
        self._tap(PostgresStore, "run", self._alone)
        self._tap(TradingCoreClient, "ask", self._asked)

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


async def record(spec: Spec, number: int, seconds: float) -> list[Unit]:
    """Transfers of one share of the owners, batch after batch, for so many seconds."""
    traffic, recorder, dice = Traffic(spec), Recorder(), random.Random(number)
    share = share_of(spec.accounts, spec.inflight, number)
    assert len(share) >= BATCH, "a batch may name as many owners as it has transfers"
    tape: list[Unit] = []
    # No scan and no poll shall speak between the batches.
    setup = Setup(spec.database, STORE, spec.core, scan_s=3600, alert=alarmed)
    async with open_gate(setup) as gate:
        recorder.listen()
        ends_s = time.monotonic() + seconds
        # None is left out, the first neither: balances that are recorded rest on those before.
        for batch in itertools.count(number, spec.inflight):
            await _transferred(gate, within_share(_batch(traffic, batch), share, dice))
            tape.append(_essential(recorder.cut()))
            if time.monotonic() >= ends_s:
                break
    return tape


def _batch(traffic: Traffic, number: int) -> list[Order]:
    return [traffic.order(number * BATCH + index) for index in range(BATCH)]


async def _transferred(gate: Gate, orders: Sequence[Order]) -> None:
    asked = (gate.engine.transfer(request_of(order), WAIT_S) for order in orders)
    for receipt in await asyncio.gather(*asked):
        assert isinstance(receipt, Receipt), receipt
        assert receipt.transfer.state == "COMMITTED", receipt
        assert not receipt.duplicate, receipt


def _essential(unit: Unit) -> Unit:
    """Without the looks of a loop that found nothing to do, and of those that wait for an end."""
    shown = [s for s in unit if s.transaction or s.questions or "cids" in s.statements[0][1]]
    transactions = sum(step.transaction for step in shown)
    asked = sum(len(step.questions) for step in shown)
    assert (transactions, asked) == (2, BATCH), f"{transactions} transactions, {asked} questions"
    return shown


def record_all(spec: Spec, seconds: float) -> None:
    """Record the tape of every session, each in a process of its own, at the same time."""
    Path(spec.tape).mkdir(exist_ok=True)
    words = [sys.executable, "-m", "bench.recording", msgspec.json.encode(spec).decode()]
    with ExitStack() as stack:
        children = []
        for number in range(spec.inflight):
            child = subprocess.Popen([*words, str(number), str(seconds)], cwd=ROOT)
            stack.callback(child.wait)
            stack.callback(child.kill)  # Of one that has ended already, this does nothing.
            children.append(child)
        if any(child.wait(seconds + PATIENCE_S) for child in children):
            raise RuntimeError("the tape could not be recorded; the reason is above")


def main() -> None:
    """Record one tape: told by a spec, the number of the share, and for how long."""
    spec = msgspec.json.decode(sys.argv[1], type=Spec)
    number, seconds = int(sys.argv[2]), float(sys.argv[3])
    collect_seldom()
    tape = asyncio.run(record(spec, number, seconds))
    tape_of(spec, number).write_bytes(pickle.dumps(tape))


if __name__ == "__main__":
    main()
