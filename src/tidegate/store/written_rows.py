"""The rows that a batch of moves writes to the store, and the hashes of its answers."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from tidegate.core.kind import Transfer, TransferKind
from tidegate.core.moves import MoveGroup, Moves
from tidegate.core.transfer import HashForm, Step, chain_hashes, hash_form, with_time

V = TypeVar("V")


@lru_cache(4096)
def _forms(step: Step) -> tuple[HashForm, ...]:
    return tuple(hash_form(step.after.flow, line) for line in step.entry_forms)


@lru_cache(4096)
def _leased(kind: TransferKind) -> TransferKind:
    """Count the attempt of a leased row now: no claim will count it before the row is asked."""
    return kind.replace(attempts=kind.attempts + 1)


class WrittenGroup(NamedTuple):
    """Rows of a group that are all leased or all not: their shared values, and their hashes."""

    group: MoveGroup
    kind: TransferKind  # As it is written to the store.
    leased: bool
    hashes: tuple[Sequence[bytes], ...]  # One column for each answer of the step.

    @property
    def step(self) -> Step:
        return self.group.step

    @property
    def is_held(self) -> bool:
        """Whether the rows are handed over in memory and left out of the index of due rows. Not if
        the state has a deadline: it may come before the lease ends, and only the index finds it.
        Not if there was no answer: the row may have a deadline from before.
        """
        step = self.step
        answered = step.before is None or bool(step.entry_forms)
        return self.leased and step.deadline_s is None and answered


class WrittenRows(NamedTuple):
    """A batch as it is in the store after the commit."""

    rows: Sequence[Transfer]
    groups: Sequence[WrittenGroup]

    def chains(self) -> list[list[bytes]]:
        """For each row, the hashes of its answers."""
        chains: list[list[bytes]] = [[] for _ in self.rows]
        for written_group in self.groups:
            for number, index in enumerate(written_group.group.indexes):
                chains[index] = [hashes[number] for hashes in written_group.hashes]
        return chains

    def held(self) -> list[UUID]:
        """The ids of the transfers that this batch hands over inside the process."""
        held = [written_group for written_group in self.groups if written_group.is_held]
        return [self.rows[i].id for written_group in held for i in written_group.group.indexes]


def written(moves: Moves, leased: Sequence[bool], at_us: int) -> WrittenRows:
    """The rows after these moves. `leased` has one value per row of the batch."""
    groups = []
    parts: list[tuple[Sequence[int], list[Transfer]]] = []
    for group, is_leased in _by_lease(moves.groups, leased):
        kind = _leased(group.step.after) if is_leased else group.step.after
        before = [moves.transfers[index] for index in group.indexes]
        hashes: list[Sequence[bytes]] = []
        heads: Sequence[bytes] = [t.head_hash for t in before]
        numbers = [t.id.int for t in before]
        for form, evidences in zip(_forms(group.step), group.evidences, strict=True):
            heads = chain_hashes(heads, with_time(form, at_us), numbers, evidences)
            hashes.append(heads)
        groups.append(WrittenGroup(group, kind, is_leased, tuple(hashes)))
        parts.append((group.indexes, _rows(kind, before, heads if hashes else None, at_us)))
    return WrittenRows(in_order(parts, len(moves)), groups)


def _rows(
    kind: TransferKind, before: Sequence[Transfer], heads: Sequence[bytes] | None, at_us: int
) -> list[Transfer]:
    """The rows as they are written. Without an answer, `updated_us` and `waited_s` stay."""
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
    """Split the groups so that the rows of each are all leased or all not."""
    for group in groups:
        row_leased = [leased[index] for index in group.indexes]
        if all(row_leased) or not any(row_leased):
            yield group, row_leased[0]
        else:
            yield group.part(row_leased), True
            yield group.part([not row for row in row_leased]), False


def in_order(parts: Sequence[tuple[Sequence[int], list[V]]], count: int) -> list[V]:
    """Join the columns of groups into one column, in the order of the batch."""
    if len(parts) == 1:
        return parts[0][1]
    column: list[Any] = [None] * count
    for indexes, values in parts:
        for index, value in zip(indexes, values, strict=True):
            column[index] = value
    return column
