"""The three answers that a system can give to a question. There is no fourth."""

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

import msgspec

Evidence: TypeAlias = Mapping[str, str]

NO_EVIDENCE: Evidence = {}


MAX_TEXT = 500  # Of a reason, or of one piece of evidence: what we keep of a stranger's words.
MAX_EVIDENCE = 16
_UNKEEPABLE = re.compile("[\x00\ud800-\udfff]")  # What a database cannot hold as text.


def bounded(text: str) -> str:
    """A stranger's words as they can be kept, hashed and read back the same."""
    if len(text) <= MAX_TEXT and text.isprintable() and text.isascii():
        return text  # As nearly all of them are: nothing to look for.
    return _UNKEEPABLE.sub("\ufffd", text[:MAX_TEXT])


def keepable(text: str) -> bool:
    """Whether a database can hold it as text, and give it back the same."""
    return (text.isascii() and text.isprintable()) or _UNKEEPABLE.search(text) is None


def bounded_evidence(evidence: Evidence) -> Evidence:
    if not evidence:
        return NO_EVIDENCE
    if len(evidence) == 1:
        [(name, value)] = evidence.items()
        words = name + value
        if len(words) <= MAX_TEXT and words.isascii() and words.isprintable():
            return {name: value}
    kept = evidence.items() if len(evidence) <= MAX_EVIDENCE else _first(evidence)
    return {bounded(name): bounded(value) for name, value in kept}


def _first(evidence: Evidence) -> list[tuple[str, str]]:
    return list(evidence.items())[:MAX_EVIDENCE]


class Alarm(IntEnum):
    """How loudly a human is called, in rising order."""

    NONE = 0
    PAGE = 1  # Somebody must look at this transfer.
    CRITICAL = 2  # Somebody must look now.
    HALT = 3  # The books may be wrong: nothing moves until an operator resumes.


class Done(msgspec.Struct, frozen=True, gc=False):
    """It happened, once, and the system will always say so under this key."""

    evidence: Evidence = NO_EVIDENCE


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """It did not happen and never will under this key: the refusal itself is stored there."""

    reason: str
    evidence: Evidence = NO_EVIDENCE
    # Two people may re-point a refused refund: the (system, book, owner) that gets the money.
    repoint: tuple[str, str, int] | None = None


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """Anything else: a timeout, a 500, a busy system, an answer that makes no sense."""

    reason: str
    alarm: Alarm = Alarm.NONE
    # What the system knows of when to ask again: a cooldown ends, a day begins. None: back off.
    retry_s: float | None = None


Answer: TypeAlias = Done | Rejected | Unknown


class Unreachable(Exception):
    """No word from a system at all. Its lane closes until it answers a probe."""
