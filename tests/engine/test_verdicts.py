"""Where a transfer's money is, by what the systems hold: the rules alone."""

from enum import StrEnum
from uuid import UUID

import msgspec
import pytest

from tidegate.core.answers import Answer, Done, Rejected, Unknown
from tidegate.core.flow import Ask, End, Flow, Place, Verb
from tidegate.core.ports import Account
from tidegate.core.transfer import GENESIS, Entry, Party
from tidegate.engine.verdicts import Found, Wanted, judge, ledger_found
from tidegate.store.auditing import Case, Kept, Operation, Row

ID = UUID(int=9)


class State(StrEnum):
    HOLDING = "HOLDING"
    DECIDING = "DECIDING"
    CAPTURING = "CAPTURING"
    RELEASING = "RELEASING"
    PAID = "PAID"
    FREED = "FREED"
    NEVER = "NEVER"


HELD = Flow(
    "held",
    first=State.HOLDING,
    rows={
        State.HOLDING: Ask(
            Place.SOURCE, "source", Verb.HOLD, done=State.DECIDING, rejected=State.NEVER
        ),
        State.DECIDING: Ask(
            Place.HELD, "judge", Verb.CHECK, done=State.CAPTURING, rejected=State.RELEASING
        ),
        State.CAPTURING: Ask(Place.HELD, "source", Verb.CAPTURE, done=State.PAID),
        State.RELEASING: Ask(Place.HELD, "source", Verb.RELEASE, done=State.FREED),
        State.PAID: End(Place.TARGET),
        State.FREED: End(Place.SOURCE),
        State.NEVER: End(Place.SOURCE),
    },
)
EFFECTS = {"hold": (-5, 5), "capture": (0, -5), "release": (5, -5)}


def case(state: State, *answers: tuple[str, str, State, State]) -> Case:
    """A transfer with the history given, and a ledger that did just that."""
    parties = {"source": Party("ledger", "FUNDING", 1), "judge": Party("desk", "", 1)}
    lane = None if HELD.is_end(state) else "ledger"
    row = Row(ID, 1, "held", state, lane, len(answers), parties, 3, 5, GENESIS, keyed=True)
    history, operations = [], []
    for version, (verb, answer, asked, to) in enumerate(answers):
        history.append(Kept(Entry(version, (asked, to), verb, answer), 0, GENESIS))
        if verb in EFFECTS:
            delta, held = EFFECTS[verb] if answer == "done" else (0, 0)
            account = Account(1, "FUNDING", 3)
            operations.append(Operation(ID, version, account, verb, 5, answer, delta, held, 0))
    return Case(row, history, operations)


HOLD = ("hold", "done", State.HOLDING, State.DECIDING)
YES = ("check", "done", State.DECIDING, State.CAPTURING)
NO = ("check", "rejected", State.DECIDING, State.RELEASING)
CAPTURE = ("capture", "done", State.CAPTURING, State.PAID)
RELEASE = ("release", "done", State.RELEASING, State.FREED)


@pytest.mark.parametrize(
    "sound",
    [
        case(State.HOLDING),
        case(State.DECIDING, HOLD),
        case(State.CAPTURING, HOLD, YES),
        case(State.PAID, HOLD, YES, CAPTURE),
        case(State.FREED, HOLD, NO, RELEASE),
        case(State.NEVER, ("hold", "rejected", State.HOLDING, State.NEVER)),
    ],
)
def test_every_life_of_a_hold_is_sound(sound: Case) -> None:
    assert judge(sound, HELD, ledger_found(sound, "ledger")).problems == []


def test_a_hold_that_is_closed_twice_is_found() -> None:
    paid = case(State.PAID, HOLD, YES, CAPTURE)
    found = ledger_found(paid, "ledger")
    found["ledger", 3] = Found("done", 0, moved=True, local=True)
    [problem] = judge(paid, HELD, found).problems
    assert "ledger moved money under 3, and no answer says so" in problem


def test_a_local_operation_ahead_of_its_answer_is_found() -> None:
    waiting = case(State.CAPTURING, HOLD, YES)
    found = ledger_found(waiting, "ledger")
    outside = Found("done", -5, moved=True)
    assert judge(waiting, HELD, {**found, ("ledger", 2): outside}).problems == []
    local = outside._replace(local=True)
    assert judge(waiting, HELD, {**found, ("ledger", 2): local}).problems != []


def test_a_party_that_a_person_has_replaced_is_still_known_by_its_operations() -> None:
    freed = case(State.FREED, HOLD, NO, RELEASE)
    found = ledger_found(freed, "ledger")
    moved = {("core", 0): found.pop(("ledger", 0))._replace(local=False), **found}
    assert "ledger holds nothing under 0, not done" in "".join(judge(freed, HELD, moved).problems)
    said = freed.history[2]
    by_person = said._replace(entry=msgspec.structs.replace(said.entry, actor="ann and bob"))
    resolved = freed._replace(history=[*freed.history[:2], by_person])
    assert judge(resolved, HELD, moved).problems == []


ROW = case(State.PAID).row
BY_HISTORY = Entry(0, ("A", "B"), "credit", "done")
BY_PERSON = Entry(0, ("A", "B"), "credit", "done", actor="ann and bob")
ARRIVED = Found("done", 5, moved=True)


@pytest.mark.parametrize(
    ("entry", "answer", "found"),
    [
        (BY_HISTORY, Done({"position": "7"}), ARRIVED),
        (BY_HISTORY, Done({"position": "8"}), None),  # Later than the position looked at.
        (BY_HISTORY, Done({"position": "7", "delta": "0"}), Found("done", 0, moved=False)),
        (BY_HISTORY, Rejected("NO", {"position": "7"}), Found("rejected", 0, moved=False)),
        (BY_HISTORY, None, None),
        (BY_HISTORY, Unknown("RETIRED"), ARRIVED),  # It was looked at when it was there.
        (BY_PERSON, None, ARRIVED),  # Two people said so: the sums will tell.
        (None, None, None),
        (None, Unknown("RETIRED"), None),
    ],
)
def test_what_a_core_holds_under_a_key(
    entry: Entry | None, answer: Answer | None, found: Found | None
) -> None:
    assert Wanted(ROW, "core", 0, Verb.CREDIT, entry).by_answer(answer, 7) == found
