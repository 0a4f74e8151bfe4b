"""Sends each alert once, again when its count has doubled, and once more when it is cleared."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from tidegate.core.answers import Alarm
from tidegate.engine.alerts import Alert

Subject: TypeAlias = tuple[str, str]  # The rule, and what it is about: a lane, an owner, a flow.


class Condition(NamedTuple):
    """A rule that is violated, and for how long it must be violated before the alert is sent."""

    alert: Alert
    for_s: float = 0.0


class AlertReporter:
    def __init__(self, alert: Callable[[Alert], None]) -> None:
        self._alert = alert
        self._since_s: dict[Subject, float] = {}
        self._reported: dict[Subject, Alert] = {}

    def judge(self, found: Mapping[Subject, Condition], now_s: float) -> None:
        """Send alerts that are new and have lasted long enough. Clear those that are over."""
        for subject, condition in found.items():
            # If the clock was set back, the alert must not be delayed by that.
            since_s = min(self._since_s.get(subject, now_s), now_s)
            self._since_s[subject] = since_s
            if now_s - since_s >= condition.for_s and self._is_due(subject, condition.alert):
                self._reported[subject] = condition.alert
                self._alert(condition.alert)
        for subject in self._since_s.keys() - found.keys():
            del self._since_s[subject]
            if (alert := self._reported.pop(subject, None)) is not None:
                cause = f"cleared: {alert.cause}"
                self._alert(replace(alert, alarm=Alarm.NONE, cause=cause, cleared=True))

    def _is_due(self, subject: Subject, alert: Alert) -> bool:
        """True if the alert was not sent yet, or if its count has doubled since it was sent."""
        reported = self._reported.get(subject)
        return reported is None or (alert.count or 0) >= 2 * (reported.count or 1)

    @property
    def firing(self) -> Sequence[str]:
        """The causes of the alerts that were sent and are not cleared yet."""
        return [alert.cause for alert in self._reported.values()]
