"""A flow is a table of states: each state names where the money is and which party to ask next.

The table has a column for Done and a column for Rejected, but none for Unknown. So a flow cannot
contain a rule such as "on timeout, refund".
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cached_property
from typing import NamedTuple, TypeAlias

import msgspec

from tidegate.core.answers import Alarm


class Place(StrEnum):
    """Where the money is while a transfer rests in a state."""

    SOURCE = "source"
    HELD = "held"
    IN_FLIGHT = "in flight"
    TARGET = "target"
    SUSPENSE = "suspense"


class Verb(StrEnum):
    """The operations of a system. Each verb but CHECK moves money from one place to another."""

    CHECK = "check"  # Moves no money: a limit, a policy, the approval of a person.
    HOLD = "hold"
    CAPTURE = "capture"
    RELEASE = "release"
    DEBIT = "debit"
    CREDIT = "credit"
    REFUND = "refund"


class Action(NamedTuple):
    """The effect of a verb: the place that it takes money from, and the place it moves it to."""

    before: Place
    after: Mapping[str, Place]  # By the role that is asked. Other roles may not be asked.


# A refund must ask the party that was debited; a capture or a release must ask the party that
# holds. Only a CREDIT moves money to a target: a capture only puts held money in flight.
ACTIONS: Mapping[Verb, Action] = {
    Verb.HOLD: Action(Place.SOURCE, {"source": Place.HELD}),
    Verb.CAPTURE: Action(Place.HELD, {"source": Place.IN_FLIGHT}),
    Verb.RELEASE: Action(Place.HELD, {"source": Place.SOURCE}),
    Verb.DEBIT: Action(Place.SOURCE, {"source": Place.IN_FLIGHT}),
    Verb.CREDIT: Action(Place.IN_FLIGHT, {"target": Place.TARGET, "suspense": Place.SUSPENSE}),
    Verb.REFUND: Action(Place.IN_FLIGHT, {"source": Place.SOURCE}),
}
# An undo names the key of one of these. The refund of captured money names the capture.
TAKING_VERBS = frozenset({Verb.DEBIT, Verb.HOLD, Verb.CAPTURE})
UNDO_VERBS = frozenset({Verb.REFUND, Verb.CAPTURE, Verb.RELEASE})  # A CAPTURE ends a hold, too.

FEES = "fees"  # The role of the account that gets the fee of a transfer.
ROLES = frozenset({"source", "target", "suspense"})  # Every flow may use these.


class RetryPolicy(msgspec.Struct, frozen=True):
    """How long to wait between two attempts, and when to page an operator."""

    first_s: float = 1.0
    cap_s: float = 15.0
    page_attempts: int | None = 10
    page_after_s: float | None = 300.0
    alarm: Alarm = Alarm.PAGE
    jitter: float = 0.25  # The part of a pause that is random.
    # Retries of one transfer, counted over all its states. After them, Unknown becomes
    # Rejected(EXHAUSTED). None: no limit.
    max_retries: int | None = None


DEFAULT_RETRY = RetryPolicy()
URGENT = RetryPolicy(page_after_s=60.0, alarm=Alarm.CRITICAL)
# For an answer that a person gives: it is expected to take long.
NEVER_PAGES = RetryPolicy(page_attempts=None, page_after_s=None)


class Ask(msgspec.Struct, frozen=True):
    """Put one question to one system, until it answers Done or Rejected."""

    place: Place
    role: str  # The party of the transfer with this role is asked.
    verb: Verb
    done: StrEnum
    # None: the flow cannot accept a Rejected. The transfer stays in this state and pages.
    rejected: StrEnum | None = None
    retry: RetryPolicy = DEFAULT_RETRY
    deadline_s: float | None = None  # After it, Unknown becomes Rejected(EXPIRED).
    opens: bool = False  # Open the account if it does not exist.
    # A Rejected leads back to an earlier state. It counts as a retry and waits like one.
    backs_off: bool = False
    # Do not ask in the transaction that enters this state. This breaks a cycle.
    rests: bool = False


class Pass(msgspec.Struct, frozen=True):
    """A waypoint: it is written to the history, and the transfer passes on at once."""

    place: Place
    to: StrEnum


class End(msgspec.Struct, frozen=True):
    place: Place


Row: TypeAlias = Ask | Pass | End


class Edge(NamedTuple):
    """One answer that a flow allows, in the form in which the history stores it."""

    first: bool  # The path of the first answer begins at creation, with its waypoints.
    path: tuple[str, ...]
    verb: str
    answer: str


@dataclass(frozen=True, eq=False)  # One table is one object: it can be a key.
class Flow:
    name: str
    first: StrEnum
    rows: Mapping[StrEnum, Row]
    # Numbers for the states, as other programs know them. Their order has no meaning.
    codes: Mapping[StrEnum, int] = field(default_factory=dict)
    # Roles besides source, target and suspense: those of its checks, and `fees` if its transfers
    # may carry a fee. They are declared, so that the import of a flow finds a misspelt role.
    roles: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if faults := list(_faults(self)):
            raise TypeError(f"flow {self.name} is unsound:\n  " + "\n  ".join(faults))

    @cached_property
    def _walks(self) -> Mapping[str, tuple[str, ...]]:
        """Computed once, because `arrive` runs for every answer."""
        return {state: tuple(self._walk(state)) for state in self.rows}

    def _walk(self, state: StrEnum) -> Iterator[str]:
        yield str(state)
        row = self.rows[state]
        if isinstance(row, Pass):
            yield from self._walk(row.to)

    def arrive(self, state: str) -> tuple[str, ...]:
        """The states entered by arriving at `state`: its waypoints, then the one it stops in."""
        return self._walks[state]

    def row(self, state: str) -> Row:
        # A StrEnum member hashes and compares as its text, which is what the store holds.
        return self.rows[state]  # type: ignore[index]

    @cached_property
    def _asks(self) -> Mapping[str, Ask | None]:
        return {state: row if isinstance(row, Ask) else None for state, row in self.rows.items()}

    def ask(self, state: str) -> Ask | None:
        return self._asks[state]

    def first_ask(self, path: Iterable[str]) -> Ask | None:
        """The question of the first state on a path that asks: the one its answer is about."""
        return next((ask for state in path if (ask := self._asks.get(state))), None)

    @cached_property
    def required_roles(self) -> frozenset[str]:
        """The roles that a request must name: all of them, and no others."""
        asked_roles = {ask.role for ask in self._asks.values() if ask is not None}
        return frozenset({"source", *asked_roles, *self.roles})

    @cached_property
    def waiting_states(self) -> frozenset[str]:
        """States in which a transfer waits by design: for a person, or until a given time."""
        asks = [(str(state), ask) for state, ask in self._asks.items() if ask is not None]
        return frozenset(
            state
            for state, ask in asks
            if ask.deadline_s is not None or ask.retry.page_attempts is None
        )

    @property
    def waits_by_design(self) -> bool:
        return bool(self.waiting_states)

    def is_end(self, state: str) -> bool:
        return isinstance(self.row(state), End)

    def path(self, version: int, asked: str, to: str) -> tuple[str, ...]:
        """The states of one answer: from the state that asked to the state that it leads to."""
        return self._paths[version == 0, asked, to]

    @cached_property
    def _paths(self) -> Mapping[tuple[bool, str, str], tuple[str, ...]]:
        waypoints = self._walks[self.first][:-1]
        return {
            (first, asked, to): (*(waypoints if first else ()), str(asked), *self._walks[to])
            for first in (False, True)
            for asked in self.rows
            for to in self.rows
        }

    def edges(self) -> Iterator[tuple[StrEnum, str, StrEnum]]:
        for state, row in self.rows.items():
            match row:
                case Ask():
                    yield state, f"{row.role}.{row.verb} done", row.done
                    if row.rejected is not None:
                        yield state, f"{row.role}.{row.verb} rejected", row.rejected
                case Pass():
                    yield state, "", row.to

    def answers(self) -> Iterator[Edge]:
        """Every answer that the history of this flow may contain."""
        opening = self.arrive(self.first)[-1]
        for state, row in self.rows.items():
            if not isinstance(row, Ask):
                continue
            # Every state may stay after a Rejected: when it has no state for it, or when the undo
            # that would follow is one that the system cannot do.
            outcomes = [
                ("done", row.done),
                ("rejected", row.rejected or state),
                ("rejected", state),
            ]
            for answer, to in dict.fromkeys(outcomes):
                if state == opening:
                    yield Edge(
                        first=True, path=self.path(0, state, to), verb=row.verb, answer=answer
                    )
                yield Edge(first=False, path=self.path(1, state, to), verb=row.verb, answer=answer)

    def mermaid(self) -> str:
        lines = ["stateDiagram-v2", f"    [*] --> {self.first}"]
        lines += [f"    {a} --> {b}" + f" : {label}" * bool(label) for a, label, b in self.edges()]
        lines += [f"    {s} --> [*]" for s, row in self.rows.items() if isinstance(row, End)]
        return "\n".join(lines) + "\n"


def _faults(flow: Flow) -> Iterator[str]:
    """Yield every fault by which the table could lose or create money, or get stuck."""
    named: set[Enum] = set(type(flow.first))
    declared: set[Enum] = set(flow.rows)
    edges = [(a, b) for a, _, b in flow.edges()]
    yield from (f"{state} is named but has no row" for state in sorted(named - declared, key=str))
    yield from (f"{a} leads to {b}, which is no state here" for a, b in edges if b not in declared)
    yield from (f"{state} has a code but no row" for state in flow.codes if state not in declared)

    if flow.first in declared and flow.rows[flow.first].place is not Place.SOURCE:
        yield f"{flow.first}: a flow begins with the money at its source"

    ends = {state for state, row in flow.rows.items() if isinstance(row, End)}
    reachable = _closure({flow.first}, edges)
    can_end = _closure(ends, [(b, a) for a, b in edges])
    for state, row in flow.rows.items():
        if state not in reachable:
            yield f"{state} cannot be reached"
        if state not in can_end:
            yield f"{state} cannot reach an end"
        yield from _row_faults(flow, state, row)
    yield from _cycle_faults(flow, edges)
    yield from _role_faults(flow)


def _role_faults(flow: Flow) -> Iterator[str]:
    """A transfer would be stuck, maybe after its debit, if no request named a role it asks."""
    asks = {state: row for state, row in flow.rows.items() if isinstance(row, Ask)}
    known = ROLES | flow.roles
    for state, ask in asks.items():
        if ask.role not in known:
            yield f"{state}: the role {ask.role} is not declared; declared are {sorted(known)}"
    for role in sorted(flow.roles - {FEES} - {ask.role for ask in asks.values()}):
        yield f"the role {role} is declared, but no state asks it"
    credits_target = any(ask.role == "target" and ask.verb is Verb.CREDIT for ask in asks.values())
    if FEES in flow.roles and not credits_target:
        yield "a fee is taken from the credit of a target, and no state credits a target"


def _row_faults(flow: Flow, state: StrEnum, row: Row) -> Iterator[str]:
    place = {state: row.place for state, row in flow.rows.items()}
    match row:
        case Pass() if place.get(row.to) is not row.place:
            yield f"{state}: a waypoint moves no money; {row.to} disagrees"
        case End() if row.place in (Place.IN_FLIGHT, Place.HELD):
            yield f"{state}: money cannot stay {row.place} at an end"
        case Ask():
            yield from _ask_faults(state, row, place)
        case _:
            pass


def _ask_faults(state: StrEnum, row: Ask, place: Mapping[StrEnum, Place]) -> Iterator[str]:
    action = ACTIONS.get(row.verb)
    after: Place | None = row.place
    if action is not None:
        after = action.after.get(row.role)
        if row.place is not action.before:
            yield f"{state}: {row.verb} takes money from {action.before}, not {row.place}"
        if after is None:
            yield f"{state}: {row.verb} asks {' or '.join(sorted(action.after))}, not {row.role}"
    if after is not None and row.done in place and place[row.done] is not after:
        yield f"{state}: {row.verb} leaves money at {after}; {row.done} disagrees"
    if row.rejected is not None and place.get(row.rejected) is not row.place:
        yield f"{state}: a rejection moves no money; {row.rejected} disagrees"
    if row.deadline_s is not None and (action is not None or row.rejected is None):
        # An answer after the deadline is ignored. If the verb moved money, it would be lost.
        yield f"{state}: a deadline needs a verb that moves no money and a state for Rejected"
    if row.retry.max_retries is not None and (action is not None or row.rejected is None):
        yield f"{state}: max_retries needs a verb that moves no money and a state for Rejected"


def _cycle_faults(flow: Flow, edges: list[tuple[StrEnum, StrEnum]]) -> Iterator[str]:
    """A cycle without a state that rests could repeat for ever inside one transaction."""
    rests = {s for s, row in flow.rows.items() if isinstance(row, Ask) and row.rests}
    same_transaction = [(a, b) for a, b in edges if a not in rests]
    for state in flow.rows:
        if state in _closure({b for a, b in same_transaction if a == state}, same_transaction):
            yield f"{state} lies on a cycle in which no state rests"


def _closure(seeds: set[StrEnum], edges: list[tuple[StrEnum, StrEnum]]) -> set[StrEnum]:
    seen = set(seeds)
    while new := {b for a, b in edges if a in seen} - seen:
        seen |= new
    return seen
