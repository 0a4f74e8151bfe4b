"""State of the in-memory store besides transfers: halts, outages of lanes, and the clock."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tidegate.core.ports import MAX_HALTS, Halt, Outage
from tidegate.core.transfer import Move
from tidegate.store.rows import PROBES_KEPT

if TYPE_CHECKING:
    from tidegate.store.memory_tables import MemoryRow

FRESH_US, FUTURE_US = 120_000_000, 5_000_000  # An outage with a probe in this range is current.
STEP_US, KEPT_US = 2_000_000, 4_000_000
NO_OUTAGE = Outage("", 0, 0, (), "")


class MemoryHalts:
    """The halts in force. Each is added and ended by itself."""

    def __init__(self) -> None:
        self._halts: dict[int, Halt] = {}
        self._last = 0

    def __bool__(self) -> bool:
        return bool(self._halts)

    def add(self, reason: str, actor: str, at_us: int) -> int:
        self._last += 1
        self._halts[self._last] = Halt(self._last, reason, actor, at_us)
        return self._last

    def shown(self) -> Sequence[Halt]:
        return list(self._halts.values())[:MAX_HALTS]

    def end(self, ids: Sequence[int] | None = None) -> Sequence[Halt]:
        """End the halts named, or all, and return them."""
        ended = [halt for halt in self._halts.values() if ids is None or halt.id in ids]
        for halt in ended:
            del self._halts[halt.id]
        return ended


def outage_noted(before: Outage | None, noted: Outage) -> Outage:
    """The outage after one more failed attempt. The first attempt starts a new outage."""
    if before is None or noted.attempts == 1:
        return noted
    probed_us = [*before.probed_us, *noted.probed_us][-PROBES_KEPT:]
    return noted._replace(since_us=before.since_us, probed_us=probed_us)


def outages(rows: Mapping[Hashable, Outage], now_us: int) -> Sequence[Outage]:
    """For each lane that is unreachable now, the outage of the worker with the most attempts."""
    longest: dict[str, Outage] = {}
    for outage in rows.values():
        fresh = -FUTURE_US <= now_us - outage.probed_us[-1] <= FRESH_US
        if fresh and outage.attempts > longest.get(outage.lane, NO_OUTAGE).attempts:
            longest[outage.lane] = outage
    return list(longest.values())


def is_late(row: "MemoryRow", late_s: float, now_us: int) -> bool:
    """Whether an open row is due after `late_s`, or was updated in the future."""
    future = row.due_s > late_s or row.transfer.updated_us > now_us + STEP_US
    return row.transfer.lane is not None and future


def due_now(row: "MemoryRow", now_us: int) -> "MemoryRow":
    """Make a row due now. Its last update is at most now: no answer is from the future."""
    updated_us = min(row.transfer.updated_us, now_us)
    return row._replace(
        transfer=replace(row.transfer, updated_us=updated_us), due_s=now_us / 1_000_000, held=False
    )


def clock_step(latest_us: int, now_us: int) -> tuple[float, int]:
    """By how many seconds the clock was set back, and the latest time to store."""
    behind_us = latest_us - now_us
    if behind_us > STEP_US:
        return behind_us / 1_000_000, now_us
    return 0.0, now_us if behind_us < -KEPT_US else latest_us


def after(at_us: int, seconds: float) -> float:
    """The time in seconds, rounded to microseconds, which is the resolution of the database."""
    return (at_us + round(seconds * 1_000_000)) / 1_000_000


def expires_s(at_us: int, move: Move) -> float | None:
    """When a transfer that is being created expires; None if it does not."""
    if move.expiry is None:
        return None
    after_s, ends_us = move.expiry
    return ends_us / 1_000_000 if ends_us is not None else after(at_us, after_s or 0.0)


def deadline_s(at_us: int, move: Move, expiry_s: float | None) -> float | None:
    """The deadline of the state after the move. If the transfer expires, it is that time."""
    limit_s = move.deadline_s
    return None if limit_s is None else expiry_s or after(at_us, limit_s)
