"""What the engine tells people, as values. Who is told, and how, is the caller's to choose."""

from uuid import UUID

import msgspec

from tidegate.core.answers import Alarm


class Alert(msgspec.Struct, frozen=True):
    alarm: Alarm
    cause: str
    lane: str | None = None
    transfer_id: UUID | None = None
    state: str | None = None
