"""The three answers that a system can give to a question. There is no fourth."""

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

import msgspec

Evidence: TypeAlias = Mapping[str, str]

NO_EVIDENCE: Evidence = {}


class Alarm(IntEnum):
    """How loudly a human is called, in rising order."""

    NONE = 0
    PAGE = 1  # Somebody must look at this transfer.
    CRITICAL = 2  # Somebody must look now.
    HALT = 3  # The books may be wrong: nothing moves until an operator resumes.


class Done(msgspec.Struct, frozen=True):
    """It happened, once, and the system will always say so under this key."""

    evidence: Evidence = NO_EVIDENCE


class Rejected(msgspec.Struct, frozen=True):
    """It did not happen and never will under this key: the refusal itself is stored there."""

    reason: str
    evidence: Evidence = NO_EVIDENCE


class Unknown(msgspec.Struct, frozen=True):
    """Anything else: a timeout, a 500, a busy system, an answer that makes no sense."""

    reason: str
    alarm: Alarm = Alarm.NONE


Answer: TypeAlias = Done | Rejected | Unknown


class Unreachable(Exception):
    """No word from a system at all. Its lane closes until it answers a probe."""
