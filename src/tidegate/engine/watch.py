"""The alert rules: what is wrong right now, told once, and told again when it is over."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from tidegate.core.answers import Alarm
from tidegate.core.flow import Ask, Flow, Verb
from tidegate.core.ports import StoreFault
from tidegate.core.sql import texts
from tidegate.engine.alerts import Alert
from tidegate.store.auditing import Sign, signs
from tidegate.store.postgres import PostgresStore

MAX_DURATIONS = 10_000
WINDOW_US = 60 * 1_000_000

Subject: TypeAlias = tuple[str, str]  # Of which rule, and about whom.


class Thresholds(msgspec.Struct, frozen=True):
    """When each rule fires. MON-003, conservation, is the audit's own."""

    stuck_s: float = 60.0  # MON-001: money in flight towards its target.
    refund_failures: int = 3  # MON-002.
    births_a_minute: int = 30  # MON-004, of one owner.
    failure_share: float = 0.05
    failure_for_s: float = 120.0
    failure_among: int = 20  # Of fewer ended transfers no share is taken.
    pending: int = 10
    pending_s: float = 300.0
    slow_s: float = 1.0  # P95 of the last minute.
    slow_among: int = 20


class Trouble(NamedTuple):
    """One rule that does not hold, and for how long it must not until somebody is told."""

    alarm: Alarm
    cause: str
    lane: str | None = None
    transfer_id: UUID | None = None
    state: str | None = None
    for_s: float = 0.0


def troubles(
    seen: Sequence[Sign], durations: Sequence[float], limits: Thresholds
) -> Mapping[Subject, Trouble]:
    """What is wrong at one moment: pure."""
    found = dict(_slow(durations, limits))
    for sign in seen:
        if (trouble := _trouble(sign, limits)) is not None:
            found[f"{sign.kind} {sign.state}".strip(), sign.subject] = trouble
    return found


def _trouble(sign: Sign, limits: Thresholds) -> Trouble | None:
    _, subject, id_, state, number, among = sign
    match sign.kind:
        case "stuck":
            cause = f"MON-001: {number} in {state} for over {limits.stuck_s:g} s"
            return Trouble(Alarm.CRITICAL, cause, subject, id_, state)
        case "refund":
            cause = f"MON-002: a refund has failed {number} times"
            return Trouble(Alarm.CRITICAL, cause, None, id_, state)
        case "owner":
            cause = f"MON-004: owner {subject} made {number} transfers in a minute"
            return Trouble(Alarm.PAGE, cause)
        case "old" if number > limits.pending:
            cause = f"{number} transfers are pending for over {limits.pending_s:g} s"
            return Trouble(Alarm.PAGE, cause)
        case "ended" if among >= limits.failure_among and number > limits.failure_share * among:
            cause = f"{number} of {among} transfers of the last minute failed"
            return Trouble(Alarm.PAGE, cause, for_s=limits.failure_for_s)
    return None


def _slow(durations: Sequence[float], limits: Thresholds) -> Iterator[tuple[Subject, Trouble]]:
    if len(durations) >= max(limits.slow_among, 1):
        p95_s = sorted(durations)[-(-len(durations) * 95 // 100) - 1]
        if p95_s > limits.slow_s:
            cause = f"P95 of {len(durations)} requests is {p95_s:.3f} s"
            yield ("slow", ""), Trouble(Alarm.PAGE, cause)


class Watch:
    """Each cause is told once until it clears, and then that it has cleared."""

    def __init__(
        self,
        store: PostgresStore,
        flows: Mapping[str, Flow],
        alert: Callable[[Alert], None],
        limits: Thresholds | None = None,
    ) -> None:
        self._store, self._alert, self._limits = store, alert, limits or Thresholds()
        self._bounds = _bounds(flows, self._limits)
        self._since_us: dict[Subject, int] = {}
        self._told: dict[Subject, Trouble] = {}
        self._fresh: deque[float] = deque(maxlen=MAX_DURATIONS)
        self._windows: deque[tuple[int, list[float]]] = deque()

    def took(self, duration_s: float) -> None:
        """One request was answered after so long."""
        self._fresh.append(duration_s)

    async def look(self) -> None:
        seen = await signs(self._store, self._bounds)
        now_us = next(sign.number for sign in seen if sign.kind == "now")
        self._windows.append((now_us, list(self._fresh)))
        self._fresh.clear()
        while now_us - self._windows[0][0] >= WINDOW_US:
            self._windows.popleft()
        durations = [duration for _, window in self._windows for duration in window]
        self.judge(troubles(seen, durations[-MAX_DURATIONS:], self._limits), now_us)

    def judge(self, found: Mapping[Subject, Trouble], now_us: int) -> None:
        """Tell what is new and has lasted long enough, and what is over."""
        for subject, trouble in found.items():
            since_us = self._since_us.setdefault(subject, now_us)
            if subject not in self._told and now_us - since_us >= trouble.for_s * 1e6:
                self._told[subject] = trouble
                self._tell(trouble, trouble.alarm, trouble.cause)
        for subject in self._since_us.keys() - found.keys():
            del self._since_us[subject]
            if (over := self._told.pop(subject, None)) is not None:
                self._tell(over, Alarm.NONE, f"cleared: {over.cause}")

    @property
    def firing(self) -> Sequence[str]:
        """The causes told and not cleared yet."""
        return [trouble.cause for trouble in self._told.values()]

    def _tell(self, trouble: Trouble, alarm: Alarm, cause: str) -> None:
        self._alert(Alert(alarm, cause, trouble.lane, trouble.transfer_id, trouble.state))

    async def watch_forever(self, every_s: float = 5.0) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.look()
            except StoreFault:
                continue  # Whoever asks the store for work will say so.


def _bounds(flows: Mapping[str, Flow], limits: Thresholds) -> Mapping[str, object]:
    asks = [
        (flow.name, str(state), row)
        for flow in flows.values()
        for state, row in flow.rows.items()
        if isinstance(row, Ask)
    ]
    targets = [(f, s) for f, s, ask in asks if (ask.role, ask.verb) == ("target", Verb.CREDIT)]
    refunds = [(f, s) for f, s, ask in asks if ask.verb is Verb.REFUND]
    return {
        "target_flows": texts(flow for flow, _ in targets),
        "target_states": texts(state for _, state in targets),
        "refund_flows": texts(flow for flow, _ in refunds),
        "refund_states": texts(state for _, state in refunds),
        "stuck_s": limits.stuck_s,
        "refund_failures": limits.refund_failures,
        "old_s": limits.pending_s,
        "births": limits.births_a_minute,
    }
