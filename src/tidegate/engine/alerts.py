"""What the engine tells people, as values. Who is told, and how, is the caller's to choose."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
from ulid import ULID

from tidegate.core.answers import Alarm


class AlertCode(StrEnum):
    """One stable name per cause. docs/operations.md says for each what to do."""

    TRANSFER_STUCK = "transfer_stuck"
    REFUND_FAILING = "refund_failing"
    TARGET_PENDING = "target_pending"
    LANE_UNREACHABLE = "lane_unreachable"
    TRANSFERS_PENDING = "transfers_pending"
    TRANSFERS_FAILING = "transfers_failing"
    TRANSFERS_SLOW = "transfers_slow"
    OWNER_BUSY = "owner_busy"
    BOOKS_DISAGREE = "books_disagree"
    AUDIT_MISSED = "audit_missed"
    AUDIT_LATE = "audit_late"
    FLOW_UNKNOWN = "flow_unknown"
    SYSTEM_CONTRADICTS = "system_contradicts"
    RECORD_REFUSED = "record_refused"
    REQUEST_REFUSED = "request_refused"
    REQUESTS_WAITING = "requests_waiting"
    CORE_REFUSED = "core_refused"
    FLOOR_REFUSED = "floor_refused"
    ENGINE_DIED = "engine_died"
    STORE_UNAVAILABLE = "store_unavailable"
    CLOCK_SET_BACK = "clock_set_back"
    DENY_LIST_UNREADABLE = "deny_list_unreadable"
    BACKGROUND_FAILED = "background_failed"
    LEADER_UNKNOWN = "leader_unknown"
    DATABASE_UNUSABLE = "database_unusable"


class Alert(msgspec.Struct, frozen=True):
    alarm: Alarm
    code: AlertCode
    cause: str
    lane: str | None = None
    transfer_id: UUID | None = None  # Of several, the one that has waited longest.
    state: str | None = None
    retries: int | None = None
    age_s: float | None = None  # Since the last answer about the transfer.
    count: int | None = None  # How many transfers the alert speaks for; None: one, or none.
    cleared: bool = False  # It is over. Sent wherever the alert itself was sent.
    also: Sequence[UUID] = ()  # The other transfers that it speaks for.

    @property
    def is_news(self) -> bool:
        """Whether people are told, and not only the log."""
        return self.alarm > Alarm.NONE or self.cleared


def told_as(alert: Alert) -> dict[str, Any]:
    """The fields of an alert as logs and webhooks show them; what is absent is left out."""
    fields = {
        "code": str(alert.code),
        "lane": alert.lane,
        "transfer": alert.transfer_id and str(ULID.from_uuid(alert.transfer_id)),
        "state": alert.state,
        "retries": alert.retries,
        "age_s": None if alert.age_s is None else round(alert.age_s, 1),
        "count": alert.count,
        "cleared": alert.cleared or None,
    }
    return {name: value for name, value in fields.items() if value is not None}
