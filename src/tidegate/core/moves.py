"""Moves of a batch by columns: groups of transfers that take the same step."""

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import NamedTuple

import msgspec

from tidegate.core.answers import NO_EVIDENCE, Evidence
from tidegate.core.kind import Transfer
from tidegate.core.transfer import EvidenceColumn, Expiry, HistoryEntry, Move, Step, step_of


class MoveGroup(NamedTuple):
    """The moves of a batch that take the same step: what differs between them is in columns."""

    step: Step
    places: Sequence[int]  # Of their transfers in the batch, in ascending order.
    evidences: tuple[EvidenceColumn, ...] = ()  # A column for each line of the step.

    def row(self, number: int) -> tuple[Evidence, ...]:
        """The evidence of one move, an entry for each line of the step."""
        return tuple([NO_EVIDENCE if c is None else c[number] for c in self.evidences])

    def part(self, chosen: Sequence[bool]) -> "MoveGroup":
        columns = [None if c is None else list(compress(c, chosen)) for c in self.evidences]
        return MoveGroup(self.step, list(compress(self.places, chosen)), tuple(columns))


class Moves:
    """A batch of moves by columns: the transfers as they were, and groups of those that take the
    same step. Each place of the batch is in one group.
    """

    __slots__ = ("_found", "expiries", "groups", "transfers")

    def __init__(
        self,
        transfers: Sequence[Transfer],
        groups: Sequence[MoveGroup],
        expiries: Sequence[Expiry | None] = (),  # Of those that are created; of none, if empty.
    ) -> None:
        self.transfers, self.groups, self.expiries = transfers, groups, expiries
        self._found: list[tuple[MoveGroup, int]] | None = None

    def __len__(self) -> int:
        return len(self.transfers)

    def regroup(self, groups: Sequence[MoveGroup]) -> None:
        """Their steps, after more answers."""
        self.groups, self._found = groups, None

    @property
    def created(self) -> bool:
        """Whether these transfers are created: all of them are, or none."""
        return bool(self.groups) and self.groups[0].step.before is None

    @property
    def steps(self) -> list[Step]:
        """The step of each transfer, in the order of the batch."""
        return [self._at(row)[0].step for row in range(len(self))]

    def now(self, row: int) -> Transfer:
        """A transfer where its step has brought it, not yet written."""
        transfer, step = self.transfers[row], self._at(row)[0].step
        waited_s = 0.0 if step.lines else transfer.waited_s
        return msgspec.structs.replace(transfer, kind=step.after, waited_s=waited_s)

    def move(self, row: int) -> Move:
        group, number = self._at(row)
        step = group.step
        pairs = zip(step.lines, group.row(number), strict=True)
        return Move(
            None if step.before is None else self.transfers[row],
            self.now(row),
            tuple([HistoryEntry(*line[:5], kept, line.actor) for line, kept in pairs]),
            step.delay_s,
            step.attempt,
            step.alarm,
            step.rests,
            step.deadline_s,
            self.expiries[row] if self.expiries else None,
        )

    def _at(self, row: int) -> tuple[MoveGroup, int]:
        """The group of a place of the batch, and its number there: for what is looked at singly."""
        found = self._found
        if found is None:
            pairs = {p: (g, number) for g in self.groups for number, p in enumerate(g.places)}
            assert len(pairs) == len(self), "each place is in one group"
            found = self._found = [pairs[place] for place in range(len(self))]
        return found[row]


def in_groups(rows: Iterable[tuple[int, Step, tuple[Evidence, ...]]]) -> list[MoveGroup]:
    """Groups of moves that are given singly: place, step, and the evidence of its lines."""
    found: dict[Step, tuple[list[int], list[tuple[Evidence, ...]]]] = {}
    for place, step, evidences in rows:
        assert len(evidences) == len(step.lines), "each line has its evidence, or none"
        places, kept = found.setdefault(step, ([], []))
        places.append(place)
        kept.append(evidences)
    return [
        MoveGroup(step, places, tuple(map(_column, zip(*kept, strict=True))))
        for step, (places, kept) in found.items()
    ]


def _column(evidences: Sequence[Evidence]) -> EvidenceColumn:
    return evidences if any(evidences) else None


def moves_of(moves: Sequence[Move]) -> Moves:
    rows = [
        (place, step_of(move), tuple([entry.evidence for entry in move.entries]))
        for place, move in enumerate(moves)
    ]
    return Moves(
        [move.after if move.before is None else move.before for move in moves],
        in_groups(rows),
        [move.expiry for move in moves],
    )
