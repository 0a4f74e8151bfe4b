"""What is carried, what is asked about it, and what happens to it."""

import hashlib
from collections.abc import Mapping
from typing import TypeAlias
from uuid import UUID

import msgspec

from tidegate.core.answers import NO_EVIDENCE, Alarm, Evidence
from tidegate.core.flow import UNDOES, Ask, Flow, Verb

GENESIS = bytes(32)  # What the first answer of a transfer is chained to.

Detail: TypeAlias = Mapping[str, str]
NO_DETAIL: Detail = {}
SUSPENSE = "suspense"  # The role of the book to which a refused refund is re-pointed.


class Party(msgspec.Struct, frozen=True, array_like=True):
    """Who plays a role: one owner's book in one system. The system's name is its lane."""

    system: str
    book: str
    owner: int


Parties: TypeAlias = Mapping[str, Party]


class Transfer(msgspec.Struct, frozen=True):
    """One row that says where its money is and whom to ask next."""

    id: UUID
    owner: int
    flow: str
    state: str
    lane: str | None  # The system to be asked next; None at an end.
    parties: Parties
    asset_id: int
    amount: int  # In the asset's smallest unit.
    version: int = 0  # Counts answers. (id, version) names one question, for ever.
    attempts: int = 0  # Times that this question was put.
    retries: int = 0  # Times that any question had to be put again; never reset.
    paged: bool = False
    undoes: int | None = None  # The version whose DEBIT or HOLD is Done: what an undo names.
    parent: UUID | None = None
    detail: Detail = NO_DETAIL
    cid: str | None = None  # The caller's key, if the caller gave one.
    head_hash: bytes = GENESIS
    error: str | None = None  # Why the last Rejected was given.
    trace: str | None = None
    created_us: int = 0
    updated_us: int = 0  # When the last answer was recorded, or the birth.
    waited_s: float = 0.0  # Since then, as the database saw it when it gave out this row.
    expired: bool = False  # Past its state's deadline, likewise.


class Question(msgspec.Struct, frozen=True):
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


class Entry(msgspec.Struct, frozen=True):
    """One answer as the history keeps it."""

    version: int
    path: tuple[str, ...]  # From where it was asked, over waypoints, to where it rests.
    verb: str
    answer: str
    reason: str = ""
    evidence: Evidence = NO_EVIDENCE
    actor: str = ""


class Move(msgspec.Struct, frozen=True):
    """One compare-and-set: if `before` still stands, it becomes `after`."""

    before: Transfer
    after: Transfer
    entries: tuple[Entry, ...] = ()  # Empty: no answer; stay, and ask again after the delay.
    delay_s: float = 0.0
    attempt: str = ""  # Why the last question stays open, kept beside the transfer.
    alarm: Alarm = Alarm.NONE
    rests: bool = False  # No further question in this transaction.
    deadline_s: float | None = None

    def then(self, later: "Move") -> "Move":
        """This move and the one that followed it in the same transaction, as one."""
        return msgspec.structs.replace(
            later,
            before=self.before,
            entries=self.entries + later.entries,
            alarm=max(self.alarm, later.alarm),
            # One that stays is still under the deadline of the state in which it arrived.
            deadline_s=later.deadline_s if later.entries else self.deadline_s,
        )


def question_of(flow: Flow, transfer: Transfer) -> Question:
    """The question that a transfer's state asks. It is the same however often it is put."""
    ask = flow.ask(transfer.state)
    assert ask is not None, f"{transfer.id} rests in {transfer.state}, which asks nothing"
    verb, party = asked_of(ask, transfer.parties)
    undo = verb in UNDOES
    return Question(
        transfer.id,
        transfer.version,
        verb,
        party,
        transfer.asset_id,
        transfer.amount,
        transfer.undoes if undo else None,
        undo and transfer.undoes is not None,
        ask.opens or verb is not ask.verb,
        transfer.detail,
    )


def asked_of(ask: Ask, parties: Parties) -> tuple[Verb, Party]:
    """Which verb is asked of whom. A refund that was re-pointed is a credit to the suspense."""
    if ask.verb is Verb.REFUND and SUSPENSE in parties:
        return Verb.CREDIT, parties[SUSPENSE]
    return ask.verb, parties[ask.role]


def lane_of(flow: Flow, parties: Parties, state: str) -> str | None:
    ask = flow.ask(state)
    return None if ask is None else asked_of(ask, parties)[1].system


def born(flow: Flow, transfer: Transfer) -> Transfer:
    """The same transfer at its first state that asks something."""
    state = flow.arrive(flow.first)[-1]
    return msgspec.structs.replace(
        transfer, state=state, lane=lane_of(flow, transfer.parties, state)
    )


def chained(head: bytes, transfer: Transfer, entry: Entry, at_us: int) -> bytes:
    """The hash of one history row, which vouches for every row before it."""
    row = (
        transfer.id.hex,
        transfer.flow,
        entry.version,
        entry.path,
        entry.verb,
        entry.answer,
        entry.reason,
        sorted(entry.evidence.items()),
        entry.actor,
        at_us,
    )
    return hashlib.sha256(head + msgspec.json.encode(row)).digest()
