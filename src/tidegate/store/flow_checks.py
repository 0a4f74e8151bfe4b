"""Builds constraints from flow tables: the database refuses an answer that no flow allows."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from tidegate.core.flow import FEES, Ask, End, Flow
from tidegate.core.sql import texts

# Separates the parts of an answer. No state of an installed flow has a tab in its name, so two
# different rows never join to the same text.
TAB = "\t"


class FlowRules(NamedTuple):
    """The answers and states that a flow allows, as stored in the table flow_rules."""

    flow: str
    answers: list[str]
    rests: list[str]


def rules_of(flow: Flow) -> FlowRules:
    asks = [f"ask {state}" for state in _states(flow, Ask)]
    ends = [f"end {state}" for state in _states(flow, End)]
    return FlowRules(flow.name, sorted(_answers(flow, TAB)), sorted(asks + ends))


def history_rule(installed: Iterable[FlowRules]) -> str:
    """The condition for history rows: only answers of the flow. The first answer of a transfer
    contains its path from the initial state.

    For a flow that is not installed the condition is NULL, and the row is accepted. None of the
    columns read here can be NULL.
    """
    allowed = _constant({rules.flow: rules.answers for rules in installed})
    answered = "least(version, 1), from_state, waypoints, to_state, verb, answer"
    return f"({allowed} -> flow)\n ? concat_ws(E'\\t', {answered})"


def state_rule(installed: Iterable[FlowRules]) -> str:
    """The condition for transfers: they rest only in an asking state or an end, and only an end
    has no lane.
    """
    allowed = _constant({rules.flow: rules.rests for rules in installed})
    return f"({allowed} -> flow)\n ? (CASE WHEN lane IS NULL THEN 'end ' ELSE 'ask ' END || state)"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _constant(allowed: Mapping[str, Sequence[str]]) -> str:
    """All flows in one constant. The server parses a constraint again for every statement, and this
    is the smallest of all forms that were measured (decision 32).
    """
    return quoted(json.dumps(allowed, ensure_ascii=False, sort_keys=True)) + "::jsonb"


def _answers(flow: Flow, separator: str) -> set[str]:
    return {
        separator.join(
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


def _states(flow: Flow, kind: type[Ask | End]) -> Iterator[str]:
    return (str(state) for state, row in flow.rows.items() if isinstance(row, kind))


def _among(values: Iterable[str]) -> str:
    return f"ANY ({quoted(texts(sorted(values)))}::text[])"


def _history_check(flow: Flow) -> str:
    answered = " || '/' || ".join(("from_state", "waypoints", "to_state", "verb", "answer"))
    return (
        f"flow <> {quoted(flow.name)}\n"
        f"OR least(version, 1)::text || '/' || {answered}\n = {_among(_answers(flow, '/'))}"
    )


def _state_check(flow: Flow) -> str:
    return (
        f"flow <> {quoted(flow.name)}\n"
        f"OR (lane IS NOT NULL AND state = {_among(_states(flow, Ask))})\n"
        f"OR (lane IS NULL AND state = {_among(_states(flow, End))})"
    )


def older_checks(flow: Flow) -> tuple[str, str]:
    """The constraints flow_<name> on history and transfers, as before migration 0019."""
    return _history_check(flow), _state_check(flow)


@lru_cache(maxsize=256)
def checksum(flow: Flow) -> str:
    """The checksum of everything that the database enforces or shows of a flow. Processes of older
    versions compare it, so it is computed from the older form of the constraints.
    """
    shown = [(str(s), str(r.place), flow.codes.get(s)) for s, r in sorted(flow.rows.items())]
    parts = [*older_checks(flow), repr(shown)]
    if FEES in flow.roles:
        # A program whose flow has no fee must not process transfers with a fee.
        parts.append(FEES)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def checksums(flows: Iterable[Flow]) -> dict[str, str]:
    return {flow.name: checksum(flow) for flow in flows}


def differing(installed: Mapping[str, str], flows: Iterable[Flow]) -> list[str]:
    """The flows whose table in the database differs from the one in this program."""
    return [flow.name for flow in flows if installed.get(flow.name) != checksum(flow)]
