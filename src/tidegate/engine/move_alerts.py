"""After the commit: who waits for an end is told, people are called, the brake is pulled."""

from collections.abc import Sequence

from tidegate.core.answers import Alarm
from tidegate.core.flow import Verb
from tidegate.core.kind import Transfer
from tidegate.core.moves import Moves
from tidegate.core.ports import Tx
from tidegate.core.transfer import Move, Step
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.context import EngineContext


async def announce(context: EngineContext[Tx], moves: Moves, rows: Sequence[Transfer]) -> None:
    ends = [group for group in moves.groups if group.step.after.lane is None]
    if ends:
        some = len(ends) < len(moves.groups)
        context.ended([rows[p] for group in ends for p in group.places] if some else rows)
    loud = [g for g in moves.groups if g.step.alarm is not Alarm.NONE or _was_paged(g.step)]
    for place in sorted(place for group in loud for place in group.places):
        row = rows[place]
        move = moves.move(place)
        before = move.before
        if move.alarm > Alarm.NONE and _is_news(move):
            context.alert(_alert(context, move, row, move.attempt or row.error or ""))
        elif before is not None and before.paged and not row.paged:
            cause = f"cleared: {before.state} was answered"
            context.alert(_alert(context, move, before, cause, cleared=True))
        if move.alarm is Alarm.HALT:
            await context.store.halt(f"{row.id}: {move.attempt}", "engine")


def _was_paged(step: Step) -> bool:
    return step.before is not None and step.before.paged


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


def _is_news(move: Move) -> bool:
    """Not when somebody was called for the same reason before. A pulled brake is always told."""
    before = move.before
    if before is None or move.alarm is Alarm.HALT:
        return True
    same_reason = not move.entries or move.after.error == before.error
    return not (before.paged and move.after.state == before.state and same_reason)
