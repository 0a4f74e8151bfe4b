"""After the commit: who waits for an end is told, people are called, the brake is pulled."""

from collections.abc import Sequence

from tidegate.core.answers import Alarm
from tidegate.core.flow import Verb
from tidegate.core.ports import Tx
from tidegate.core.transfer import Move, Moves, Transfer
from tidegate.engine.alerts import Alert, Code
from tidegate.engine.context import Means


async def announce(means: Means[Tx], moves: Moves, rows: Sequence[Transfer]) -> None:
    steps = set(moves.steps)
    ends = {step for step in steps if step.after.lane is None}
    if ends:
        means.ended([row for row in rows if row.kind.lane is None] if ends != steps else rows)
    loud = {s for s in steps if s.alarm is not Alarm.NONE or (s.before and s.before.paged)}
    for place, (row, step) in enumerate(zip(rows, moves.steps, strict=True)) if loud else ():
        if step not in loud:
            continue
        move = moves.move(place)
        before = move.before
        if move.alarm > Alarm.NONE and _is_news(move):
            means.alert(_alert(means, move, row, move.attempt or row.error or ""))
        elif before is not None and before.paged and not row.paged:
            cause = f"cleared: {before.state} was answered"
            means.alert(_alert(means, move, before, cause, cleared=True))
        if move.alarm is Alarm.HALT:
            await means.store.halt(f"{row.id}: {move.attempt}", "engine")


def _alert(
    means: Means[Tx], move: Move, row: Transfer, cause: str, *, cleared: bool = False
) -> Alert:
    ask = means.flows[row.flow].ask(row.state)
    refund = ask is not None and ask.verb is Verb.REFUND
    code = Code.REFUND_FAILING if refund else Code.TRANSFER_STUCK
    return Alert(
        move.alarm,
        Code.SYSTEM_CONTRADICTS if move.alarm is Alarm.HALT else code,
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
