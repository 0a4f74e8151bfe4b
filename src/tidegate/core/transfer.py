"""What is carried, what is asked about it, and what happens to it."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from tidegate.core.answers import NO_EVIDENCE, Alarm, Evidence
from tidegate.core.flow import FEES, UNDOES, Ask, Flow, Verb
from tidegate.core.kind import (
    NO_DETAIL,
    Detail,
    Party,
    PartyTemplate,
    Transfer,
    TransferKind,
)

Who = TypeVar("Who", Party, PartyTemplate)

SUSPENSE = "suspense"  # The role of the book to which a refused refund is re-pointed.


class Question(msgspec.Struct, frozen=True, gc=False):
    """What a system is asked. (transfer_id, version) is the operation's key."""

    transfer_id: UUID
    version: int
    verb: Verb
    party: Party
    asset_id: int
    amount: int
    undoes: int | None = None  # REFUND, CAPTURE, RELEASE: the version of the key they undo.
    expect_done: bool = False  # Our history holds that key as Done.
    opens: bool = False
    detail: Detail = NO_DETAIL
    void: bool = False  # Do not do it: refuse it for ever, unless it is decided already.
    # A CREDIT of the target may carry a fee: `party` gets the rest of the amount, `fees` the fee,
    # both under this key or neither. Local systems only.
    fee: int = 0
    fees: Party | None = None


class HistoryEntry(msgspec.Struct, frozen=True, gc=False):
    """One answer as the history keeps it."""

    version: int
    path: tuple[str, ...]  # From where it was asked, over waypoints, to where it rests.
    verb: str
    answer: str
    reason: str = ""
    evidence: Evidence = NO_EVIDENCE
    actor: str = ""


class AnswerForm(NamedTuple):
    """An entry without its evidence: what many transfers have in common."""

    version: int
    path: tuple[str, ...]
    verb: str
    answer: str
    reason: str
    actor: str


class Expiry(NamedTuple):
    """When a transfer expires: so long after its creation, or at one moment."""

    after_s: float | None = None
    at_us: int | None = None


class Move(msgspec.Struct, frozen=True, gc=False):
    """One compare-and-set: if `before` still stands, it becomes `after`.

    Without a `before` the transfer is created.
    """

    before: Transfer | None
    after: Transfer
    entries: tuple[HistoryEntry, ...] = ()  # Empty: no answer; stay, and ask again after the delay.
    delay_s: float = 0.0
    attempt: str = ""  # Why the last question stays open, kept beside the transfer.
    alarm: Alarm = Alarm.NONE
    rests: bool = False  # No further question in this transaction.
    deadline_s: float | None = None
    expiry: Expiry | None = None  # Of one that is created: takes the place of its deadlines.

    @property
    def start(self) -> int:
        """The version at which it starts."""
        return 0 if self.before is None else self.before.version


