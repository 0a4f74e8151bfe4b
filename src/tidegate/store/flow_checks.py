"""Constraints out of flow tables: the database itself refuses an answer that no flow allows."""

import hashlib
from collections.abc import Iterable, Mapping

from tidegate.core.flow import Ask, Edge, End, Flow


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def history_check(flow: Flow) -> str:
    """Only answers of the table may enter the history, the first one with its way from birth."""
    edges = list(flow.answers())
    first = _rows(edge for edge in edges if edge.first)
    later = _rows(edge for edge in edges if not edge.first)
    columns = "(from_state, waypoints, to_state, verb, answer)"
    return (
        f"flow <> {quoted(flow.name)}\n"
        f"OR (version = 0 AND {columns} IN (\n  {first}))\n"
        f"OR (version > 0 AND {columns} IN (\n  {later}))"
    )


def state_check(flow: Flow) -> str:
    """A transfer rests only where the table asks something or ends, and an end has no lane."""
    asks = ", ".join(quoted(s) for s, row in flow.rows.items() if isinstance(row, Ask))
    ends = ", ".join(quoted(s) for s, row in flow.rows.items() if isinstance(row, End))
    return (
        f"flow <> {quoted(flow.name)}\n"
        f"OR (lane IS NOT NULL AND state IN ({asks}))\n"
        f"OR (lane IS NULL AND state IN ({ends}))"
    )


def checksum(flow: Flow) -> str:
    """Of all that the database enforces or shows of a flow."""
    shown = [(str(s), str(r.place), flow.codes.get(s)) for s, r in sorted(flow.rows.items())]
    parts = (history_check(flow), state_check(flow), repr(shown))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def differing(installed: Mapping[str, str], flows: Iterable[Flow]) -> list[str]:
    """The flows whose table in the database is not the one of this program."""
    return [flow.name for flow in flows if installed.get(flow.name) != checksum(flow)]


def _rows(edges: Iterable[Edge]) -> str:
    rows = [
        (edge.path[0], " ".join(edge.path[1:-1]), edge.path[-1], edge.verb, edge.answer)
        for edge in edges
    ]
    return ",\n  ".join("(" + ", ".join(quoted(str(c)) for c in row) + ")" for row in sorted(rows))
