"""Which causes people know of: told once, again when they have doubled, and when they are over."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from tidegate.core.answers import Alarm
from tidegate.engine.alerts import Alert

Subject: TypeAlias = tuple[str, str]  # Of which rule, and about whom.


class Condition(NamedTuple):
    """One rule that does not hold, and for how long it must not until somebody is told."""

    alert: Alert
    for_s: float = 0.0


class AlertReporter:
    def __init__(self, alert: Callable[[Alert], None]) -> None:
        self._alert = alert
        self._since_s: dict[Subject, float] = {}
        self._told: dict[Subject, Alert] = {}

    def judge(self, found: Mapping[Subject, Condition], now_s: float) -> None:
        """Tell what is new and has lasted long enough, and what is over."""
        for subject, trouble in found.items():
            # A clock that was set back must not put off what is to be told.
            since_s = min(self._since_s.get(subject, now_s), now_s)
            self._since_s[subject] = since_s
            if now_s - since_s >= trouble.for_s and self._is_news(subject, trouble.alert):
                self._told[subject] = trouble.alert
                self._alert(trouble.alert)
        for subject in self._since_s.keys() - found.keys():
            del self._since_s[subject]
            if (over := self._told.pop(subject, None)) is not None:
                cause = f"cleared: {over.cause}"
                self._alert(replace(over, alarm=Alarm.NONE, cause=cause, cleared=True))

    def _is_news(self, subject: Subject, alert: Alert) -> bool:
        """A count that keeps growing is told again each time that it has doubled."""
        told = self._told.get(subject)
        return told is None or (alert.count or 0) >= 2 * (told.count or 1)

    @property
    def firing(self) -> Sequence[str]:
        """The causes told and not cleared yet."""
        return [alert.cause for alert in self._told.values()]
