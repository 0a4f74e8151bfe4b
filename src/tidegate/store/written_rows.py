"""What a batch of moves becomes in the store: its rows, and the hashes of its answers."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from tidegate.core.kind import Transfer, TransferKind
from tidegate.core.moves import MoveGroup, Moves
from tidegate.core.transfer import Form, Step, chain, dated, hashed_form

V = TypeVar("V")


@lru_cache(4096)
def _forms(step: Step) -> tuple[Form, ...]:
    return tuple(hashed_form(step.after.flow, line) for line in step.lines)


@lru_cache(4096)
def _leased(kind: TransferKind) -> TransferKind:
    """A leased row is about to be asked about without a claim that would count the attempt."""
    return kind.but(attempts=kind.attempts + 1)


class WrittenGroup(NamedTuple):
    """The rows of a group that are all leased, or all not: what they have in common, and hashes."""

    group: MoveGroup
    kind: TransferKind  # As it is in the store.
    leased: bool
    hashes: tuple[Sequence[bytes], ...]  # A column for each line of the step.

    @property
    def step(self) -> Step:
        return self.group.step

    @property
    def is_held(self) -> bool:
        """Handed over without being found by when it is due. A row under a deadline is due before
        its lease ends, and only its due time tells that; one that nothing was answered about may
        have been under a deadline before.
        """
        step = self.step
        fresh = step.before is None or bool(step.lines)
        return self.leased and step.deadline_s is None and fresh


class WrittenRows(NamedTuple):
    """A batch as it is in the store when it has committed."""

    rows: Sequence[Transfer]
    marks: Sequence[WrittenGroup]

    def chains(self) -> list[list[bytes]]:
        """Of each row, the hashes of its answers."""
        found: list[list[bytes]] = [[] for _ in self.rows]
        for mark in self.marks:
            for number, place in enumerate(mark.group.places):
                found[place] = [hashes[number] for hashes in mark.hashes]
        return found

    def held(self) -> list[UUID]:
        """The ids of what this batch hands over inside the process."""
        held = [mark for mark in self.marks if mark.is_held]
        return [self.rows[place].id for mark in held for place in mark.group.places]


def written(moves: Moves, leased: Sequence[bool], at_us: int) -> WrittenRows:
    marks = []
    found: list[tuple[Sequence[int], list[Transfer]]] = []
    for group, held in _by_lease(moves.groups, leased):
        kind = _leased(group.step.after) if held else group.step.after
        before = [moves.transfers[place] for place in group.places]
        hashes: list[Sequence[bytes]] = []
        heads: Sequence[bytes] = [t.head_hash for t in before]
        numbers = [t.id.int for t in before]
        for form, evidences in zip(_forms(group.step), group.evidences, strict=True):
            heads = chain(heads, dated(form, at_us), numbers, evidences)
            hashes.append(heads)
        marks.append(WrittenGroup(group, kind, held, tuple(hashes)))
        found.append((group.places, _rows(kind, before, heads if hashes else None, at_us)))
    return WrittenRows(in_order(found, len(moves)), marks)


def _rows(
    kind: TransferKind, before: Sequence[Transfer], heads: Sequence[bytes] | None, at_us: int
) -> list[Transfer]:
    """As they are written. Without an answer a transfer has waited for as long as before."""
    if heads is None:
        return [
            Transfer(
                *(kind, t.id, t.owner, t.amount, t.parent, t.cid, t.head_hash, t.trace),
                *(t.created_us or at_us, t.updated_us or at_us, t.waited_s),
            )
            for t in before
        ]
    return [
        Transfer(
            kind,
            t.id,
            t.owner,
            t.amount,
            t.parent,
            t.cid,
            head,
            t.trace,
            t.created_us or at_us,
            at_us,
        )
        for t, head in zip(before, heads, strict=True)
    ]


def _by_lease(
    groups: Sequence[MoveGroup], leased: Sequence[bool]
) -> Iterator[tuple[MoveGroup, bool]]:
    """Groups of rows that are all leased, or all not."""
    for group in groups:
        held = [leased[place] for place in group.places]
        if all(held) or not any(held):
            yield group, held[0]
        else:
            yield group.part(held), True
            yield group.part([not each for each in held]), False


def in_order(parts: Sequence[tuple[Sequence[int], list[V]]], count: int) -> list[V]:
    """Columns of groups as one column, in the order of the batch."""
    if len(parts) == 1:
        return parts[0][1]
    column: list[Any] = [None] * count
    for places, values in parts:
        for place, value in zip(places, values, strict=True):
            column[place] = value
    return column
