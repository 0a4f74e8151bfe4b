"""Sends alerts that another process raised but never delivered, because it died or failed."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from uuid import UUID

from tidegate.core.flow import Flow, Verb
from tidegate.engine.alerts import Alert, AlertCode, open_question_cause
from tidegate.store.sent_pages import UnsentPage

UNSENT_S = 10.0  # The process that raised the alert has this long to send it.
RESEND_S = 600.0  # An alert that is still not marked as delivered is sent again after this.


class UnsentAlerts:
    """Sends one alert for all undelivered alerts of the same flow, lane and state."""

    def __init__(self, flows: Mapping[str, Flow], alert: Callable[[Alert], None]) -> None:
        self._flows, self._alert = flows, alert
        self._since_s: dict[UUID, float] = {}
        self._sent_s: dict[UUID, float] = {}

    def judge(self, rows: Sequence[UnsentPage], now_s: float, wait_s: float = UNSENT_S) -> None:
        # If the clock was set back, the alert must not be delayed by that.
        since = {row.id: min(self._since_s.get(row.id, now_s), now_s) for row in rows}
        sent = {row.id: self._sent_s[row.id] for row in rows if row.id in self._sent_s}
        self._since_s, self._sent_s = since, sent
        late = [
            row
            for row in rows
            if now_s - since[row.id] >= wait_s
            and (row.id not in sent or abs(now_s - sent[row.id]) >= RESEND_S)
        ]
        late.sort(key=lambda row: (row.flow, row.lane, row.state))  # Stable: oldest first.
        for _, group in groupby(late, lambda row: (row.flow, row.lane, row.state)):
            self._send(list(group))
        self._sent_s |= {row.id: now_s for row in late}

    def _send(self, rows: Sequence[UnsentPage]) -> None:
        oldest = rows[0]
        ask = self._flows[oldest.flow].ask(oldest.state) if oldest.flow in self._flows else None
        if ask is None:
            return  # This process does not know the flow.
        code = AlertCode.REFUND_FAILING if ask.verb is Verb.REFUND else AlertCode.TRANSFER_STUCK
        self._alert(
            Alert(
                ask.retry.alarm,
                code,
                open_question_cause(oldest.lane, ask.verb, oldest.retries, oldest.reason),
                oldest.lane,
                oldest.id,
                oldest.state,
                oldest.retries,
                oldest.age_s,
                count=len(rows),
                also=[row.id for row in rows[1:]],
            )
        )
