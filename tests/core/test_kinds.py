"""A decision for one transfer of a kind is the same for every other transfer of it."""

import hashlib
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import ALL_FLOWS, CONTEXT, parties_of, resting
from tests.moves import moves_of, steps_of
from tidegate.core.answers import Done, Rejected, Unknown
from tidegate.core.decide import decide, done_step
from tidegate.core.flow import FEES, Flow
from tidegate.core.kind import Party, Transfer, TransferKind
from tidegate.core.moves import MoveGroup, Moves
from tidegate.core.transfer import (
    Move,
    entry_hash,
    hash_form,
    link_hash,
    question_form,
    question_of,
    questions_of,
    step_of,
)
from tidegate.store.written_rows import written

ASKING = [
    pytest.param(flow, str(state), id=f"{flow.name}-{state}")
    for flow in ALL_FLOWS
    for state in flow.rows
    if flow.ask(state) is not None
]
# Fields of a single transfer. All other fields belong to its kind.
OWN: dict[str, Any] = {
    "id": UUID(int=9 << 80),
    "owner": 8,
    "amount": 5,
    "parent": UUID(int=3),
    "cid": "another",
    "head_hash": bytes(31) + b"x",
    "trace": "t-9",
    "created_us": 77,
    "updated_us": 78,
    "waited_s": 1e6,
}
# One change of each field of a kind. Templates and details are changed by parties and detail.
CHANGES: dict[str, dict[str, Any]] = {
    "flow": {"flow": "other"},
    "state": {"state": "OTHER"},
    "lane": {"lane": "elsewhere"},
    "party_templates": {"parties": {"source": Party("a", "b", 1)}},
    "asset_id": {"asset_id": 9},
    "fee": {"fee": 3},
    "version": {"version": 7},
    "attempts": {"attempts": 7},
    "retries": {"retries": 7},
    "paged": {"paged": True},
    "undoes": {"undoes": 0},
    "details": {"detail": {"memo": "x"}},
    "space": {"space": "operator"},
    "error": {"error": "BEFORE"},
    "expired": {"expired": True},
}


def test_the_fields_of_a_transfer_and_of_a_kind_are_all_listed() -> None:
    assert set(Transfer.__struct_fields__) == {"kind", *OWN}
    assert set(TransferKind.__struct_fields__) == set(CHANGES)


@pytest.mark.parametrize("field", CHANGES)
def test_transfers_that_differ_in_a_field_of_the_kind_have_two_kinds(field: str) -> None:
    [flow] = [flow for flow in ALL_FLOWS if flow.name == "internal_transfer"]
    one = resting(flow, "SOURCE_PENDING")
    other = one.replace(**CHANGES[field])
    assert other.kind is not one.kind
    assert other.replace(**{name: getattr(one, name) for name in CHANGES[field]}) == one


@pytest.mark.parametrize("field", OWN)
def test_a_field_of_a_single_transfer_does_not_change_its_kind(field: str) -> None:
    one = resting(ALL_FLOWS[0], str(ALL_FLOWS[0].arrive(ALL_FLOWS[0].first)[-1]))
    # The owner of every party changes, too: with a party of another owner it is another kind.
    parties = {role: Party(p.system, p.book, 8) for role, p in one.parties.items()}
    also = {"parties": parties} if field == "owner" else {}
    assert one.replace(**{field: OWN[field]}, **also).kind is one.kind


@pytest.mark.parametrize(("flow", "state"), ASKING)
@pytest.mark.parametrize("field", [None, *CHANGES])
def test_a_done_gives_the_same_for_a_kind_and_for_one_transfer(
    flow: Flow, state: str, field: str | None
) -> None:
    """By the step of its kind or decided alone: the same move, question, row and hash."""
    fixed = {None, "flow", "state", "lane", "party_templates"} | (
        set() if FEES in flow.roles else {"fee"}
    )
    changes = {} if field in fixed else CHANGES[str(field)]
    one = resting(flow, state, version=2, undoes=1).replace(**changes)
    for name, value in OWN.items():
        owner = value if name == "owner" else one.owner
        parties = {role: Party(p.system, p.book, owner) for role, p in one.parties.items()}
        other = one.replace(**{name: value}, parties=parties)
        assert other.kind is one.kind
        answer = Done({"position": "17"})
        alone = decide(flow, other, answer, CONTEXT)
        assert step_of(alone) is done_step(flow, one.kind, CONTEXT)
        group = MoveGroup(done_step(flow, one.kind, CONTEXT), [0], ([answer.evidence],))
        by_kind = Moves([other], [group])
        assert by_kind.move(0) == alone
        form = question_form(flow, one.kind)
        assert questions_of(form, one.kind, [other]) == [question_of(flow, other)]
        batch = written(by_kind, [True], 99)
        [row], [hashes] = batch.rows, batch.chains()
        singly = written(moves_of([alone]), [True], 99)
        assert (singly.rows, singly.chains()) == (batch.rows, batch.chains())
        assert hashes == [entry_hash(other.head_hash, other.id, other.flow, alone.entries[0], 99)]
        assert (row.attempts, row.updated_us, row.waited_s) == (1, 99, 0.0)


@given(st.sampled_from(ASKING), st.sampled_from([Rejected("NO"), Unknown("?"), Done({"a": "b"})]))
def test_a_move_survives_the_conversion_to_columns(where: Any, answer: Any) -> None:
    flow, state = where.values
    one = resting(flow, state, version=2, undoes=1)
    move = decide(flow, one, answer, CONTEXT)
    moves = moves_of([move])
    assert (len(moves), moves.created, moves.move(0)) == (1, False, move)
    assert steps_of(moves)[0].start == move.start == 2
    [created] = [moves_of([Move(None, one)])]
    assert (created.created, steps_of(created)[0].start, created.move(0).start) == (True, 0, 0)


def test_a_hash_covers_one_json_array() -> None:
    """The expected hash is computed as an independent checker of the history would do it."""
    [flow] = [flow for flow in ALL_FLOWS if flow.name == "internal_transfer"]
    one = resting(flow, "TARGET_PENDING", version=1)
    evidence = {"b": "<½>", "a": '"'}
    [entry] = decide(flow, one, Done(evidence), CONTEXT).entries
    row = [one.id.hex, one.flow, entry.version, list(entry.path), entry.verb, entry.answer]
    row += [entry.reason, sorted(evidence.items()), entry.actor, 5]
    expected = hashlib.sha256(bytes(32) + msgspec.json.encode(row)).digest()
    assert link_hash(bytes(32), hash_form(one.flow, entry), one.id, evidence, 5) == expected


def test_parties_survive_the_conversion_to_templates() -> None:
    for flow in ALL_FLOWS:
        state = str(flow.arrive(flow.first)[-1])
        assert resting(flow, state).parties == parties_of(flow)
