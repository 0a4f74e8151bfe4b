"""Alert rules about the transfers that end in this process: how slow they are, how many fail."""

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
    """When each rule fires. The rules cover the transfers that ended in the last 60 s."""

    failure_share: float = 0.05
    failure_for_s: float = 120.0
    slow_s: float = 1.0  # P95 of the time from creation to end.
    min_ends: int = 20  # With fewer ends no rule fires.


class RecordedEnd(NamedTuple):
    at_s: float
    took_s: float
    failed: bool


def rate_conditions(
    ends: Sequence[RecordedEnd], limits: RateThresholds
) -> Iterator[tuple[Subject, Condition]]:
    """The rules that the recent ends violate. A pure function."""
    count = len(ends)
    if count < max(limits.min_ends, 1):
        return
    p95_s = sorted(end.took_s for end in ends)[-(-count * 95 // 100) - 1]
    if p95_s > limits.slow_s:
        cause = f"the P95 of transfer times is {p95_s:.3f} s, above the limit of "
        cause += f"{limits.slow_s:g} s ({count} transfers in the last {WINDOW_S:g} s)"
        yield ("slow", ""), Condition(Alert(Alarm.PAGE, AlertCode.TRANSFERS_SLOW, cause))
    failed = sum(end.failed for end in ends)
    if failed > limits.failure_share * count:
        cause = f"{failed} of {count} transfers failed in the last {WINDOW_S:g} s, above the limit "
        cause += f"of {limits.failure_share * 100:g} %"
        alert = Alert(Alarm.PAGE, AlertCode.TRANSFERS_FAILING, cause)
        yield ("failing", ""), Condition(alert, limits.failure_for_s)


class EndRates:
    """Counts every end that this process records, whichever process accepted the request."""

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
                continue  # Long waits and expiry are normal for this flow.
            took_s = max(transfer.updated_us - transfer.created_us, 0) / 1_000_000
            failed = flow.row(transfer.state).place is Place.SOURCE
            self._ends.append(RecordedEnd(now_s, took_s, failed))

    async def check(self) -> None:
        now_s = self._clock()
        while self._ends and now_s - self._ends[0].at_s >= WINDOW_S:
            self._ends.popleft()
        self._reporter.judge(dict(rate_conditions(self._ends, self._limits)), now_s)
