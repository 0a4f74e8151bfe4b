"""Constraints out of flow tables: the database itself refuses an answer that no flow allows."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache

from tidegate.core.flow import FEES, Ask, End, Flow
from tidegate.core.sql import texts


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _among(values: Iterable[str]) -> str:
    """One constant. The server reads a constraint anew for every statement: a condition for each
    value, spelled out, cost a statement more than all else that it does for a small batch."""
    return f"ANY ({quoted(texts(sorted(values)))}::text[])"


def history_check(flow: Flow) -> str:
    """Only answers of the table may enter the history, the first one with its way from birth."""
    allowed = {
        "/".join(
            (
                "0" if edge.first else "1",
                edge.path[0],
                " ".join(edge.path[1:-1]),
                edge.path[-1],
                edge.verb,
                edge.answer,
            )
        )
        for edge in flow.answers()
    }
    answered = " || '/' || ".join(("from_state", "waypoints", "to_state", "verb", "answer"))
    return (
        f"flow <> {quoted(flow.name)}\n"
        f"OR least(version, 1)::text || '/' || {answered}\n = {_among(allowed)}"
    )


def state_check(flow: Flow) -> str:
    """A transfer rests only where the table asks something or ends, and an end has no lane."""
    asks = _among(str(s) for s, row in flow.rows.items() if isinstance(row, Ask))
    ends = _among(str(s) for s, row in flow.rows.items() if isinstance(row, End))
    return (
        f"flow <> {quoted(flow.name)}\n"
        f"OR (lane IS NOT NULL AND state = {asks})\n"
        f"OR (lane IS NULL AND state = {ends})"
    )


@lru_cache(maxsize=256)
def checksum(flow: Flow) -> str:
    """Of all that the database enforces or shows of a flow."""
    shown = [(str(s), str(r.place), flow.codes.get(s)) for s, r in sorted(flow.rows.items())]
    parts = [history_check(flow), state_check(flow), repr(shown)]
    if FEES in flow.roles:
        # A program whose flow takes no fee must not ask about transfers that carry one.
        parts.append(FEES)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def checksums(flows: Iterable[Flow]) -> dict[str, str]:
    return {flow.name: checksum(flow) for flow in flows}


def differing(installed: Mapping[str, str], flows: Iterable[Flow]) -> list[str]:
    """The flows whose table in the database is not the one of this program."""
    return [flow.name for flow in flows if installed.get(flow.name) != checksum(flow)]
