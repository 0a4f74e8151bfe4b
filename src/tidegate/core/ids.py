"""Ids begin with a time; systems may forget operations whose ids are below the floor."""

from typing import NamedTuple
from uuid import UUID, SafeUUID

HORIZON_S = 24 * 3600  # Systems remember operations for at least this long.
SKEW_S = 3600  # The clocks of two machines may differ by this much.
TIME_SHIFT = 80  # The bits of an id below its time in milliseconds.
NO_FLOOR = UUID(int=0)
_UNKNOWN, _new, _set = SafeUUID.unknown, UUID.__new__, object.__setattr__


class Horizon(NamedTuple):
    """The age from which an id may be forgotten, and the largest error of a clock."""

    horizon_s: float = HORIZON_S
    skew_s: float = SKEW_S

    def latest(self, now_s: float) -> UUID:
        """The highest floor that may be set when a clock shows this time."""
        return first_id(int((now_s - self.horizon_s + self.skew_s) * 1000))


def uuid_of(number: int) -> UUID:
    """UUID(int=number) in half the time, without its checks: the number must fit."""
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
    """The time for new ids, which puts all of them above the floor even if the clock is behind."""
    return max(now_us, (time_ms(floor) + 1) * 1000)
