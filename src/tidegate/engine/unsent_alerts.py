"""Alerts that were decided and never sent: whoever was to send them has died, or could not."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from uuid import UUID

from tidegate.core.flow import Flow, Verb
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.store.sent_pages import UnsentPage

UNTOLD_S = 10.0  # The worker that paged somebody has this long to say so itself.
AGAIN_S = 600.0  # What could not be delivered is told again after so long.


class UnsentAlerts:
    """One alert for all of a lane and state that nobody was told of; each is told once."""

    def __init__(self, flows: Mapping[str, Flow], alert: Callable[[Alert], None]) -> None:
        self._flows, self._alert = flows, alert
        self._since_s: dict[UUID, float] = {}
        self._told_s: dict[UUID, float] = {}

    def judge(self, rows: Sequence[UnsentPage], now_s: float, wait_s: float = UNTOLD_S) -> None:
        # A clock that was set back must not put off what is to be told.
        since = {row.id: min(self._since_s.get(row.id, now_s), now_s) for row in rows}
        told = {row.id: self._told_s[row.id] for row in rows if row.id in self._told_s}
        self._since_s, self._told_s = since, told
        late = [
            row
            for row in rows
            if now_s - since[row.id] >= wait_s
            and (row.id not in told or abs(now_s - told[row.id]) >= AGAIN_S)
        ]
        late.sort(key=lambda row: (row.flow, row.lane, row.state))  # Stable: the oldest first.
        for _, group in groupby(late, lambda row: (row.flow, row.lane, row.state)):
            self._tell(list(group))
        self._told_s |= {row.id: now_s for row in late}

    def _tell(self, rows: Sequence[UnsentPage]) -> None:
        oldest = rows[0]
        ask = self._flows[oldest.flow].ask(oldest.state) if oldest.flow in self._flows else None
        if ask is None:
            return  # Of a flow that this process does not know.
        code = AlertCode.REFUND_FAILING if ask.verb is Verb.REFUND else AlertCode.TRANSFER_STUCK
        self._alert(
            Alert(
                ask.patience.alarm,
                code,
                oldest.reason,
                oldest.lane,
                oldest.id,
                oldest.state,
                oldest.retries,
                oldest.age_s,
                count=len(rows),
                also=[row.id for row in rows[1:]],
            )
        )
