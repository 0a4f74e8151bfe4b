"""A batch is computed by columns: each row gets the same result as if it were alone."""

import random
from itertools import count
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from tests.core.samples import ALL_FLOWS, CONTEXT, resting
from tests.core.test_kinds import CHANGES, OWN
from tests.moves import moves_of, steps_of
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.decide import decide
from tidegate.core.flow import FEES, Flow
from tidegate.core.kind import Transfer
from tidegate.core.transfer import entry_hash, step_of
from tidegate.engine.kind_rules import KindRules
from tidegate.engine.local_answers import apply_answers
from tidegate.engine.write_batch import Creation, WriteBatch, _first_moves
from tidegate.store.rows import entry_columns, state_columns
from tidegate.store.written_rows import written

AT_US = 1_700_000_000_000_000
ANSWERS: list[Answer] = [
    Done(),
    Done(),
    Done({"position": "17"}),
    Done({"position": "18", "delta": "0"}),
    Rejected("INSUFFICIENT_BALANCE", {"position": "19"}),
    Rejected("CLOSED"),
    Unknown("timeout"),
    Unknown("contradiction", Alarm.HALT),
]
ASKING_STATES = [(flow, str(s)) for flow in ALL_FLOWS for s in flow.rows if flow.ask(s) is not None]
FIXED = {"flow", "state", "lane", "party_templates"}


def context() -> Any:
    flows = {flow.name: flow for flow in ALL_FLOWS}
    rules = KindRules(flows, frozenset(CONTEXT.irreversible))
    return SimpleNamespace(
        flows=flows, rules=rules, local={}, decision_context=lambda _="": CONTEXT
    )


def rows_of(flow: Flow, state: str, numbers: Any) -> list[Transfer]:
    """One transfer, and others that differ from it in exactly one field, each field in turn."""
    base = resting(flow, state, version=2, undoes=1)
    rows = [base]
    for name, changes in CHANGES.items():
        if name not in FIXED and (name != "fee" or FEES in flow.roles):
            rows.append(base.replace(**changes))
    rows += [base.replace(**{name: value}) for name, value in OWN.items() if name != "owner"]
    return [row.replace(id=UUID(int=(7 << 90) + next(numbers))) for row in rows]


def mixed(seed: int) -> tuple[list[Transfer], list[Answer]]:
    """Rows of all flows and states in random order, each with a random answer."""
    dice, numbers = random.Random(seed), count(1)
    chosen = ASKING_STATES if seed % 3 == 0 else dice.sample(ASKING_STATES, 2)
    batch = [row for flow, state in chosen for row in rows_of(flow, state, numbers)]
    dice.shuffle(batch)
    answers = ANSWERS if seed % 2 else ANSWERS[:4]
    return batch, [dice.choice(answers) for _ in batch]


@pytest.mark.parametrize("seed", range(24))
def test_each_row_of_a_batch_moves_as_it_would_alone(seed: int) -> None:
    batch, answers = mixed(seed)
    moves = _first_moves(cast("Any", context()), WriteBatch(batch, answers))
    alone = [decide(_flow(t), t, a, CONTEXT) for t, a in zip(batch, answers, strict=True)]
    assert [moves.move(row) for row in range(len(moves))] == alone
    assert steps_of(moves) == [step_of(move) for move in alone]
    indexes = sorted(index for group in moves.groups for index in group.indexes)
    assert indexes == list(range(len(batch)))


@pytest.mark.parametrize("seed", range(24))
def test_a_batch_is_written_like_its_rows_one_by_one(seed: int) -> None:
    batch, answers = mixed(seed)
    dice = random.Random(seed)
    leased = [dice.random() < dice.choice((0.0, 0.5, 1.0)) for _ in batch]
    moves = _first_moves(cast("Any", context()), WriteBatch(batch, answers))
    together = written(moves, leased, AT_US)
    for row, (transfer, hashes) in enumerate(zip(together.rows, together.chains(), strict=True)):
        move = moves.move(row)
        alone = written(moves_of([move]), [leased[row]], AT_US)
        assert (transfer, hashes) == (alone.rows[0], alone.chains()[0])
        head = batch[row].head_hash
        for entry, hashed in zip(move.entries, hashes, strict=True):
            head = entry_hash(head, transfer.id, transfer.flow, entry, AT_US)
            assert head == hashed
        assert transfer.head_hash == head


