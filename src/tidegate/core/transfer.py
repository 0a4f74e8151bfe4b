"""Questions, moves and history entries of transfers, and the hash chain of the history."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from tidegate.core.answers import NO_EVIDENCE, Alarm, Evidence
from tidegate.core.flow import FEES, UNDO_VERBS, Ask, Flow, Verb
from tidegate.core.kind import (
    NO_DETAIL,
    Detail,
    Party,
    PartyTemplate,
    Transfer,
    TransferKind,
)

AnyParty = TypeVar("AnyParty", Party, PartyTemplate)

SUSPENSE = "suspense"  # The role of the book to which a refused refund is re-pointed.


class Question(msgspec.Struct, frozen=True, gc=False):
    """One operation that a system is asked to do. Its key is (transfer_id, version)."""

    transfer_id: UUID
    version: int
    verb: Verb
    party: Party
    asset_id: int
    amount: int
    undoes: int | None = None  # For REFUND, CAPTURE and RELEASE: the version of the key they undo.
    expect_done: bool = False  # Our history has a Done for that key.
    opens: bool = False
    detail: Detail = NO_DETAIL
    void: bool = False  # Do not execute: reject for ever, unless an answer is stored already.
    # A CREDIT of the target may carry a fee. `fees` gets it and `party` gets the rest of the
    # amount: both under this key, or neither. Only local systems are asked this.
    fee: int = 0
    fees: Party | None = None


class HistoryEntry(msgspec.Struct, frozen=True, gc=False):
    """One answer as the history stores it."""

    version: int
    path: tuple[str, ...]  # From the state that asked, through waypoints, to the next state.
    verb: str
    answer: str
    reason: str = ""
    evidence: Evidence = NO_EVIDENCE
    actor: str = ""


class EntryForm(NamedTuple):
    """A history entry without its evidence: the part that many transfers share."""

    version: int
    path: tuple[str, ...]
    verb: str
    answer: str
    reason: str
    actor: str


class Expiry(NamedTuple):
    """When a transfer expires: some time after its creation, or at a given time."""

    after_s: float | None = None
    at_us: int | None = None


class Move(msgspec.Struct, frozen=True, gc=False):
    """One compare-and-set: `before` becomes `after`, if its version has not changed.

    Without a `before` the transfer is created.
    """

    before: Transfer | None
    after: Transfer
    # Empty: there was no answer. The transfer stays, and is asked again after the delay.
    entries: tuple[HistoryEntry, ...] = ()
    delay_s: float = 0.0
    attempt: str = ""  # Why the last question is still open. It is stored with the transfer.
    alarm: Alarm = Alarm.NONE
    rests: bool = False  # Ask no further question in this transaction.
    deadline_s: float | None = None
    expiry: Expiry | None = None  # For a transfer that is created. It replaces the deadlines.

    @property
    def start(self) -> int:
        """The version before the move."""
        return 0 if self.before is None else self.before.version


class Step(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """The part of a move that is the same for all transfers of a kind with the same answers.

    Equal steps are one object, as equal kinds are: see `step_with`.
    """

    before: TransferKind | None  # None: the transfers are created.
    after: TransferKind
    entry_forms: tuple[EntryForm, ...] = ()
    delay_s: float = 0.0
    attempt: str = ""
    alarm: Alarm = Alarm.NONE
    rests: bool = False
    deadline_s: float | None = None

    @property
    def start(self) -> int:
        return 0 if self.before is None else self.before.version

    def then(self, later: "Step") -> "Step":
        """Join this step and a later step of the same transaction into one step."""
        return step_with(
            self.before,
            later.after,
            self.entry_forms + later.entry_forms,
            later.delay_s,
            later.attempt,
            max(self.alarm, later.alarm),
            later.rests,
            # If the later step stays, the deadline of the state that was entered is still valid.
            later.deadline_s if later.entry_forms else self.deadline_s,
        )


_STEPS: WeakValueDictionary[tuple[object, ...], Step] = WeakValueDictionary()


def step_with(*fields: Any) -> Step:
    """The one object for these fields, in the order of their declaration."""
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
                EntryForm(e.version, e.path, e.verb, e.answer, e.reason, e.actor)
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
    """The part of a question that is the same for all transfers of one kind."""

    verb: Verb
    template: PartyTemplate
    undoes: int | None
    expect_done: bool
    opens: bool
    fees: PartyTemplate | None  # The party that gets the fee, if this question carries one.


def question_form(flow: Flow, kind: TransferKind) -> QuestionForm:
    ask = flow.ask(kind.state)
    assert ask is not None, f"nothing is asked in {kind.state}"
    templates = {template.role: template for template in kind.party_templates}
    verb, template = verb_and_party(ask, templates)
    undo = verb in UNDO_VERBS
    # A refund and a credit to the suspense book move the whole amount.
    charged = kind.fee and verb is Verb.CREDIT and ask.role == "target"
    return QuestionForm(
        verb,
        template,
        kind.undoes if undo else None,
        undo and kind.undoes is not None,
        ask.opens or verb is not ask.verb,
        templates[FEES] if charged else None,
    )


def questions_of(
    form: QuestionForm, kind: TransferKind, transfers: Iterable[Transfer]
) -> list[Question]:
    """The questions about transfers of one kind. A repeated question is always the same."""
    verb, template, undoes, expect_done, opens, fees = form
    _, system, book, other_owner = template
    version, asset_id, detail = kind.version, kind.asset_id, dict(kind.details)
    if fees is not None or other_owner is not None:
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
    [question] = questions_of(question_form(flow, transfer.kind), transfer.kind, (transfer,))
    return question


def party_at(template: PartyTemplate, owner: int) -> Party:
    return Party(
        template.system, template.book, owner if template.owner is None else template.owner
    )


def verb_and_party(ask: Ask, parties: Mapping[str, AnyParty]) -> tuple[Verb, AnyParty]:
    """The verb to ask, and the party. A re-pointed refund is a credit to the suspense book."""
    if ask.verb is Verb.REFUND and SUSPENSE in parties:
        return Verb.CREDIT, parties[SUSPENSE]
    return ask.verb, parties[ask.role]


def lane_of(flow: Flow, parties: Mapping[str, AnyParty], state: str) -> str | None:
    ask = flow.ask(state)
    return None if ask is None else verb_and_party(ask, parties)[1].system


def entry_hash(head: bytes, id_: UUID, flow: str, entry: HistoryEntry, at_us: int) -> bytes:
    """The hash of one history row. It depends on every row before it."""
    return link_hash(head, hash_form(flow, entry), id_, entry.evidence, at_us)


HashForm = tuple[bytes, bytes]


def hash_form(flow: str, entry: HistoryEntry | EntryForm) -> HashForm:
    """The parts of the hashed text that all answers of one kind share: the text between the id
    and the evidence, and the text between the evidence and the time.
    """
    common = (flow, entry.version, entry.path, entry.verb, entry.answer, entry.reason)
    return msgspec.json.encode(common)[1:-1], msgspec.json.encode(entry.actor)


def link_hash(head: bytes, form: HashForm, id_: UUID, evidence: Evidence, at_us: int) -> bytes:
    """SHA-256 of the hash before and a JSON array: id, shared part, evidence, actor, time."""
    [hashed] = chain_hashes((head,), with_time(form, at_us), (id_.int,), (evidence,))
    return hashed


def with_time(form: HashForm, at_us: int) -> HashForm:
    """Add the punctuation and the time, which all rows of a batch share."""
    common, actor = form
    return b'",%b,' % common, b",%b,%d]" % (actor, at_us)


EvidenceColumn: TypeAlias = Sequence[Evidence] | None  # None: none of these answers has evidence.


def chain_hashes(
    heads: Iterable[bytes], form: HashForm, numbers: Iterable[int], evidences: EvidenceColumn
) -> list[bytes]:
    """The hash of the same answer for many transfers, each chained to the head of its transfer.

    The form comes from `with_time`. The numbers are the integers of the ids.
    """
    before, after = form
    if evidences is None:
        after = b"%b[]%b" % form
        return [
            _sha256(b'%b["%032x%b' % (head, number, after)).digest()
            for head, number in zip(heads, numbers, strict=True)
        ]
    return [
        _sha256(b'%b["%032x%b%b%b' % (head, number, before, _evidence(evidence), after)).digest()
        for head, number, evidence in zip(heads, numbers, evidences, strict=True)
    ]


def _evidence(evidence: Evidence) -> bytes:
    pairs = [*evidence.items()]
    return _encode(pairs if len(pairs) < 2 else sorted(pairs))


_encode, _sha256 = msgspec.json.encode, hashlib.sha256
