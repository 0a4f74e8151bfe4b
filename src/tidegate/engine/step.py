"""One step of a lane: ask the system, then write what follows. Safe to kill at any line."""

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
    """Move a batch of one lane by one outside answer each, and on through local systems.

    False if the system raised something, so that the caller knows that it may be ill.
    """
    if lane in context.local:
        await conclude(context, WriteBatch(batch, lane=lane))
        return True
    questions = context.rules.questions(batch)
    answers = await ask(context.outside[lane], questions)
    well = not isinstance(answers, Unknown)
    if isinstance(answers, Unknown):
        calls = MAX_SPLIT_CALLS if split else 0
        answers, _ = await _split(context.outside[lane], questions, answers, calls)
    await conclude(context, WriteBatch(batch, answers, lane))
    return well


async def ask(system: System, questions: Sequence[Question]) -> Sequence[Answer] | Unknown:
    """The one place where an exception becomes an answer, and that answer is never «no»."""
    try:
        answers = await system.ask(questions)
        assert len(answers) == len(questions), f"{system.name} left questions without an answer"
    except Unreachable:
        raise
    except Exception as fault:  # noqa: BLE001  Whatever it was, the effect is unknown.
        return Unknown(f"{type(fault).__name__}: {fault}")
    return answers


async def _split(
    system: System, questions: Sequence[Question], doubt: Unknown, calls: int
) -> tuple[list[Answer], int]:
    """Others get answers, so that some of these are to blame: they are found by halving.

    Within a bound, so that a system which is ill as a whole is not asked everything one by one.
    """
    if len(questions) == 1 or calls < 2:
        return [doubt] * len(questions), calls
    half, calls = len(questions) // 2, calls - 2
    answers: list[Answer] = []
    parts = [(part, await ask(system, part)) for part in (questions[:half], questions[half:])]
    for part, said in parts:
        if isinstance(said, Unknown):
            said, calls = await _split(system, part, said, calls)  # noqa: PLW2901
        answers += said
    return answers, calls


class _LaneBatches(BatchSource):
    """A lane's batches: a row that cannot be written stays, and pages. Which of them have moved
    meanwhile is seen when they are locked.
    """

    def __init__(self, context: EngineContext[Tx]) -> None:
        self._alert = context.alert

    async def failed(self, work: WriteBatch, fault: Exception) -> None:
        if isinstance(fault, StoreFault) and fault.retryable:
            raise fault  # The leases run out, and the rows are due again.
        for transfer in work.batch:
            cause, where = f"cannot be recorded: {fault}", (work.lane, transfer.id, transfer.state)
            about = (*where, transfer.retries, transfer.waited_s)
            self._alert(Alert(Alarm.PAGE, AlertCode.RECORD_REFUSED, cause, *about))


async def conclude(context: EngineContext[Tx], work: WriteBatch) -> None:
    """Write what was answered about existing transfers, and what follows from it."""
    await write(context, _LaneBatches(context), work)
