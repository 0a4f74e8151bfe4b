"""The three answers, the order of alarms, and the bounds of stored text."""

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.answers import (
    MAX_EVIDENCE,
    MAX_TEXT,
    Alarm,
    Answer,
    Done,
    Rejected,
    Unknown,
    bounded,
    bounded_evidence,
)


def test_done_rejected_and_unknown_are_all_answers() -> None:
    assert set(get_args(Answer)) == {Done, Rejected, Unknown}


def test_the_more_urgent_of_two_alarms_is_the_maximum() -> None:
    assert sorted(Alarm) == [Alarm.NONE, Alarm.PAGE, Alarm.CRITICAL, Alarm.HALT]


def test_only_unknown_can_raise_an_alarm_by_itself() -> None:
    assert Unknown("timeout").alarm is Alarm.NONE
    assert not hasattr(Done(), "alarm")
    assert not hasattr(Rejected("ACCOUNT_FROZEN"), "alarm")


@given(st.text(st.characters(codec=None), max_size=2 * MAX_TEXT))
def test_text_is_stored_as_far_as_it_can_be(text: str) -> None:
    stored = bounded(text)
    assert len(stored) == min(len(text), MAX_TEXT)
    stored.encode()  # This would raise on half of a surrogate pair.
    assert "\x00" not in stored
    assert all(new in (old, "\ufffd") for old, new in zip(text, stored, strict=False))
    assert bounded(stored) == stored


def test_characters_that_cannot_be_stored_are_replaced() -> None:
    assert bounded("a\x00b\ud800c\n\té") == "a\ufffdb\ufffdc\n\té"
    assert bounded("x" * 501) == "x" * MAX_TEXT


def test_evidence_is_bounded_in_number_and_in_length() -> None:
    assert bounded_evidence({}) == {}
    evidence = {"position": "17"}
    assert bounded_evidence(evidence) == evidence
    assert bounded_evidence(evidence) is not evidence, "the system may still change its own"
    assert bounded_evidence({"a": "y" * 600}) == {"a": "y" * MAX_TEXT}
    assert bounded_evidence({"a": "\0"}) != {"a": "\0"}, "PostgreSQL cannot store it"
    too_much = {f"{n}": "y" * 600 for n in range(MAX_EVIDENCE + 3)}
    assert bounded_evidence(too_much) == {f"{n}": "y" * MAX_TEXT for n in range(MAX_EVIDENCE)}
