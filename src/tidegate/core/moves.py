"""The moves of a batch in columns: transfers that take the same step form a group."""

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import NamedTuple

import msgspec

from tidegate.core.answers import NO_EVIDENCE, Evidence
from tidegate.core.kind import Transfer
from tidegate.core.transfer import EvidenceColumn, Expiry, HistoryEntry, Move, Step


class MoveGroup(NamedTuple):
    """The moves of a batch that take the same step. What differs between them is in columns."""

    step: Step
    indexes: Sequence[int]  # Of their transfers in the batch, in ascending order.
    evidences: tuple[EvidenceColumn, ...] = ()  # One column for each entry of the step.

    def row(self, number: int) -> tuple[Evidence, ...]:
        """The evidence of one move: one item for each entry of the step."""
        return tuple([NO_EVIDENCE if c is None else c[number] for c in self.evidences])

    def part(self, chosen: Sequence[bool]) -> "MoveGroup":
        """The moves of the group that are chosen."""
        columns = [None if c is None else list(compress(c, chosen)) for c in self.evidences]
        return MoveGroup(self.step, list(compress(self.indexes, chosen)), tuple(columns))


class Moves:
    """A batch of moves in columns: the transfers before their moves, and groups by step.

    Each index of the batch is in exactly one group.
    """

    __slots__ = ("_members", "expiries", "groups", "transfers")

    def __init__(
        self,
        transfers: Sequence[Transfer],
        groups: Sequence[MoveGroup],
        expiries: Sequence[Expiry | None] = (),  # Of transfers that are created. Empty: none.
    ) -> None:
        self.transfers, self.groups, self.expiries = transfers, groups, expiries
        self._members: list[tuple[MoveGroup, int]] | None = None

    def __len__(self) -> int:
        return len(self.transfers)

    def regroup(self, groups: Sequence[MoveGroup]) -> None:
        """Replace the groups after more answers."""
        self.groups, self._members = groups, None

    @property
    def created(self) -> bool:
        """Whether the batch creates its transfers. It creates all of them or none."""
        return bool(self.groups) and self.groups[0].step.before is None

    def transfer_after(self, index: int) -> Transfer:
        """The transfer at an index after its step, which is not written yet."""
        transfer, step = self.transfers[index], self._member(index)[0].step
        waited_s = 0.0 if step.entry_forms else transfer.waited_s
        return msgspec.structs.replace(transfer, kind=step.after, waited_s=waited_s)

    def move(self, index: int) -> Move:
        group, number = self._member(index)
        step = group.step
        pairs = zip(step.entry_forms, group.row(number), strict=True)
        return Move(
            None if step.before is None else self.transfers[index],
            self.transfer_after(index),
            tuple([HistoryEntry(*form[:5], evidence, form.actor) for form, evidence in pairs]),
            step.delay_s,
            step.attempt,
            step.alarm,
            step.rests,
            step.deadline_s,
            self.expiries[index] if self.expiries else None,
        )

    def _member(self, index: int) -> tuple[MoveGroup, int]:
        """The group of an index of the batch, and its number in that group."""
        members = self._members
        if members is None:
            pairs = {i: (g, number) for g in self.groups for number, i in enumerate(g.indexes)}
            assert len(pairs) == len(self), "each index is in one group"
            members = self._members = [pairs[i] for i in range(len(self))]
        return members[index]


def in_groups(rows: Iterable[tuple[int, Step, tuple[Evidence, ...]]]) -> list[MoveGroup]:
    """Group single moves by step. A row is an index, its step, and the evidence per entry."""
    groups: dict[Step, tuple[list[int], list[tuple[Evidence, ...]]]] = {}
    for index, step, evidences in rows:
        assert len(evidences) == len(step.entry_forms), "each entry needs its evidence"
        indexes, evidence_rows = groups.setdefault(step, ([], []))
        indexes.append(index)
        evidence_rows.append(evidences)
    return [
        MoveGroup(step, indexes, tuple(map(_column, zip(*evidence_rows, strict=True))))
        for step, (indexes, evidence_rows) in groups.items()
    ]


def _column(evidences: Sequence[Evidence]) -> EvidenceColumn:
    return evidences if any(evidences) else None
