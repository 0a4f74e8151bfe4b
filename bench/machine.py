"""How fast the machine itself is: a fixed loop in Python and one in SQL, before every round.

No change of Tidegate can change these figures. Where they are low, the hour was slow.
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
    """Of one core alone; each of the two takes less than a second."""
    return Speed(python_steps_per_s(), STATEMENTS / _sql_s(connection, STATEMENTS))


def python_steps_per_s() -> float:
    return STEPS / _python_s(STEPS)


def _python_s(steps: int) -> float:
    began_s = time.perf_counter()
    sums: dict[int, int] = {}
    for step in range(steps):
        key = step * 7_919 % KEYS
        sums[key] = sums.get(key, 0) + step
    took_s = time.perf_counter() - began_s
    assert sum(sums.values()) == steps * (steps - 1) // 2, "every step was made"
    return took_s


def _sql_s(connection: psycopg.Connection, statements: int) -> float:
    began_s = time.perf_counter()
    for _ in range(statements):
        connection.execute(LOOP_SQL, (ROWS,), prepare=True)
    return time.perf_counter() - began_s


def summary(speeds: Sequence[Speed]) -> dict[str, dict[str, float]]:
    """With the spread over all rounds."""
    return {name: figure([getattr(each, name) for each in speeds]) for name in Speed._fields}


def told(speeds: Mapping[str, Mapping[str, float]]) -> str:
    """In one line, for a page or a terminal."""
    parts = []
    for name, unit in UNITS.items():
        if name in speeds:
            each = speeds[name]
            spread = f"{each['min']:,.0f}…{each['max']:,.0f}"
            parts.append(f"{each['median']:,.0f} ({spread}) {unit}")
    return ", ".join(parts)


def over_parts(parts: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Of a run whose parts were each preceded by one look at the machine."""
    return summary([Speed(**each) for each in parts.values()])