class Step(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """What becomes of all transfers of a kind that get the same answers in one transaction: a move
    without what is their own. Equal steps are one object, as equal kinds are: `step_with`.
    """

    before: TransferKind | None  # None: they are created.
    after: TransferKind
    lines: tuple[AnswerForm, ...] = ()
    delay_s: float = 0.0
    attempt: str = ""
    alarm: Alarm = Alarm.NONE
    rests: bool = False
    deadline_s: float | None = None

    @property
    def start(self) -> int:
        return 0 if self.before is None else self.before.version

    def then(self, later: "Step") -> "Step":
        """This step and the one that followed it in the same transaction, as one."""
        return step_with(
            self.before,
            later.after,
            self.lines + later.lines,
            later.delay_s,
            later.attempt,
            max(self.alarm, later.alarm),
            later.rests,
            # One that stays is still under the deadline of the state in which it arrived.
            later.deadline_s if later.lines else self.deadline_s,
        )


_STEPS: WeakValueDictionary[tuple[object, ...], Step] = WeakValueDictionary()


def step_with(*fields: Any) -> Step:
    """The one step with these fields, in their order."""
    step = _STEPS.get(fields)
    if step is None:
        step = _STEPS[fields] = Step(*fields)
    return step


def step_of(move: Move) -> Step:
    return step_with(
        None if move.before is None else move.before.kind,
        move.after.kind,
        tuple(
            [
                AnswerForm(e.version, e.path, e.verb, e.answer, e.reason, e.actor)
                for e in move.entries
            ]
        ),
        move.delay_s,
        move.attempt,
        move.alarm,
        move.rests,
        move.deadline_s,
    )


class QuestionForm(NamedTuple):
    """What all transfers of a kind are asked about: a question without what is their own."""

    verb: Verb
    template: PartyTemplate
    undoes: int | None
    expect_done: bool
    opens: bool
    fees: PartyTemplate | None  # Where the fee goes, if this question carries it.


def asked_about(flow: Flow, kind: TransferKind) -> QuestionForm:
    ask = flow.ask(kind.state)
    assert ask is not None, f"nothing is asked in {kind.state}"
    party_templates = {template.role: template for template in kind.party_templates}
    verb, template = asked_of(ask, party_templates)
    undo = verb in UNDOES
    # Refund and suspense take the whole amount.
    charged = kind.fee and verb is Verb.CREDIT and ask.role == "target"
    return QuestionForm(
        verb,
        template,
        kind.undoes if undo else None,
        undo and kind.undoes is not None,
        ask.opens or verb is not ask.verb,
        party_templates[FEES] if charged else None,
    )


def questions_of(
    asked: QuestionForm, kind: TransferKind, transfers: Iterable[Transfer]
) -> list[Question]:
    """The question about each of some transfers of one kind. It is the same however often put."""
    verb, template, undoes, expect_done, opens, fees = asked
    _, system, book, other = template
    version, asset_id, detail = kind.version, kind.asset_id, dict(kind.details)
    if fees is not None or other is not None:
        return [
            Question(
                t.id,
                version,
                verb,
                party_at(template, t.owner),
                asset_id,
                t.amount,
                undoes,
                expect_done,
                opens,
                detail,
                fee=kind.fee if fees else 0,
                fees=party_at(fees, t.owner) if fees else None,
            )
            for t in transfers
        ]
    return [
        Question(
            t.id,
            version,
            verb,
            Party(system, book, t.owner),
            asset_id,
            t.amount,
            undoes,
            expect_done,
            opens,
            detail,
        )
        for t in transfers
    ]


def question_of(flow: Flow, transfer: Transfer) -> Question:
    [question] = questions_of(asked_about(flow, transfer.kind), transfer.kind, (transfer,))
    return question


def party_at(template: PartyTemplate, owner: int) -> Party:
    return Party(
        template.system, template.book, owner if template.owner is None else template.owner
    )


def asked_of(ask: Ask, cast: Mapping[str, Who]) -> tuple[Verb, Who]:
    """Which verb is asked of whom. A refund that was re-pointed is a credit to the suspense."""
    if ask.verb is Verb.REFUND and SUSPENSE in cast:
        return Verb.CREDIT, cast[SUSPENSE]
    return ask.verb, cast[ask.role]


def lane_of(flow: Flow, cast: Mapping[str, Who], state: str) -> str | None:
    ask = flow.ask(state)
    return None if ask is None else asked_of(ask, cast)[1].system


def chained(head: bytes, id_: UUID, flow: str, entry: HistoryEntry, at_us: int) -> bytes:
    """The hash of one history row, which vouches for every row before it."""
    return link(head, hashed_form(flow, entry), id_, entry.evidence, at_us)


Form = tuple[bytes, bytes]


def hashed_form(flow: str, entry: HistoryEntry | AnswerForm) -> Form:
    """What the hashes of all answers of one kind have in common: the text between the id and the
    evidence, and the text between the evidence and the time.
    """
    common = (flow, entry.version, entry.path, entry.verb, entry.answer, entry.reason)
    return msgspec.json.encode(common)[1:-1], msgspec.json.encode(entry.actor)


def link(head: bytes, form: Form, id_: UUID, evidence: Evidence, at_us: int) -> bytes:
    """SHA-256 of the hash before and a JSON array: id, what is common, evidence, actor, time."""
    [hashed] = chain((head,), dated(form, at_us), (id_.int,), (evidence,))
    return hashed


def dated(form: Form, at_us: int) -> Form:
    """The same text with its punctuation and the time: what all rows of a batch have in common."""
    common, actor = form
    return b'",%b,' % common, b",%b,%d]" % (actor, at_us)


EvidenceColumn: TypeAlias = Sequence[Evidence] | None  # None: none of these answers has evidence.


def chain(
    heads: Iterable[bytes], form: Form, numbers: Iterable[int], evidences: EvidenceColumn
) -> list[bytes]:
    """The hashes of one answer of many transfers, each chained to the one before. The form, which
    they have in common, is dated; the numbers are those of their ids.
    """
    before, after = form
    if evidences is None:
        after = b"%b[]%b" % form
        return [
            _sha256(b'%b["%032x%b' % (head, number, after)).digest()
            for head, number in zip(heads, numbers, strict=True)
        ]
    return [
        _sha256(b'%b["%032x%b%b%b' % (head, number, before, _evidence(kept), after)).digest()
        for head, number, kept in zip(heads, numbers, evidences, strict=True)
    ]


def _evidence(kept: Evidence) -> bytes:
    pieces = [*kept.items()]
    return _encode(pieces if len(pieces) < 2 else sorted(pieces))


_encode, _sha256 = msgspec.json.encode, hashlib.sha256
