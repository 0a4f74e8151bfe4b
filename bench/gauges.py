"""What a case costs, as the system counts it: processor time, memory, WAL and fsyncs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psycopg

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
POSITION = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
# Since version 18, pg_stat_io contains the syncs of the WAL.
SYNCS_18 = "SELECT coalesce(sum(fsyncs), 0)::bigint FROM pg_stat_io WHERE object = 'wal'"
SYNCS = "SELECT wal_sync FROM pg_stat_wal"


class Written(NamedTuple):
    wal_bytes: int
    syncs: int


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += family(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass  # It has ended, and its usage is now counted for its parent.
    return found


def cpu_s(pid: int) -> float:
    """CPU time used by a process and by its descendants, ended ones included."""
    total_s = 0.0
    for each in family(pid):
        try:
            used = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            exact_s = _scheduled_s(each)
        except (FileNotFoundError, ProcessLookupError):
            continue
        own, ended = (sum(map(int, part)) * TICK_S for part in (used[11:13], used[13:15]))
        total_s += max(own, exact_s) + ended
    return total_s


def _scheduled_s(pid: int) -> float:
    """CPU time of the live threads in ns precision: in ticks, many idle sessions would be 0."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def memory_mb(pid: int) -> float:
    """Resident memory of a process and its descendants. Shared pages count once."""
    kilobytes = 0
    for each in family(pid):
        try:
            rollup = Path(f"/proc/{each}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        line = next((line for line in rollup.splitlines() if line.startswith("Pss:")), "Pss: 0")
        kilobytes += int(line.split()[1])
    return kilobytes / 1024


def cpu_of(roles: Mapping[str, int]) -> dict[str, float]:
    return {role: cpu_s(pid) for role, pid in roles.items()}


def memory_of(roles: Mapping[str, int]) -> dict[str, float]:
    return {role: round(memory_mb(pid), 1) for role, pid in roles.items()}


def written(connection: psycopg.Connection) -> Written:
    statement = SYNCS_18 if connection.info.server_version >= 180_000 else SYNCS
    connection.execute("SELECT pg_stat_clear_snapshot()")
    [position] = connection.execute(POSITION).fetchone() or (0,)
    [syncs] = connection.execute(statement).fetchone() or (0,)
    return Written(position, syncs)
