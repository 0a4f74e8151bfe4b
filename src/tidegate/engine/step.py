"""One step of a lane: ask the system, then write what its answers lead to.

A process may be killed at any line of it: the lease of the rows ends, and they are due again.
"""

from collections.abc import Sequence

from tidegate.core.answers import Alarm, Answer, Unknown, Unreachable
from tidegate.core.kind import Transfer
from tidegate.core.ports import StoreFault, System, Tx
from tidegate.core.transfer import Question
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.context import EngineContext
from tidegate.engine.write_batch import BatchSource, WriteBatch, write

MAX_SPLIT_CALLS = 64


async def step(
    context: EngineContext[Tx], lane: str, batch: Sequence[Transfer], *, split: bool
) -> bool:
    """Move each transfer of a batch by one answer of an outside system, then through local ones.

    Return False if the system raised an exception: the caller then does not split the next batch.
    """
    if lane in context.local:
        await record_answers(context, WriteBatch(batch, lane=lane))
        return True
    questions = context.rules.questions(batch)
    answers = await ask(context.outside[lane], questions)
    healthy = not isinstance(answers, Unknown)
    if isinstance(answers, Unknown):
        calls = MAX_SPLIT_CALLS if split else 0
        answers, _ = await _split(context.outside[lane], questions, answers, calls)
    await record_answers(context, WriteBatch(batch, answers, lane))
    return healthy


async def ask(system: System, questions: Sequence[Question]) -> Sequence[Answer] | Unknown:
    """Ask a system. Only here does an exception become an answer: Unknown, never Rejected."""
    try:
        answers = await system.ask(questions)
        assert len(answers) == len(questions), f"{system.name} left questions without an answer"
    except Unreachable:
        raise
    except Exception as fault:  # noqa: BLE001  After any exception the effect is unknown.
        return Unknown(f"{type(fault).__name__}: {fault}")
    return answers


async def _split(
    system: System, questions: Sequence[Question], unknown: Unknown, calls: int
) -> tuple[list[Answer], int]:
    """Find the questions that make the system raise, by halving the batch.

    The number of calls is bounded: a system that fails for every question is not asked them one by
    one. Return the answers and the number of calls that are left.
    """
    if len(questions) == 1 or calls < 2:
        return [unknown] * len(questions), calls
    half, calls = len(questions) // 2, calls - 2
    answers: list[Answer] = []
    parts = [(part, await ask(system, part)) for part in (questions[:half], questions[half:])]
    for part, part_answers in parts:
        if isinstance(part_answers, Unknown):
            found, calls = await _split(system, part, part_answers, calls)
            answers += found
        else:
            answers += part_answers
    return answers, calls


class _LaneBatches(BatchSource):
    """The source of a lane's batches. A row that cannot be written stays in its state, and pages.

    Rows that have moved meanwhile are left out when the batch is locked.
    """

    def __init__(self, context: EngineContext[Tx]) -> None:
        self._alert = context.alert

    async def failed(self, work: WriteBatch, fault: Exception) -> None:
        if isinstance(fault, StoreFault) and fault.retryable:
            raise fault  # The leases end, and the rows are due again.
        message = f"the answer cannot be recorded: {fault}"
        for transfer in work.batch:
            where = (work.lane, transfer.id, transfer.state, transfer.retries, transfer.waited_s)
            self._alert(Alert(Alarm.PAGE, AlertCode.RECORD_REFUSED, message, *where))


async def record_answers(context: EngineContext[Tx], work: WriteBatch) -> None:
    """Write the answers about existing transfers, and what they lead to."""
    await write(context, _LaneBatches(context), work)
