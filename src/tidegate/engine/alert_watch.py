"""The alert rules about the stored transfers: which ones are violated at this moment."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from tidegate.core.answers import Alarm
from tidegate.core.flow import Ask, Flow, Verb
from tidegate.core.sql import numbers, texts
from tidegate.engine.alert_reporter import AlertReporter, Condition, Subject
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.unsent_alerts import UNSENT_S, UnsentAlerts
from tidegate.store.audit_reads import AlertSign, alert_signs
from tidegate.store.postgres import PostgresStore
from tidegate.store.sent_pages import unsent


class AlertThresholds(msgspec.Struct, frozen=True):
    """When each rule fires. MON-003, conservation of money, is checked by the audit."""

    stuck_s: float = 60.0  # MON-001: money on its way to the target.
    refund_failures: int = 3  # MON-002.
    owner_per_minute: int = 30  # MON-004: transfers of one owner.
    unsent_s: float = UNSENT_S
    pending: int = 10
    pending_s: float = 300.0
    unaudited_s: float = 2 * 86_400.0  # Since all data was last audited.


def conditions(
    signs: Sequence[AlertSign],
    limits: AlertThresholds,
    flows: Mapping[str, Flow] = MappingProxyType({}),
) -> Mapping[Subject, Condition]:
    """The violated rules at one moment. A pure function."""
    found: dict[Subject, Condition] = {}
    for sign in signs:
        if sign.kind == "waits":
            found[f"waits {sign.flow} {sign.state}", sign.subject] = _unreachable(sign, flows)
        elif (condition := _condition(sign, limits)) is not None:
            found[f"{sign.kind} {sign.state}".strip(), sign.subject] = condition
    return found


def _condition(sign: AlertSign, limits: AlertThresholds) -> Condition | None:
    number, oldest = sign.number, (sign.transfer_id, sign.state, sign.retries, sign.age_s)
    match sign.kind:
        case "stuck":
            cause = f"MON-001: {_transfers(number)} in {sign.state} for more than "
            cause += f"{limits.stuck_s:g} s; the money has not reached the target"
            code, lane = AlertCode.TARGET_PENDING, sign.subject
            return Condition(Alert(Alarm.CRITICAL, code, cause, lane, *oldest, count=number))
        case "refund":
            cause = f"MON-002: a refund has failed {number} times"
            return Condition(Alert(Alarm.CRITICAL, AlertCode.REFUND_FAILING, cause, None, *oldest))
        case "owner":
            cause = f"MON-004: owner {sign.subject} created {number} transfers in 60 s"
            return Condition(Alert(Alarm.PAGE, AlertCode.OWNER_BUSY, cause))
        case "old" if number > limits.pending:
            cause = f"{number} transfers have been open for more than {limits.pending_s:g} s"
            return Condition(Alert(Alarm.PAGE, AlertCode.TRANSFERS_PENDING, cause, count=number))
        case "asked":
            cause = f"{number} inbox requests of flow {sign.subject} have waited for more than "
            cause += f"{limits.pending_s:g} s: {sign.reason or 'no process has claimed them'}"
            code = AlertCode.REQUESTS_WAITING
            return Condition(Alert(Alarm.PAGE, code, cause, None, *oldest, count=number))
        case "unaudited" if (sign.age_s or 0.0) > limits.unaudited_s:
            cause = "the last complete audit is more than "
            cause += f"{limits.unaudited_s / 3600:g} hours old"
            return Condition(Alert(Alarm.PAGE, AlertCode.AUDIT_LATE, cause, age_s=sign.age_s))
    return None


def _transfers(number: int) -> str:
    return f"{number} transfer has been" if number == 1 else f"{number} transfers have been"


def _unreachable(sign: AlertSign, flows: Mapping[str, Flow]) -> Condition:
    """Transfers that wait for an unreachable system."""
    ask = flows[sign.flow or ""].ask(sign.state)
    assert ask is not None, f"{sign.state} asks no system"
    if ask.verb is Verb.REFUND:
        alarm, code = Alarm.CRITICAL, AlertCode.REFUND_FAILING
        cause = f"MON-002: a refund has failed {sign.among} times; "
    else:
        alarm, code = ask.retry.alarm, AlertCode.TRANSFER_STUCK
        cause = f"{_transfers(sign.number)} waiting in {sign.state}; {sign.among} calls failed; "
    cause += f"system {sign.subject} is unreachable: {sign.reason}"
    oldest = (sign.transfer_id, sign.state, sign.retries, sign.age_s)
    return Condition(Alert(alarm, code, cause, sign.subject, *oldest, count=sign.number))


class AlertWatch:
    """Checks the rules about the stored transfers. One process does this for all processes."""

    def __init__(
        self,
        store: PostgresStore,
        flows: Mapping[str, Flow],
        alert: Callable[[Alert], None],
        limits: AlertThresholds | None = None,
    ) -> None:
        self._store, self._limits = store, limits or AlertThresholds()
        self._flows, self._bounds = flows, _bounds(flows, self._limits)
        self.reporter, self._unsent = AlertReporter(alert), UnsentAlerts(flows, alert)

    async def check(self) -> None:
        signs = await alert_signs(self._store, self._bounds)
        now_s = next(sign.number for sign in signs if sign.kind == "now") / 1_000_000
        self.reporter.judge(conditions(signs, self._limits, self._flows), now_s)
        self._unsent.judge(await unsent(self._store), now_s, self._limits.unsent_s)


def _bounds(flows: Mapping[str, Flow], limits: AlertThresholds) -> Mapping[str, object]:
    asks = [
        (flow.name, str(state), row)
        for flow in flows.values()
        for state, row in flow.rows.items()
        if isinstance(row, Ask)
    ]
    targets = [(f, s) for f, s, ask in asks if (ask.role, ask.verb) == ("target", Verb.CREDIT)]
    refunds = [(f, s) for f, s, ask in asks if ask.verb is Verb.REFUND]
    waits = [(flow.name, state) for flow in flows.values() for state in flow.waiting_states]
    paging = [(f, s, ask) for f, s, ask in asks if ask.retry.page_attempts is not None]
    return {
        "asked_flows": texts(flow for flow, _, _ in paging),
        "asked_states": texts(state for _, state, _ in paging),
        "page_attempts": numbers(_page_attempts(ask, limits) for _, _, ask in paging),
        "page_after_s": numbers(ask.retry.page_after_s for _, _, ask in paging),
        "target_flows": texts(flow for flow, _ in targets),
        "target_states": texts(state for _, state in targets),
        "refund_flows": texts(flow for flow, _ in refunds),
        "refund_states": texts(state for _, state in refunds),
        "waits_flows": texts(flow for flow, _ in waits),
        "waits_states": texts(state for _, state in waits),
        "stuck_s": limits.stuck_s,
        "refund_failures": limits.refund_failures,
        "old_s": limits.pending_s,
        "births": limits.owner_per_minute,
    }


def _page_attempts(ask: Ask, limits: AlertThresholds) -> int:
    page_attempts = ask.retry.page_attempts
    assert page_attempts is not None
    if ask.verb is Verb.REFUND:
        return min(page_attempts, limits.refund_failures)
    return page_attempts
