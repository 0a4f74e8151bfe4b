"""The faults, and the points at which they are injected.

A point is a kind of call that can fail, and has a list of possible faults. Every call of a
simulated process asks for its fault first. `RandomFaults` draws it at random. `FaultPlan` injects
faults at given call indexes, so that every call can be tried with every fault.
"""

import random
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol


class Fault(StrEnum):
    """One kind of failure. The code of each point implements its meaning."""

    KILLED_BEFORE = "killed before"  # The worker dies before the call has any effect.
    KILLED_AFTER = "killed after"  # The call has its effect; the worker dies before the reply.
    LOST = "lost"  # No effect. The caller gets an error or a timeout, which does not show this.
    REPLY_LOST = "reply lost"  # The call has its effect; the caller gets the same error.
    LATE = "late"  # The caller gets an error now; the effect follows some seconds later.
    KILLED_LATE = "killed, late"  # The worker dies; the effect follows some seconds later.
    DELAYED = "delayed"  # The message arrives after every timeout.
    OVERTAKEN = "overtaken"  # The message arrives after later messages of other connections.
    REPEATED = "repeated"  # The message arrives now, and again later on another connection.
    CUT = "cut"  # The message arrives, then the connection breaks.
    RAISES = "raises"  # The system's client raises an unexpected error before sending.
    RAISES_AFTER = "raises after"  # The same, after the answer has arrived.
    IN_DOUBT = "in doubt"  # Some questions of the batch get no answer.
    STALLED = "stalled"  # The disk takes longer than every timeout.
    EIO = "input/output error"
    ENOSPC = "no space left"
    CORE_KILLED = "core killed"  # The core's process dies; its writes remain in the page cache.
    POWER_LOST = "power lost"  # The core's machine dies and loses all or part of what is unsynced.


F = Fault
STATEMENT = (F.KILLED_BEFORE, F.LOST)
CALL = (F.KILLED_BEFORE, F.KILLED_AFTER, F.LOST, F.REPLY_LOST)
CRASH = (F.CORE_KILLED, F.POWER_LOST)

# Every point, with the faults that are possible there.
POINTS: Mapping[str, tuple[Fault, ...]] = {
    "due": STATEMENT,
    "claim": CALL,
    "look": STATEMENT,
    "find": STATEMENT,
    "askable": STATEMENT,
    "release": STATEMENT,
    "outage": STATEMENT,
    "clock": STATEMENT,
    "begin": STATEMENT,
    "lock": STATEMENT,
    "admit": STATEMENT,
    "reserve": STATEMENT,
    "write": STATEMENT,
    "aborted": STATEMENT,
    "inbox claim": CALL,
    "take": STATEMENT,
    "decide": STATEMENT,
    "inbox": STATEMENT,
    "commit": (*CALL, F.LATE, F.KILLED_LATE),
    "ask": (F.KILLED_BEFORE, F.KILLED_AFTER, F.RAISES, F.RAISES_AFTER, F.IN_DOUBT),
    "connect": (F.LOST, F.CUT),
    "request": (F.LOST, F.DELAYED, F.OVERTAKEN, F.REPEATED, F.CUT, *CRASH),
    "reply": (F.LOST, F.DELAYED, F.OVERTAKEN, F.CUT, *CRASH),
    "append": (F.ENOSPC, *CRASH),
    "fdatasync": (F.STALLED, F.EIO, *CRASH),
    "create": (F.ENOSPC, *CRASH),
    "rename": (F.EIO, *CRASH),
    "unlink": (F.EIO, *CRASH),
    "fsync_dir": (F.EIO, *CRASH),
}
KINDS = tuple((point, fault) for point, faults in POINTS.items() for fault in faults)
WORKER_POINTS = tuple(POINTS)[: tuple(POINTS).index("append")]

# The highest probability of a fault per call. Faults that stop a process for seconds are rarer,
# and points that are called seldom may fail more often.
DEFAULT_CHANCE, DEADLY_CHANCE, FEW_CALLS_CHANCE, ABORTED_CHANCE = 0.12, 0.014, 0.2, 0.5
DEADLY_FAULTS = frozenset({*CRASH, F.KILLED_BEFORE, F.KILLED_AFTER, F.KILLED_LATE, F.EIO})
FEWER_CALLS = frozenset({"find", "lock", "write", "ask", "request", "reply", "append", "fdatasync"})
FEW_CALLS = frozenset(
    (
        *("create", "rename", "unlink", "fsync_dir", "release", "outage", "clock", "askable"),
        *("connect", "admit", "take", "decide", "inbox"),
    )
)


class FaultSource(Protocol):
    """Decides the fault of each call."""

    def next_fault(self, point: str) -> Fault | None:
        """The fault of the next call at a point, or None."""


class FaultChance(NamedTuple):
    """A fault with its cumulative probability."""

    chance: float  # Of this fault or one before it in the list.
    fault: Fault


class RandomFaults:
    """Random faults. Each fault is off in half of the seeds, so that rare ones are not masked."""

    def __init__(self, dice: random.Random) -> None:
        self._random = dice.random
        self._kinds: dict[str, list[FaultChance]] = {}
        self._chances: dict[str, float] = {}  # Of any fault at a point.
        # In a few seeds nothing fails. There must be no alert in them.
        fault_free = dice.random() < 0.04
        for point, faults in POINTS.items():
            total, kinds = 0.0, []
            for fault in faults:
                if dice.random() < 0.5 and not fault_free:
                    total += dice.random() * max_chance(point, fault)
                    kinds.append(FaultChance(total, fault))
            if kinds:
                self._kinds[point], self._chances[point] = kinds, total

    def next_fault(self, point: str) -> Fault | None:
        # No random number is drawn for a point without faults.
        any_fault = self._chances.get(point)
        if any_fault is None or (chance := self._random()) >= any_fault:
            return None
        return next(kind.fault for kind in self._kinds[point] if chance < kind.chance)


def max_chance(point: str, fault: Fault) -> float:
    if point == "aborted":
        return ABORTED_CHANCE  # Called only after a COMMIT without a reply.
    deadly = fault in DEADLY_FAULTS
    if point in FEW_CALLS:
        return FEW_CALLS_CHANCE / 2 if deadly else FEW_CALLS_CHANCE
    if deadly:
        return DEADLY_CHANCE * 2.5 if point in FEWER_CALLS else DEADLY_CHANCE
    return DEFAULT_CHANCE


class FaultPlan:
    """Injects only the given faults, each at the index of a call, counted from 0.

    `calls` lists afterwards which points were called, in order: the next plan can add faults to
    these calls. A fault that is not possible at the point is an error in the plan.
    """

    def __init__(
        self, faults: Mapping[int, Fault] | None = None, points: Iterable[str] = POINTS
    ) -> None:
        self.faults = dict(faults or {})
        self.points = frozenset(points)  # Calls at other points are not counted.
        self.calls: list[str] = []

    def next_fault(self, point: str) -> Fault | None:
        if point not in self.points:
            return None
        fault = self.faults.get(len(self.calls))
        self.calls.append(point)
        assert fault is None or fault in POINTS[point], f"{point} cannot be {fault}"
        return fault
