"""What is counted and timed, under the names that dashboards were built on."""

from collections import Counter as Count
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from uuid import UUID

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tidegate.core.kind import Transfer
from tidegate.engine.alerts import Alert
from tidegate.store.operator_reads import LaneBacklog

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """One registry per process. Labels have few values: never an owner or an id."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        here = ["lane", "flow", "state"]
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        timer = partial(Histogram, registry=registry, buckets=BUCKETS)
        requests = counter(
            "internal_transfer_requests", "Requests, by route and status", ["route", "status"]
        )
        # A gauge that only grows: a counter would be renamed, and this name is relied on.
        states = gauge("internal_transfer_by_status", "Transfers at an end", ["status", "flow"])
        # Of every request, so that they are looked up once and not each time.
        self._requests: Callable[[str, int], Counter] = cache(requests.labels)
        self._states: Callable[[str, str], Gauge] = cache(states.labels)
        self._refusals = counter("internal_transfer_validation_errors", "Refused", ["code"])
        durations = timer("internal_transfer_request_duration_seconds", "Time to answer", ["route"])
        lags = timer("internal_transfer_settlement_lag_seconds", "From birth to end", ["flow"])
        self._durations: Callable[[str], Histogram] = cache(durations.labels)
        self._lags: Callable[[str], Histogram] = cache(lags.labels)
        self._backlog = gauge("tidegate_backlog", "Transfers that rest here", here)
        self._dwell = gauge("tidegate_oldest_seconds", "How long the oldest has rested", here)
        self._ring = gauge("tidegate_ring", "Handed over and not yet asked", ["lane"])
        self._closed = gauge("tidegate_lane_closed", "1 while a system is unreachable", ["lane"])
        self._alerts = counter("tidegate_alerts", "Alerts raised", ["alarm", "code"])
        self._gap = gauge("tidegate_conservation_gap", "What is missing in the books", ["asset"])
        self._full_audit = gauge(
            "tidegate_full_audit_age_seconds", "Since the last full audit in slices was begun"
        )
        self._floor = gauge(
            "tidegate_core_floor_seconds", "Of transfers born before it the core has forgotten all"
        )

        self._ages = gauge(
            "tidegate_background_age_seconds",
            "Since the last success of a background task",
            ["task"],
        )

        self._database = gauge(
            "tidegate_database_unusable", "1 while it is full, read-only or unreachable", ["cause"]
        )

    def database(self, trouble: str | None) -> None:
        for cause in ("full", "read-only", "unreachable"):
            self._database.labels(cause).set(cause == trouble)

    def background(self, ages: Mapping[str, float]) -> None:
        for task, age_s in ages.items():
            self._ages.labels(task).set(age_s)

    def alert(self, raised: Alert) -> None:
        self._alerts.labels(raised.alarm.name, str(raised.code)).inc()

    def request(self, route: str, status: int, seconds: float) -> None:
        self._requests(route, status).inc()
        self._durations(route).observe(seconds)

    def refusal(self, code: str) -> None:
        self._refusals.labels(code).inc()

    def ended(self, transfers: Sequence[Transfer]) -> None:
        """By the engine, in whichever process records the ends."""
        for (state, flow), count in Count((t.state, t.flow) for t in transfers).items():
            self._states(state, flow).inc(count)
        for transfer in transfers:
            lag_s = max(transfer.updated_us - transfer.created_us, 0) / 1_000_000
            self._lags(transfer.flow).observe(lag_s)

    def gap(self, asset: str, amount: str) -> None:
        self._gap.labels(asset).set(float(amount))

    def full_audit(self, age_s: float) -> None:
        self._full_audit.set(age_s)

    def floor(self, id_: UUID) -> None:
        """An id begins with the milliseconds at which it was made."""
        self._floor.set((id_.int >> 80) / 1000)

    def lane(self, name: str, waiting: int, *, closed: bool) -> None:
        self._ring.labels(name).set(waiting)
        self._closed.labels(name).set(closed)

    def backlog(self, found: list[LaneBacklog]) -> None:
        self._backlog.clear()
        self._dwell.clear()
        for row in found:
            self._backlog.labels(row.lane, row.flow, row.state).set(row.count)
            self._dwell.labels(row.lane, row.flow, row.state).set(row.oldest_s)

    def page(self) -> bytes:
        return generate_latest(self.registry)
