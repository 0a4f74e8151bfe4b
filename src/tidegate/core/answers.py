"""The three answers that a system can give to a question: Done, Rejected and Unknown."""

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

import msgspec

Evidence: TypeAlias = Mapping[str, str]

NO_EVIDENCE: Evidence = {}

MAX_TEXT = 500  # Characters stored of a reason, and of one name or value of the evidence.
MAX_EVIDENCE = 16
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")  # Characters that PostgreSQL rejects in text.


def bounded(text: str) -> str:
    """Cut and clean a system's text, so that it can be stored, hashed and read back unchanged."""
    if len(text) <= MAX_TEXT and text.isprintable() and text.isascii():
        return text  # The usual case: there is nothing to replace.
    return _NOT_STORABLE.sub("\ufffd", text[:MAX_TEXT])


def is_storable(text: str) -> bool:
    """Whether PostgreSQL can store the text and return it unchanged."""
    return (text.isascii() and text.isprintable()) or _NOT_STORABLE.search(text) is None


def bounded_evidence(evidence: Evidence) -> Evidence:
    if not evidence:
        return NO_EVIDENCE
    if len(evidence) == 1:
        [(name, value)] = evidence.items()
        text = name + value
        if len(text) <= MAX_TEXT and text.isascii() and text.isprintable():
            return {name: value}
    pairs = evidence.items() if len(evidence) <= MAX_EVIDENCE else _first(evidence)
    return {bounded(name): bounded(value) for name, value in pairs}


def _first(evidence: Evidence) -> list[tuple[str, str]]:
    return list(evidence.items())[:MAX_EVIDENCE]


class Alarm(IntEnum):
    """How urgently an operator is called, in rising order."""

    NONE = 0
    PAGE = 1  # An operator must look at this transfer.
    CRITICAL = 2  # An operator must look now.
    HALT = 3  # The books may be wrong: no money moves until an operator resumes.


class Done(msgspec.Struct, frozen=True, gc=False):
    """The operation happened exactly once. The system always gives this answer for this key."""

    evidence: Evidence = NO_EVIDENCE


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """The operation did not and will not happen: the refusal is stored under its key."""

    reason: str
    evidence: Evidence = NO_EVIDENCE
    # The (system, book, owner) that gets the money of a refused refund. Two operators together may
    # decide this.
    repoint: tuple[str, str, int] | None = None


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """Anything else: a timeout, a status 500, a busy system, an answer that cannot be parsed."""

    reason: str
    alarm: Alarm = Alarm.NONE
    # When to ask again, if the system knows: a cooldown ends, a day begins. None: back off.
    retry_s: float | None = None


Answer: TypeAlias = Done | Rejected | Unknown


class Unreachable(Exception):
    """A system did not reply at all. Its lane closes until it answers a probe."""
