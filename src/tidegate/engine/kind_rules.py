"""The rule by kinds: what holds for all transfers of a kind is worked out once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from tidegate.core.answers import Alarm
from tidegate.core.decide import DecisionContext, done_step
from tidegate.core.flow import Flow
from tidegate.core.kind import Transfer, TransferKind
from tidegate.core.transfer import (
    Question,
    QuestionForm,
    Step,
    asked_about,
    lane_of,
    questions_of,
    step_with,
)

MAX_KEPT = 2_048  # Of each; a few dozen are in use, but for transfers between named people.
NOTHING = ((), 0.0, "", Alarm.NONE, False, None)  # Has happened.

K = TypeVar("K")
V = TypeVar("V")


class KindRules:
    """What Done leads to, worked out once for each step: by the rule itself, on an exemplar."""

    def __init__(self, flows: Mapping[str, Flow], irreversible: frozenset[str]) -> None:
        self._flows, self._terms = flows, DecisionContext(irreversible=irreversible)
        self._after: dict[Step, Step] = {}
        self._first: dict[TransferKind, Step] = {}
        self._created: dict[TransferKind, Step] = {}
        self._asked: dict[TransferKind, QuestionForm] = {}
        self._foreseen: dict[TransferKind, str | None] = {}

    def stays(self, kind: TransferKind) -> Step:
        """The step of transfers to which nothing has happened yet."""
        return self._first.get(kind) or _kept(self._first, kind, step_with(kind, kind, *NOTHING))

    def created(self, kind: TransferKind) -> Step:
        """The step of transfers that are created, at a state that asks something."""
        found = self._created.get(kind)
        if found is None:
            ask = self._flows[kind.flow].ask(kind.state)
            assert ask is not None, f"nothing is asked in {kind.state}"
            step = step_with(None, kind, (), 0.0, "", Alarm.NONE, ask.rests, ask.deadline_s)
            found = _kept(self._created, kind, step)
        return found

    def done(self, step: Step) -> Step:
        """A step, and then Done."""
        return self._after.get(step) or _kept(self._after, step, self._done(step))

    def _done(self, step: Step) -> Step:
        kind = step.after
        return step.then(done_step(self._flows[kind.flow], kind, self._terms))

    def foreseen(self, kind: TransferKind) -> str | None:
        """Whom a transfer will have to ask when what it is asked now is Done."""
        found = self._foreseen.get(kind, "")
        if found == "":
            flow = self._flows[kind.flow]
            ask = flow.ask(kind.state)
            cast = {template.role: template for template in kind.party_templates}
            later = lane_of(flow, cast, flow.arrive(ask.done)[-1]) if ask else None
            found = _kept(self._foreseen, kind, later)
        return found

    def questions(self, transfers: Sequence[Transfer]) -> list[Question]:
        """The question about each transfer, in their order."""
        places: dict[TransferKind, list[int]] = {}
        for place, transfer in enumerate(transfers):
            places.setdefault(transfer.kind, []).append(place)
        if len(places) == 1:
            return self.asked(transfers[0].kind, transfers)
        found: dict[int, Question] = {}
        for kind, some in places.items():
            asked = self.asked(kind, [transfers[place] for place in some])
            found.update(zip(some, asked, strict=True))
        return [found[place] for place in range(len(transfers))]

    def asked(self, kind: TransferKind, transfers: Iterable[Transfer]) -> list[Question]:
        """The questions about transfers that are of a kind now, whatever they were before."""
        asked = self._asked.get(kind)
        if asked is None:
            asked = _kept(self._asked, kind, asked_about(self._flows[kind.flow], kind))
        return questions_of(asked, kind, transfers)


RulesOf: TypeAlias = Callable[[Mapping[str, Flow], frozenset[str]], KindRules]


def _kept(found: dict[K, V], key: K, value: V) -> V:
    if len(found) >= MAX_KEPT:
        found.clear()
    found[key] = value
    return value
