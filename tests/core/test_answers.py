"""Three answers, and how loudly a human is called."""

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


def test_there_is_no_fourth_answer() -> None:
    assert set(get_args(Answer)) == {Done, Rejected, Unknown}


def test_alarms_rise_so_that_the_louder_of_two_is_the_maximum() -> None:
    assert sorted(Alarm) == [Alarm.NONE, Alarm.PAGE, Alarm.CRITICAL, Alarm.HALT]


def test_only_unknown_can_raise_an_alarm_by_itself() -> None:
    assert Unknown("timeout").alarm is Alarm.NONE
    assert not hasattr(Done(), "alarm")
    assert not hasattr(Rejected("ACCOUNT_FROZEN"), "alarm")


@given(st.text(st.characters(codec=None), max_size=2 * MAX_TEXT))
def test_words_of_strangers_are_kept_as_far_as_they_can_be(text: str) -> None:
    kept = bounded(text)
    assert len(kept) == min(len(text), MAX_TEXT)
    kept.encode()  # No half of a surrogate pair is left.
    assert "\x00" not in kept
    assert all(now in (was, "\ufffd") for was, now in zip(text, kept, strict=False))
    assert bounded(kept) == kept


def test_what_cannot_be_kept_is_marked() -> None:
    assert bounded("a\x00b\ud800c\n\té") == "a\ufffdb\ufffdc\n\té"
    assert bounded("x" * 501) == "x" * MAX_TEXT


def test_evidence_is_bounded_in_number_and_in_length() -> None:
    assert bounded_evidence({}) == {}
    one = {"position": "17"}
    assert bounded_evidence(one) == one
    assert bounded_evidence(one) is not one, "a system may go on using its own"
    assert bounded_evidence({"a": "y" * 600}) == {"a": "y" * MAX_TEXT}
    assert bounded_evidence({"a": "\0"}) != {"a": "\0"}, "no database can hold that"
    much = {f"{n}": "y" * 600 for n in range(MAX_EVIDENCE + 3)}
    assert bounded_evidence(much) == {f"{n}": "y" * MAX_TEXT for n in range(MAX_EVIDENCE)}
