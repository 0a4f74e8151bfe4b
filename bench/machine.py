"""The speed of the machine: a fixed loop in Python and one in SQL, run before every round.

These figures do not depend on Tidegate. If they are low, the machine was slow at that time.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import psycopg

from bench.running import figure

STEPS, KEYS = 2_000_000, 4_099
STATEMENTS, ROWS = 150, 10_000
LOOP_SQL = "SELECT sum(n %% 97) FROM generate_series(1, %s::integer) AS n"


class Speed(NamedTuple):
    python_steps_per_s: float
    sql_statements_per_s: float

    def rounded(self) -> dict[str, float]:
        return {name: round(value, 1) for name, value in self._asdict().items()}


UNITS: Mapping[str, str] = {
    "python_steps_per_s": "steps of a Python loop per second",
    "sql_statements_per_s": "statements of a SQL loop per second",
}


def speed(connection: psycopg.Connection) -> Speed:
    """The speed of one core. Each of the two loops takes less than a second."""
    return Speed(python_steps_per_s(), STATEMENTS / _sql_s(connection, STATEMENTS))


def python_steps_per_s() -> float:
    return STEPS / _python_s(STEPS)


def _python_s(steps: int) -> float:
    started_s = time.perf_counter()
    sums: dict[int, int] = {}
    for step in range(steps):
        key = step * 7_919 % KEYS
        sums[key] = sums.get(key, 0) + step
    took_s = time.perf_counter() - started_s
    assert sum(sums.values()) == steps * (steps - 1) // 2, "a step was not made"
    return took_s


def _sql_s(connection: psycopg.Connection, statements: int) -> float:
    started_s = time.perf_counter()
    for _ in range(statements):
        connection.execute(LOOP_SQL, (ROWS,), prepare=True)
    return time.perf_counter() - started_s


def summary(speeds: Sequence[Speed]) -> dict[str, dict[str, float]]:
    """The median and the range over all rounds."""
    return {name: figure([getattr(each, name) for each in speeds]) for name in Speed._fields}


def text_of(speeds: Mapping[str, Mapping[str, float]]) -> str:
    """One line of text, for a page or a terminal."""
    parts = []
    for name, unit in UNITS.items():
        if name in speeds:
            speed_ = speeds[name]
            spread = f"{speed_['min']:,.0f}…{speed_['max']:,.0f}"
            parts.append(f"{speed_['median']:,.0f} ({spread}) {unit}")
    return ", ".join(parts)


def over_parts(parts: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The summary of a run that measured the machine's speed before each part."""
    return summary([Speed(**each) for each in parts.values()])
