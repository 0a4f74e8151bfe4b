"""Ids begin with a time. What that time is good for, and for how long it is remembered."""

from typing import NamedTuple
from uuid import UUID, SafeUUID

HORIZON_S = 24 * 3600  # For how long systems remember operations, at the least.
SKEW_S = 3600  # By how much the clocks of two machines may differ.
TIME_SHIFT = 80  # The bits of an id below its time in milliseconds.
NO_FLOOR = UUID(int=0)
_UNKNOWN, _new, _set = SafeUUID.unknown, UUID.__new__, object.__setattr__


class Horizon(NamedTuple):
    """How old an id is before it is forgotten, and how far clocks are trusted."""

    horizon_s: float = HORIZON_S
    skew_s: float = SKEW_S

    def latest(self, now_s: float) -> UUID:
        """The highest floor that a clock allows."""
        return first_id(int((now_s - self.horizon_s + self.skew_s) * 1000))


def uuid_of(number: int) -> UUID:
    """UUID(int=number), for numbers that are known to fit: its own door takes twice as long."""
    id_ = _new(UUID)
    _set(id_, "int", number)
    _set(id_, "is_safe", _UNKNOWN)
    return id_


def time_ms(id_: UUID) -> int:
    return id_.int >> TIME_SHIFT


def first_id(at_ms: int) -> UUID:
    """The lowest id of a millisecond."""
    return UUID(int=max(at_ms, 0) << TIME_SHIFT)


def id_time_us(now_us: int, floor: UUID) -> int:
    """The time for new ids. All of them are above the floor, whatever the clock says."""
    return max(now_us, (time_ms(floor) + 1) * 1000)
