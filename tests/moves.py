"""Moves as the tests write them: one by one, and as a batch."""

from collections.abc import Sequence

from tidegate.core.moves import Moves, in_groups
from tidegate.core.transfer import Move, Step, step_of


def moves_of(moves: Sequence[Move]) -> Moves:
    rows = [
        (index, step_of(move), tuple([entry.evidence for entry in move.entries]))
        for index, move in enumerate(moves)
    ]
    return Moves(
        [move.after if move.before is None else move.before for move in moves],
        in_groups(rows),
        [move.expiry for move in moves],
    )


def steps_of(moves: Moves) -> list[Step]:
    """The step of each transfer, in the order of the batch."""
    steps = {index: group.step for group in moves.groups for index in group.indexes}
    return [steps[index] for index in range(len(moves))]
