"""After a commit: notify the waiters of ended transfers, send alerts, halt if a move demands it."""

from collections.abc import Sequence

from tidegate.core.answers import Alarm
from tidegate.core.flow import Verb
from tidegate.core.kind import Transfer
from tidegate.core.moves import Moves
from tidegate.core.ports import Tx
from tidegate.core.transfer import Move, Step
from tidegate.engine.alerts import Alert, AlertCode, open_question_cause
from tidegate.engine.context import EngineContext


async def announce(context: EngineContext[Tx], moves: Moves, rows: Sequence[Transfer]) -> None:
    ends = [group for group in moves.groups if group.step.after.lane is None]
    if ends:
        partial = len(ends) < len(moves.groups)
        context.ended([rows[i] for group in ends for i in group.indexes] if partial else rows)
    relevant = [g for g in moves.groups if g.step.alarm is not Alarm.NONE or _was_paged(g.step)]
    for index in sorted(i for group in relevant for i in group.indexes):
        row = rows[index]
        move = moves.move(index)
        before = move.before
        if move.alarm > Alarm.NONE and _is_new_reason(move):
            context.alert(_alert(context, move, row, _cause(context, move, row)))
        elif before is not None and before.paged and not row.paged:
            cause = f"cleared: the open question in {before.state} was answered"
            context.alert(_alert(context, move, before, cause, cleared=True))
        if move.alarm is Alarm.HALT:
            await context.store.halt(f"transfer {row.id}: {move.attempt}", "engine")


def _was_paged(step: Step) -> bool:
    return step.before is not None and step.before.paged


def _cause(context: EngineContext[Tx], move: Move, row: Transfer) -> str:
    reason = move.attempt or row.error or ""
    if move.alarm is Alarm.HALT:
        return f"system {row.lane} contradicts its earlier answer; Tidegate is halted: {reason}"
    asked = row if move.before is None else move.before
    ask = context.flows[asked.flow].ask(asked.state)
    if ask is None:
        return reason
    return open_question_cause(asked.lane, ask.verb, row.retries, reason)


def _alert(
    context: EngineContext[Tx], move: Move, row: Transfer, cause: str, *, cleared: bool = False
) -> Alert:
    ask = context.flows[row.flow].ask(row.state)
    refund = ask is not None and ask.verb is Verb.REFUND
    code = AlertCode.REFUND_FAILING if refund else AlertCode.TRANSFER_STUCK
    return Alert(
        move.alarm,
        AlertCode.SYSTEM_CONTRADICTS if move.alarm is Alarm.HALT else code,
        cause,
        row.lane,
        row.id,
        row.state,
        row.retries,
        0.0 if move.before is None else move.before.waited_s,
        cleared=cleared,
    )


def _is_new_reason(move: Move) -> bool:
    """False if an alert was already sent for the same reason. A halt is always reported."""
    before = move.before
    if before is None or move.alarm is Alarm.HALT:
        return True
    same_reason = not move.entries or move.after.error == before.error
    return not (before.paged and move.after.state == before.state and same_reason)