@pytest.mark.parametrize("seed", range(6))
def test_a_second_answer_goes_to_the_groups_that_were_asked(seed: int) -> None:
    """One local system answers after another. Groups that it was not asked about do not change."""
    batch, answers = mixed(seed * 2)
    moves = _first_moves(cast("Any", context()), WriteBatch(batch, answers))
    before = [moves.move(row) for row in range(len(moves))]
    open_ = [g for g in moves.groups if g.step.after.lane is not None and not g.step.rests]
    asked = sorted(index for group in open_[::2] for index in group.indexes)
    dice = random.Random(seed)
    later = [dice.choice(ANSWERS[:6]) for _ in asked]
    apply_answers(cast("Any", context()), moves, asked, later, CONTEXT)
    for row, move in enumerate(before):
        if row not in asked:
            assert moves.move(row) == move
            continue
        further = decide(_flow(move.after), move.after, later[asked.index(row)], CONTEXT)
        assert steps_of(moves)[row] is step_of(move).then(step_of(further))
        evidence = [entry.evidence for entry in (*move.entries, *further.entries)]
        assert [entry.evidence for entry in moves.move(row).entries] == evidence


@pytest.mark.parametrize("seed", range(8))
def test_the_columns_of_a_batch_contain_each_row_and_each_answer_once(seed: int) -> None:
    """Decode the columns as the server does: each answer is beside its own id and hash."""
    batch, answers = mixed(seed)
    moves = _first_moves(cast("Any", context()), WriteBatch(batch, answers))
    together = written(moves, [True] * len(batch), AT_US)
    entries = entry_columns(together)
    ids, hashes = _cells(entries["history_ids"], 16), _cells(entries["history_hashes"], 32)
    expected = {
        (t.id.bytes, hashed)
        for t, chain in zip(together.rows, together.chains(), strict=True)
        for hashed in chain
    }
    assert len(ids) == len(hashes) == len(expected)
    assert set(zip(ids, hashes, strict=True)) == expected
    states = state_columns(together, 10.0)
    assert _cells(states["ids"], 16) == [t.id.bytes for t in together.rows]
    assert _cells(states["hashes"], 32) == [t.head_hash for t in together.rows]


def test_creations_are_grouped_by_their_kinds_in_the_order_of_the_batch() -> None:
    batch = [row for f, s in ASKING_STATES[:2] for row in rows_of(f, s, count(1))]
    random.Random(1).shuffle(batch)
    request = cast("Any", SimpleNamespace(lives_s=None, expires_us=None))
    work = WriteBatch(batch, creations=[Creation(request) for _ in batch])
    moves = _first_moves(cast("Any", context()), work)
    assert [moves.transfer_after(row).kind for row in range(len(moves))] == [t.kind for t in batch]
    assert all(list(g.indexes) == sorted(g.indexes) for g in moves.groups)
    assert moves.created


def test_an_empty_batch_has_no_moves() -> None:
    moves = _first_moves(cast("Any", context()), WriteBatch([], []))
    assert not moves
    assert not moves.created


def _flow(transfer: Transfer) -> Flow:
    [flow] = [flow for flow in ALL_FLOWS if flow.name == transfer.flow]
    return flow


def _cells(column: object, size: int) -> list[bytes]:
    """The values of a binary array whose values have the same length."""
    assert isinstance(column, bytes)
    body = column[20:]
    starts = range(4, len(body), 4 + size)
    return [body[start : start + size] for start in starts]
