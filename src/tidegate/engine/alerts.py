"""Alerts as values. The caller decides where they are sent."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
from ulid import ULID

from tidegate.core.answers import Alarm
from tidegate.core.flow import Verb


class AlertCode(StrEnum):
    """One stable code per cause. docs/operations.md lists what to do for each."""

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
    transfer_id: UUID | None = None  # If the alert covers several: the one that waits longest.
    state: str | None = None
    retries: int | None = None
    age_s: float | None = None  # Since the last answer about the transfer.
    count: int | None = None  # How many transfers the alert covers; None: one or none.
    cleared: bool = False  # The problem is over. Sent to the same outputs as the alert.
    also: Sequence[UUID] = ()  # The other transfers that the alert covers.

    @property
    def notifies_people(self) -> bool:
        """Whether the alert is also sent to the webhook, and not only written to the log."""
        return self.alarm > Alarm.NONE or self.cleared


def alert_fields(alert: Alert) -> dict[str, Any]:
    """The fields of an alert for the log and the webhook. Absent values are left out."""
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


def open_question_cause(lane: str | None, verb: Verb, retries: int, reason: str) -> str:
    """The cause of an alert about a question that has no final answer yet."""
    result = reason or "no reason given"
    return f"system {lane} has not completed the {verb} (retries: {retries}); last result: {result}"
