"""Three answers, and how loudly a human is called."""

from typing import get_args

from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown


def test_there_is_no_fourth_answer() -> None:
    assert set(get_args(Answer)) == {Done, Rejected, Unknown}


def test_alarms_rise_so_that_the_louder_of_two_is_the_maximum() -> None:
    assert sorted(Alarm) == [Alarm.NONE, Alarm.PAGE, Alarm.CRITICAL, Alarm.HALT]


def test_only_unknown_can_raise_an_alarm_by_itself() -> None:
    assert Unknown("timeout").alarm is Alarm.NONE
    assert not hasattr(Done(), "alarm")
    assert not hasattr(Rejected("ACCOUNT_FROZEN"), "alarm")
