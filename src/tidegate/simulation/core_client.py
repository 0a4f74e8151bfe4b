"""A simulated worker's client of the trading core, which raises or dies around its calls."""

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
    """The client of the core in one worker, which dies or raises around it."""

    def __init__(self, node: "SimWorker") -> None:
        self.node = node
        caller = CoreCaller(node.name, CALL_S)
        super().__init__(CORE, node.connect, caller, node.recalled, node.refused)
        self.on_floor = node.raise_floor
        self.reversible = node.world.terms.reversible

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        node = self.node
        fault = node.world.fate("ask")
        if fault is Fault.KILLED_BEFORE:
            await node.die()
        if fault is Fault.RAISES:
            raise ValueError("the batch makes no sense")
        try:
            answers = await super().ask(questions)
        except Unreachable:
            node.unreached_s.append(node.world.loop.now_s)
            raise
        if fault is Fault.KILLED_AFTER:
            await node.die()
        if fault is Fault.RAISES_AFTER:
            raise ValueError("the answers make no sense")
        if fault is Fault.IN_DOUBT:
            throw = node.world.dice.random
            return [Unknown("no word of this one") if throw() < 0.5 else a for a in answers]
        return answers
