"""Prometheus metrics. Existing dashboards rely on their names, so the names do not change."""

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
        labels = ["lane", "flow", "state"]
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        timer = partial(Histogram, registry=registry, buckets=BUCKETS)
        requests = counter(
            "internal_transfer_requests", "Requests, by route and status", ["route", "status"]
        )
        # A gauge that only grows: a counter's name would get the suffix "_total".
        states = gauge("internal_transfer_by_status", "Transfers that ended", ["status", "flow"])
        # Every request uses these, so their label lookups are cached.
        self._requests: Callable[[str, int], Counter] = cache(requests.labels)
        self._states: Callable[[str, str], Gauge] = cache(states.labels)
        self._refusals = counter(
            "internal_transfer_validation_errors", "Refused requests", ["code"]
        )
        durations = timer("internal_transfer_request_duration_seconds", "Time to answer", ["route"])
        lags = timer("internal_transfer_settlement_lag_seconds", "From creation to end", ["flow"])
        self._durations: Callable[[str], Histogram] = cache(durations.labels)
        self._lags: Callable[[str], Histogram] = cache(lags.labels)
        self._backlog = gauge("tidegate_backlog", "Open transfers, by lane, flow and state", labels)
        self._dwell = gauge("tidegate_oldest_seconds", "How long the oldest has waited", labels)
        self._ring = gauge("tidegate_ring", "Transfers in the queue of the lane", ["lane"])
        self._closed = gauge("tidegate_lane_closed", "1 while a system is unreachable", ["lane"])
        self._alerts = counter("tidegate_alerts", "Alerts raised", ["alarm", "code"])
        self._gap = gauge("tidegate_conservation_gap", "Amount missing in the books", ["asset"])
        self._full_audit = gauge(
            "tidegate_full_audit_age_seconds", "Time since the last full audit in slices started"
        )
        self._floor = gauge(
            "tidegate_core_floor_seconds",
            "The core has retired the operations of transfers created before this",
        )
        self._ages = gauge(
            "tidegate_background_age_seconds",
            "Time since the last success of a background task",
            ["task"],
        )
        self._database = gauge(
            "tidegate_database_unusable",
            "1 while the database is full, read-only or unreachable",
            ["cause"],
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
        """Called by the engine in the process that records the ends."""
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
        """Report the floor as a time: an id begins with its time of creation in milliseconds."""
        self._floor.set((id_.int >> 80) / 1000)

    def lane(self, name: str, waiting: int, *, closed: bool) -> None:
        self._ring.labels(name).set(waiting)
        self._closed.labels(name).set(closed)

    def backlog(self, rows: list[LaneBacklog]) -> None:
        self._backlog.clear()
        self._dwell.clear()
        for row in rows:
            self._backlog.labels(row.lane, row.flow, row.state).set(row.count)
            self._dwell.labels(row.lane, row.flow, row.state).set(row.oldest_s)

    def page(self) -> bytes:
        return generate_latest(self.registry)
