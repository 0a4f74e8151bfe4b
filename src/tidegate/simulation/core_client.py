"""A simulated worker's client of the trading core, with faults around its calls."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.core.answers import Answer, Unknown, Unreachable
from tidegate.core.transfer import Question
from tidegate.simulation.auditor import CORE
from tidegate.simulation.faults import Fault
from tidegate.systems.trading import CoreCaller, TradingCoreClient

if TYPE_CHECKING:
    from tidegate.simulation.world import SimWorker

CALL_S = 2.0  # How long a worker waits for the core.


class SimTrading(TradingCoreClient):
    """The core client of one worker. A call may raise, or the worker may die before or after."""

    def __init__(self, worker: "SimWorker") -> None:
        self.worker = worker
        caller = CoreCaller(worker.name, CALL_S)
        super().__init__(CORE, worker.connect, caller, worker.recalled, worker.refused)
        self.on_floor = worker.raise_floor
        self.reversible = worker.world.variant.reversible

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        worker = self.worker
        fault = worker.world.next_fault("ask")
        if fault is Fault.KILLED_BEFORE:
            await worker.die()
        if fault is Fault.RAISES:
            raise ValueError("the batch is malformed")
        try:
            answers = await super().ask(questions)
        except Unreachable:
            worker.unreached_s.append(worker.world.loop.now_s)
            raise
        if fault is Fault.KILLED_AFTER:
            await worker.die()
        if fault is Fault.RAISES_AFTER:
            raise ValueError("the answers are malformed")
        if fault is Fault.IN_DOUBT:
            random = worker.world.dice.random
            return [Unknown("no answer to this one") if random() < 0.5 else a for a in answers]
        return answers
