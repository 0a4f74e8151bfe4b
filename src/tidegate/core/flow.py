"""A flow is a table: each state says where the money is and whom to ask next.

The table has a column for Done and one for Rejected, and none for Unknown. So a flow cannot
say «on timeout, refund»: there is nowhere to write it.
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
    """What a system can be asked. Each verb moves money from one place to one other."""

    CHECK = "check"  # Moves nothing: a limit, a policy, a person's approval.
    HOLD = "hold"
    CAPTURE = "capture"
    RELEASE = "release"
    DEBIT = "debit"
    CREDIT = "credit"
    REFUND = "refund"


class Action(NamedTuple):
    """What a verb does: from which place it takes money, and by whom it is asked, to which."""

    before: Place
    after: Mapping[str, Place]  # By the role that is asked; no other role may be.


# A refund must ask the party that was debited, and a capture or a release the one that holds.
# Only a CREDIT brings money to a target: a capture takes it off the hold, and no further.
ACTIONS: Mapping[Verb, Action] = {
    Verb.HOLD: Action(Place.SOURCE, {"source": Place.HELD}),
    Verb.CAPTURE: Action(Place.HELD, {"source": Place.IN_FLIGHT}),
    Verb.RELEASE: Action(Place.HELD, {"source": Place.SOURCE}),
    Verb.DEBIT: Action(Place.SOURCE, {"source": Place.IN_FLIGHT}),
    Verb.CREDIT: Action(Place.IN_FLIGHT, {"target": Place.TARGET, "suspense": Place.SUSPENSE}),
    Verb.REFUND: Action(Place.IN_FLIGHT, {"source": Place.SOURCE}),
}
# Their key is what an undo names. The refund of captured money names the capture.
TAKES = frozenset({Verb.DEBIT, Verb.HOLD, Verb.CAPTURE})
UNDOES = frozenset({Verb.REFUND, Verb.CAPTURE, Verb.RELEASE})  # CAPTURE closes a hold, too.

FEES = "fees"  # The role of the account that gets the fee of a transfer.
ROLES = frozenset({"source", "target", "suspense"})  # Known in every flow.


class RetryPolicy(msgspec.Struct, frozen=True):
    """How long to wait between two attempts, and when a human is called."""

    first_s: float = 1.0
    cap_s: float = 15.0
    page_attempts: int | None = 10
    page_after_s: float | None = 300.0
    alarm: Alarm = Alarm.PAGE
    chance: float = 0.25  # The part of a pause that is left to chance.
    # Pauses by backoff in the life of a transfer, after which Unknown becomes Rejected(EXHAUSTED).
    most: int | None = None


ACCOUNTS = RetryPolicy()
URGENT = RetryPolicy(page_after_s=60.0, alarm=Alarm.CRITICAL)
NEVER_PAGES = RetryPolicy(
    page_attempts=None, page_after_s=None
)  # A person is expected to take time.


class Ask(msgspec.Struct, frozen=True):
    """Put one question to one system, until it answers Done or Rejected."""

    place: Place
    role: str  # Who is asked: the transfer names the party that plays this role.
    verb: Verb
    done: StrEnum
    rejected: StrEnum | None = None  # None: a «no» is not acceptable; stay, and page a human.
    patience: RetryPolicy = ACCOUNTS
    deadline_s: float | None = None  # Past it, Unknown becomes Rejected(EXPIRED).
    opens: bool = False  # The account asked for is opened if it does not exist.
    backs_off: bool = False  # A «no» leads back: it counts as a retry, and waits like one.
    rests: bool = False  # Never asked in the transaction that arrives here: breaks a cycle.


class Pass(msgspec.Struct, frozen=True):
    """A waypoint: written to the history, never rested in."""

    place: Place
    to: StrEnum


class End(msgspec.Struct, frozen=True):
    place: Place


Row: TypeAlias = Ask | Pass | End


class Edge(NamedTuple):
    """One answer that a flow allows: the form in which the history may hold it."""

    first: bool  # The first answer's path begins at birth, with the waypoints before it.
    path: tuple[str, ...]
    verb: str
    answer: str


@dataclass(frozen=True, eq=False)  # One table is one object: it can be a key.
class Flow:
    name: str
    first: StrEnum
    rows: Mapping[StrEnum, Row]
    codes: Mapping[StrEnum, int] = field(default_factory=dict)  # External; they have no order.
    # Roles besides source, target and suspense: those of its checks, and `fees` if its transfers
    # may carry a fee. Declared here, so that a misspelt role is found when the flow is imported.
    roles: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if faults := list(_faults(self)):
            raise TypeError(f"flow {self.name} is unsound:\n  " + "\n  ".join(faults))

    @cached_property
    def _walks(self) -> Mapping[str, tuple[str, ...]]:
        """Looked up for every answer, so that it is worked out once."""
        return {state: tuple(self._walk(state)) for state in self.rows}

    def _walk(self, state: StrEnum) -> Iterator[str]:
        yield str(state)
        row = self.rows[state]
        if isinstance(row, Pass):
            yield from self._walk(row.to)

    def arrive(self, state: str) -> tuple[str, ...]:
        """The states walked on entering `state`: its waypoints, then where it rests."""
        return self._walks[state]

    def row(self, state: str) -> Row:
        # A StrEnum member hashes and compares as its text, which is what the store holds.
        return self.rows[state]  # type: ignore[index]

    @cached_property
    def _asks(self) -> Mapping[str, Ask | None]:
        return {state: row if isinstance(row, Ask) else None for state, row in self.rows.items()}

    def ask(self, state: str) -> Ask | None:
        return self._asks[state]

    def asked(self, path: Iterable[str]) -> Ask | None:
        """The question of an answer: the first state on its path that asks one."""
        return next((ask for state in path if (ask := self._asks.get(state))), None)

    @cached_property
    def cast(self) -> frozenset[str]:
        """The roles that a request must fill, all of them and no others."""
        asked = {ask.role for ask in self._asks.values() if ask is not None}
        return frozenset({"source", *asked, *self.roles})

    @cached_property
    def waiting_states(self) -> frozenset[str]:
        """Where a transfer waits by design: for a person, or for a time to come."""
        asks = [(str(state), ask) for state, ask in self._asks.items() if ask is not None]
        return frozenset(
            state
            for state, ask in asks
            if ask.deadline_s is not None or ask.patience.page_attempts is None
        )

    @property
    def waits_by_design(self) -> bool:
        return bool(self.waiting_states)

    def is_end(self, state: str) -> bool:
        return isinstance(self.row(state), End)

    def path(self, version: int, asked: str, to: str) -> tuple[str, ...]:
        """The states that one answer walks: from where it was asked to where it rests."""
        return self._paths[version == 0, asked, to]

    @cached_property
    def _paths(self) -> Mapping[tuple[bool, str, str], tuple[str, ...]]:
        born = self._walks[self.first][:-1]
        return {
            (first, asked, to): (*(born if first else ()), str(asked), *self._walks[to])
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
        """Every answer that the history of this flow may hold."""
        opening = self.arrive(self.first)[-1]
        for state, row in self.rows.items():
            if not isinstance(row, Ask):
                continue
            # A Rejected may always stay where it is: a «no» without a column, or one whose undo
            # the source cannot make.
            ends = [("done", row.done), ("rejected", row.rejected or state), ("rejected", state)]
            for answer, to in dict.fromkeys(ends):
                if state == opening:
                    yield Edge(
                        first=True, path=self.path(0, state, to), verb=row.verb, answer=answer
                    )
                yield Edge(first=False, path=self.path(1, state, to), verb=row.verb, answer=answer)

    def mermaid(self) -> str:
        lines = ["stateDiagram-v2", f"    [*] --> {self.first}"]
        lines += [f"    {a} --> {b}" + f" : {why}" * bool(why) for a, why, b in self.edges()]
        lines += [f"    {s} --> [*]" for s, row in self.rows.items() if isinstance(row, End)]
        return "\n".join(lines) + "\n"


def _faults(flow: Flow) -> Iterator[str]:
    """Yield every way in which the table is not a sound movement of money."""
    named: set[Enum] = set(type(flow.first))
    declared: set[Enum] = set(flow.rows)
    edges = [(a, b) for a, _, b in flow.edges()]
    yield from (f"{state} is named but has no row" for state in sorted(named - declared, key=str))
    yield from (f"{a} leads to {b}, which is no state here" for a, b in edges if b not in declared)
    yield from (f"{state} has a code but no row" for state in flow.codes if state not in declared)

    if flow.first in declared and flow.rows[flow.first].place is not Place.SOURCE:
        yield f"{flow.first}: a flow begins with the money at its source"

    ends = {state for state, row in flow.rows.items() if isinstance(row, End)}
    onward = _closure({flow.first}, edges)
    homeward = _closure(ends, [(b, a) for a, b in edges])
    for state, row in flow.rows.items():
        if state not in onward:
            yield f"{state} cannot be reached"
        if state not in homeward:
            yield f"{state} cannot reach an end"
        yield from _row_faults(flow, state, row)
    yield from _cycle_faults(flow, edges)
    yield from _role_faults(flow)


def _role_faults(flow: Flow) -> Iterator[str]:
    """A role that no request fills would leave a transfer stuck, after its debit at the worst."""
    asks = {state: row for state, row in flow.rows.items() if isinstance(row, Ask)}
    known = ROLES | flow.roles
    for state, ask in asks.items():
        if ask.role not in known:
            yield f"{state}: the role {ask.role} is not declared; known are {sorted(known)}"
    for role in sorted(flow.roles - {FEES} - {ask.role for ask in asks.values()}):
        yield f"the role {role} is declared, and no state asks it"
    pays = any(ask.role == "target" and ask.verb is Verb.CREDIT for ask in asks.values())
    if FEES in flow.roles and not pays:
        yield "a fee is taken from the credit of a target, and there is none"


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
        # After a deadline nobody listens any more: a late effect would be nobody's money.
        yield f"{state}: a deadline needs a verb that moves nothing and a state for its «no»"
    if row.patience.most is not None and (action is not None or row.rejected is None):
        yield f"{state}: to give up needs a verb that moves nothing and a state for its «no»"


def _cycle_faults(flow: Flow, edges: list[tuple[StrEnum, StrEnum]]) -> Iterator[str]:
    """A cycle in which no state rests could turn for ever inside one transaction."""
    rests = {s for s, row in flow.rows.items() if isinstance(row, Ask) and row.rests}
    moving = [(a, b) for a, b in edges if a not in rests]
    for state in flow.rows:
        if state in _closure({b for a, b in moving if a == state}, moving):
            yield f"{state} lies on a cycle in which no state rests"


def _closure(seeds: set[StrEnum], edges: list[tuple[StrEnum, StrEnum]]) -> set[StrEnum]:
    seen = set(seeds)
    while fresh := {b for a, b in edges if a in seen} - seen:
        seen |= fresh
    return seen
