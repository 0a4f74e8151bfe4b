"""Groups of moves: their parts, their replacement after more answers, and their hashes."""

from uuid import UUID

import pytest

from tests.core.samples import ALL_FLOWS, resting
from tests.moves import steps_of
from tidegate.core.answers import Alarm
from tidegate.core.flow import Flow
from tidegate.core.kind import GENESIS, Transfer
from tidegate.core.moves import MoveGroup, Moves, in_groups
from tidegate.core.transfer import HistoryEntry, chain_hashes, entry_hash, hash_form, with_time
from tidegate.core.transfer import step_with as step

[FLOW] = [flow for flow in ALL_FLOWS if flow.name == "internal_transfer"]
PENDING = "TARGET_PENDING"


def waiting(flow: Flow, count: int) -> list[Transfer]:
    transfer = resting(flow, PENDING, version=2, undoes=1)
    return [transfer.replace(id=UUID(int=(5 << 90) + n), amount=n + 1) for n in range(count)]


def stays(transfer: Transfer, attempt: str = "") -> MoveGroup:
    kind, rests = transfer.kind, False
    no_change = step(kind, kind, (), 0.0, attempt, Alarm.NONE, rests, None)
    return MoveGroup(no_change, [0, 1, 2])


def test_a_part_of_a_group_keeps_its_indexes_and_evidence() -> None:
    group = stays(waiting(FLOW, 1)[0])._replace(evidences=(None, [{"a": "1"}, {}, {"a": "3"}]))
    assert group.part([True, False, True]) == MoveGroup(
        group.step, [0, 2], (None, [{"a": "1"}, {"a": "3"}])
    )
    assert group.row(0) == ({}, {"a": "1"})


def test_moves_after_a_regroup_use_the_new_groups() -> None:
    batch = waiting(FLOW, 3)
    before, after = stays(batch[0]), stays(batch[0], "timeout")
    moves = Moves(batch, [before])
    assert [moves.move(row).attempt for row in range(3)] == ["", "", ""]
    moves.regroup([MoveGroup(before.step, [0, 2]), MoveGroup(after.step, [1])])
    assert [moves.move(row).attempt for row in range(3)] == ["", "timeout", ""]
    assert steps_of(moves) == [before.step, after.step, before.step]


def test_an_index_without_a_group_is_a_bug() -> None:
    batch = waiting(FLOW, 3)
    with pytest.raises(AssertionError, match="each index is in one group"):
        Moves(batch, [MoveGroup(stays(batch[0]).step, [0, 2])]).move(0)


def test_each_entry_of_a_step_needs_its_evidence() -> None:
    with pytest.raises(AssertionError, match="each entry needs its evidence"):
        in_groups([(0, stays(waiting(FLOW, 1)[0]).step, ({},))])


@pytest.mark.parametrize("evidences", [None, [{}, {"b": "2", "a": "1"}, {"x": "y"}]])
def test_a_column_of_hashes_equals_the_hashes_of_single_rows(
    evidences: list[dict[str, str]] | None,
) -> None:
    batch = waiting(FLOW, 3)
    entry = HistoryEntry(2, (PENDING, "COMMITTED"), "credit", "done")
    form = with_time(hash_form(FLOW.name, entry), 99)
    hashes = chain_hashes([GENESIS] * 3, form, [t.id.int for t in batch], evidences)
    expected = evidences or [{}, {}, {}]
    assert hashes == [
        entry_hash(GENESIS, t.id, FLOW.name, HistoryEntry(*fields_of(entry), evidence), 99)
        for t, evidence in zip(batch, expected, strict=True)
    ]


def fields_of(entry: HistoryEntry) -> tuple[int, tuple[str, ...], str, str, str]:
    return entry.version, entry.path, entry.verb, entry.answer, entry.reason
