"""Records the statements and questions that an engine sends: the tapes that the ceiling plays.

A tape contains batches of 1 024 transfers, one after the other: the query of known cids, the two
transactions, and the questions to the core. Each tape is recorded by an engine in its own process
with its own share of the owners. So the tapes can be played in parallel, each in its own order.
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
from tidegate.app import collect_garbage_less_often
from tidegate.store.pipeline import StatementReply
from tidegate.store.postgres import PostgresStore
from tidegate.store.transaction import PostgresTransaction
from tidegate.systems.trading import TradingCoreClient

TIMEOUT_S = 120.0  # To start, to end the last batch, and to write the tape.


class Recorder:
    """Wraps the methods by which an engine calls its store and its core, and records the calls."""

    def __init__(self) -> None:
        self.unit: Unit = []
        self._open: dict[int, list[Statement]] = {}
        # References to transactions, because the id() of a freed object can be used again.
        self._transactions: list[object] = []

    def listen(self) -> None:
        send = PostgresTransaction.send
        recorder = self

        def tapped(
            tx: PostgresTransaction, text: str, values: Mapping[str, object]
        ) -> StatementReply:
            recorder._in_transaction(tx, text, values)
            return send(tx, text, values)

        setattr(PostgresTransaction, "send", tapped)  # noqa: B010
        self._tap(PostgresStore, "run", self._outside_transaction)
        self._tap(TradingCoreClient, "ask", self._in_ask)

    def _tap(self, owner: type, name: str, record_call: Any) -> None:
        inner = getattr(owner, name)

        async def tapped(this: Any, *arguments: Any) -> Any:
            record_call(this, *arguments)
            return await inner(this, *arguments)

        setattr(owner, name, tapped)

    def _in_transaction(
        self, tx: PostgresTransaction, text: str, values: Mapping[str, object]
    ) -> None:
        if tx._begun is None:  # noqa: SLF001
            return  # This statement begins the transaction, or it is not in one.
        if id(tx) not in self._open:
            self._transactions.append(tx)
            self._open[id(tx)] = []
            self.unit.append(Step(self._open[id(tx)], transaction=True))
        self._open[id(tx)].append((text, values))

    def _outside_transaction(self, _: object, text: str, values: Mapping[str, object]) -> None:
        self.unit.append(Step([(text, values)]))

    def _in_ask(self, _: object, questions: Sequence[Question]) -> None:
        self.unit.append(Step(questions=questions))

    def cut(self) -> Unit:
        unit, self.unit = self.unit, []
        self._open, self._transactions = {}, []
        return unit


async def record(spec: Spec, number: int, seconds: float) -> list[Unit]:
    """Record batches of transfers of one share of the owners for some seconds."""
    traffic, recorder, dice = Traffic(spec), Recorder(), random.Random(number)
    share = share_of(spec.accounts, spec.inflight, number)
    assert len(share) >= BATCH, "a batch may name as many owners as it has transfers"
    tape: list[Unit] = []
    # No scan and no poll may come between the batches.
    setup = Setup(spec.database, STORE, spec.core, scan_s=3600, alert=alarmed)
    async with open_gate(setup) as gate:
        recorder.listen()
        ends_s = time.monotonic() + seconds
        # No batch is left out, as the recorded balances depend on all batches before.
        for batch in itertools.count(number, spec.inflight):
            await _transferred(gate, within_share(_batch(traffic, batch), share, dice))
            tape.append(_essential(recorder.cut()))
            if time.monotonic() >= ends_s:
                break
    return tape


def _batch(traffic: Traffic, number: int) -> list[Order]:
    return [traffic.order(number * BATCH + index) for index in range(BATCH)]


async def _transferred(gate: Gate, orders: Sequence[Order]) -> None:
    calls = (gate.engine.transfer(request_of(order), WAIT_S) for order in orders)
    for receipt in await asyncio.gather(*calls):
        assert isinstance(receipt, Receipt), receipt
        assert receipt.transfer.state == "COMMITTED", receipt
        assert not receipt.duplicate, receipt


def _essential(unit: Unit) -> Unit:
    """The steps without queries that found nothing to do or that wait for an end."""
    steps = [s for s in unit if s.transaction or s.questions or "cids" in s.statements[0][1]]
    transactions = sum(step.transaction for step in steps)
    questions = sum(len(step.questions) for step in steps)
    counts = f"{transactions} transactions, {questions} questions"
    assert (transactions, questions) == (2, BATCH), counts
    return steps


def record_all(spec: Spec, seconds: float) -> None:
    """Record the tapes of all sessions in parallel, each in its own process."""
    Path(spec.tape).mkdir(exist_ok=True)
    command = [sys.executable, "-m", "bench.recording", msgspec.json.encode(spec).decode()]
    with ExitStack() as stack:
        children = []
        for number in range(spec.inflight):
            child = subprocess.Popen([*command, str(number), str(seconds)], cwd=ROOT)
            stack.callback(child.wait)
            stack.callback(child.kill)  # This does nothing if the child has ended.
            children.append(child)
        if any(child.wait(seconds + TIMEOUT_S) for child in children):
            raise RuntimeError("the tape could not be recorded; the reason is above")


def main() -> None:
    """Record one tape. The arguments are a spec, the number of the share, and the seconds."""
    spec = msgspec.json.decode(sys.argv[1], type=Spec)
    number, seconds = int(sys.argv[2]), float(sys.argv[3])
    collect_garbage_less_often()
    tape = asyncio.run(record(spec, number, seconds))
    tape_of(spec, number).write_bytes(pickle.dumps(tape))


if __name__ == "__main__":
    main()
