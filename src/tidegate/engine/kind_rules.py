"""Caches what holds for all transfers of a kind, so that it is computed once."""

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
    lane_of,
    question_form,
    questions_of,
    step_with,
)

MAX_CACHED = 2_048  # Per cache. Usually a few dozen; more for transfers between named owners.
NO_CHANGE = ((), 0.0, "", Alarm.NONE, False, None)

K = TypeVar("K")
V = TypeVar("V")


class KindRules:
    """Applies the decision rule once per step of a kind, instead of once per transfer."""

    def __init__(self, flows: Mapping[str, Flow], irreversible: frozenset[str]) -> None:
        self._flows = flows
        self._decision_context = DecisionContext(irreversible=irreversible)
        self._done: dict[Step, Step] = {}
        self._unchanged: dict[TransferKind, Step] = {}
        self._created: dict[TransferKind, Step] = {}
        self._question_forms: dict[TransferKind, QuestionForm] = {}
        self._next_lanes: dict[TransferKind, str | None] = {}

    def unchanged(self, kind: TransferKind) -> Step:
        """The step of transfers that have not been changed yet."""
        step = self._unchanged.get(kind)
        return step or _cache(self._unchanged, kind, step_with(kind, kind, *NO_CHANGE))

    def created(self, kind: TransferKind) -> Step:
        """The step of transfers that are created in a state that asks a system."""
        step = self._created.get(kind)
        if step is None:
            ask = self._flows[kind.flow].ask(kind.state)
            assert ask is not None, f"nothing is asked in {kind.state}"
            step = step_with(None, kind, (), 0.0, "", Alarm.NONE, ask.rests, ask.deadline_s)
            _cache(self._created, kind, step)
        return step

    def done(self, step: Step) -> Step:
        """The step followed by what the answer Done leads to."""
        return self._done.get(step) or _cache(self._done, step, self._with_done(step))

    def _with_done(self, step: Step) -> Step:
        kind = step.after
        return step.then(done_step(self._flows[kind.flow], kind, self._decision_context))

    def next_lane(self, kind: TransferKind) -> str | None:
        """The lane that a transfer is in after its current question is answered with Done."""
        lane = self._next_lanes.get(kind, "")
        if lane == "":  # Not cached yet. None means that the transfer ends.
            flow = self._flows[kind.flow]
            ask = flow.ask(kind.state)
            templates = {template.role: template for template in kind.party_templates}
            lane = lane_of(flow, templates, flow.arrive(ask.done)[-1]) if ask else None
            _cache(self._next_lanes, kind, lane)
        return lane

    def questions(self, transfers: Sequence[Transfer]) -> list[Question]:
        """The question about each transfer, in their order."""
        indexes_by_kind: dict[TransferKind, list[int]] = {}
        for index, transfer in enumerate(transfers):
            indexes_by_kind.setdefault(transfer.kind, []).append(index)
        if len(indexes_by_kind) == 1:
            return self.questions_of_kind(transfers[0].kind, transfers)
        by_index: dict[int, Question] = {}
        for kind, indexes in indexes_by_kind.items():
            questions = self.questions_of_kind(kind, [transfers[index] for index in indexes])
            by_index.update(zip(indexes, questions, strict=True))
        return [by_index[index] for index in range(len(transfers))]

    def questions_of_kind(
        self, kind: TransferKind, transfers: Iterable[Transfer]
    ) -> list[Question]:
        """The questions about transfers that have this kind now, whatever kind they had before."""
        form = self._question_forms.get(kind)
        if form is None:
            form = question_form(self._flows[kind.flow], kind)
            _cache(self._question_forms, kind, form)
        return questions_of(form, kind, transfers)


RulesOf: TypeAlias = Callable[[Mapping[str, Flow], frozenset[str]], KindRules]


def _cache(cache: dict[K, V], key: K, value: V) -> V:
    if len(cache) >= MAX_CACHED:
        cache.clear()
    cache[key] = value
    return value
