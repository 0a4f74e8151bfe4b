"""How fast transfers end in this process and how many of them fail; each process judges its own."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tidegate.core.answers import Alarm
from tidegate.core.flow import Flow, Place
from tidegate.core.kind import Transfer
from tidegate.engine.alert_reporter import AlertReporter, Condition, Subject
from tidegate.engine.alerts import Alert, AlertCode

MAX_ENDS = 10_000
WINDOW_S = 60.0


class RateThresholds(msgspec.Struct, frozen=True):
    """When each rule fires, of the transfers that ended within a minute."""

    failure_share: float = 0.05
    failure_for_s: float = 120.0
    slow_s: float = 1.0  # P95, from birth to end.
    among: int = 20  # Of fewer nothing is said.


class RecordedEnd(NamedTuple):
    at_s: float
    took_s: float
    failed: bool


def rate_troubles(
    ends: Sequence[RecordedEnd], limits: RateThresholds
) -> Iterator[tuple[Subject, Condition]]:
    """What is wrong with the transfers of the last minute: pure."""
    count = len(ends)
    if count < max(limits.among, 1):
        return
    p95_s = sorted(end.took_s for end in ends)[-(-count * 95 // 100) - 1]
    if p95_s > limits.slow_s:
        cause = f"P95 of {count} transfers is {p95_s:.3f} s"
        yield ("slow", ""), Condition(Alert(Alarm.PAGE, AlertCode.TRANSFERS_SLOW, cause))
    failed = sum(end.failed for end in ends)
    if failed > limits.failure_share * count:
        cause = f"{failed} of {count} transfers of the last minute failed"
        alert = Alert(Alarm.PAGE, AlertCode.TRANSFERS_FAILING, cause)
        yield ("failing", ""), Condition(alert, limits.failure_for_s)


class EndRates:
    """Told of every end that this process records, whoever asked for the transfer, and when."""

    def __init__(
        self,
        flows: Mapping[str, Flow],
        alert: Callable[[Alert], None],
        clock: Callable[[], float],
        limits: RateThresholds | None = None,
    ) -> None:
        self._flows, self._clock, self._limits = flows, clock, limits or RateThresholds()
        self._reporter = AlertReporter(alert)
        self._ends: deque[RecordedEnd] = deque(maxlen=MAX_ENDS)

    def ended(self, transfers: Iterable[Transfer]) -> None:
        now_s = self._clock()
        for transfer in transfers:
            flow = self._flows[transfer.flow]
            if flow.waits_by_design:
                continue  # How long it takes, and whether it expires, says nothing about us.
            took_s = max(transfer.updated_us - transfer.created_us, 0) / 1_000_000
            failed = flow.row(transfer.state).place is Place.SOURCE
            self._ends.append(RecordedEnd(now_s, took_s, failed))

    async def look(self) -> None:
        now_s = self._clock()
        while self._ends and now_s - self._ends[0].at_s >= WINDOW_S:
            self._ends.popleft()
        self._reporter.judge(dict(rate_troubles(self._ends, self._limits)), now_s)
