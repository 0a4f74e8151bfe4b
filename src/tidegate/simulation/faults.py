"""What goes wrong, and where: every call of a simulated process asks its fate first.

A point is a call that can fail; each has its list of faults. The swarm throws dice for them. A
plan says «the third call of all suffers this», so that every call can be tried with every fault.
"""

import random
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol


class Fault(StrEnum):
    """One way to fail. What it means is written at the point where it strikes."""

    KILLED_BEFORE = "killed before"  # The worker dies, and nothing was sent.
    KILLED_AFTER = "killed after"  # It was done; the worker dies and does not learn of it.
    LOST = "lost"  # Not done, and an error or a timeout says so little.
    REPLY_LOST = "reply lost"  # Done, with the same error.
    LATE = "late"  # An error now, and done some seconds later all the same.
    KILLED_LATE = "killed, late"  # The worker dies, and it is done some seconds later.
    DELAYED = "delayed"  # On its way for longer than anybody waits.
    OVERTAKEN = "overtaken"  # On its way for so long that later ones of others come first.
    REPEATED = "repeated"  # Done now, and once more later, on another connection.
    CUT = "cut"  # It arrives, and the connection breaks.
    RAISES = "raises"  # The system's client raises what makes no sense, before anything is sent.
    RAISES_AFTER = "raises after"  # The same, after it was answered.
    IN_DOUBT = "in doubt"  # Some questions of the batch get no answer.
    STALLED = "stalled"  # The disk takes longer than anybody waits.
    EIO = "input/output error"
    ENOSPC = "no space left"
    CORE_KILLED = "core killed"  # The core dies; what it wrote is still in the page cache.
    POWER_LOST = "power lost"  # The core's machine dies, with what was not synced, or part of it.


F = Fault
STATEMENT = (F.KILLED_BEFORE, F.LOST)
CALL = (F.KILLED_BEFORE, F.KILLED_AFTER, F.LOST, F.REPLY_LOST)
CRASH = (F.CORE_KILLED, F.POWER_LOST)

# Every point, and what can happen there.
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
    "fates": STATEMENT,
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

# How often a fault strikes at most, per call. What ends a process for seconds is rarer, and what
# is seldom called may fail more often.
USUAL, DEADLY, SELDOM, HARDLY_EVER = 0.12, 0.014, 0.2, 0.5
DEADLY_FAULTS = frozenset({*CRASH, F.KILLED_BEFORE, F.KILLED_AFTER, F.KILLED_LATE, F.EIO})
FEWER_CALLS = frozenset({"find", "lock", "write", "ask", "request", "reply", "append", "fdatasync"})
FEW_CALLS = frozenset(
    (
        *("create", "rename", "unlink", "fsync_dir", "release", "outage", "clock", "askable"),
        *("connect", "admit", "take", "decide", "inbox"),
    )
)


class FaultSource(Protocol):
    """What the next call at a point suffers. None: nothing."""

    def suffers(self, point: str) -> Fault | None: ...


class FaultChance(NamedTuple):
    chance: float  # That this fault strikes, or one before it in the list.
    fault: Fault


class RandomFaults:
    """Dice for each call. Each fault is off in half of the seeds, so that rare ones show."""

    def __init__(self, dice: random.Random) -> None:
        self._throw = dice.random
        self._kinds: dict[str, list[FaultChance]] = {}
        self._chances: dict[str, float] = {}  # That any fault strikes at a point.
        calm = dice.random() < 0.04  # A few seeds in which nothing goes wrong: no false alarm.
        for point, faults in POINTS.items():
            total, kinds = 0.0, []
            for fault in faults:
                if dice.random() < 0.5 and not calm:
                    total += dice.random() * most(point, fault)
                    kinds.append(FaultChance(total, fault))
            if kinds:
                self._kinds[point], self._chances[point] = kinds, total

    def suffers(self, point: str) -> Fault | None:
        # Nothing is thrown for a point at which nothing can happen.
        most_often = self._chances.get(point)
        if most_often is None or (chance := self._throw()) >= most_often:
            return None
        return next(kind.fault for kind in self._kinds[point] if chance < kind.chance)


def most(point: str, fault: Fault) -> float:
    if point == "fates":
        return HARDLY_EVER  # Asked only about a COMMIT without a reply.
    deadly = fault in DEADLY_FAULTS
    if point in FEW_CALLS:
        return SELDOM / 2 if deadly else SELDOM
    if deadly:
        return DEADLY * 2.5 if point in FEWER_CALLS else DEADLY
    return USUAL


class FaultPlan:
    """Only what is written down: the number of a call, counted from 0, and what it suffers.

    `calls` tells afterwards which points were called, in order, so that the next plan knows
    what there is to be tried. A fault that its point does not know is a mistake in the plan.
    """

    def __init__(
        self, faults: Mapping[int, Fault] | None = None, points: Iterable[str] = POINTS
    ) -> None:
        self.faults = dict(faults or {})
        self.points = frozenset(points)  # Calls at other points are not counted.
        self.calls: list[str] = []

    def suffers(self, point: str) -> Fault | None:
        if point not in self.points:
            return None
        fault = self.faults.get(len(self.calls))
        self.calls.append(point)
        assert fault is None or fault in POINTS[point], f"{point} cannot be {fault}"
        return fault
