"""Bugs of the engine: what an answer means, when something is asked, who is told."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.simulation.planted.store import write_blindly
from tidegate.core import decide as rule
from tidegate.core.account import Account
from tidegate.core.answers import Alarm, Answer, Rejected, Unknown, Unreachable
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.flow import Flow, Verb
from tidegate.core.kind import Transfer, TransferKind
from tidegate.core.moves import Moves
from tidegate.core.ports import Behind, CommitUnknown, NoSession, System, nothing
from tidegate.core.refusals import Refusal
from tidegate.core.transfer import Move, Question, QuestionForm, question_of, questions_of
from tidegate.engine import engine as whole_engine
from tidegate.engine import (
    kind_rules,
    local_answers,
    pending_request,
    step,
    write_batch,
)
from tidegate.engine.context import EngineContext
from tidegate.engine.due_scan import DueScan
from tidegate.engine.lane import MAX_BATCH, Expect, Lane
from tidegate.engine.local_answers import LocalGroup
from tidegate.engine.pending_request import PendingRequest
from tidegate.engine.request_batch import RequestBatch
from tidegate.engine.retirement import Retirement
from tidegate.engine.ring import RingReservation
from tidegate.engine.write_batch import WriteBatch, WriteResult
from tidegate.store.inbox import MemoryInbox
from tidegate.store.memory_store import MemoryStore
from tidegate.store.memory_tables import MemoryRow
from tidegate.trading_core.core import Core

PATIENCE = 4  # Attempts after which somebody gives up.

Patch = pytest.MonkeyPatch


def deciding(patch: Patch, decides: Any) -> None:
    # Where one transfer is decided about, and where one is that stands for all of its kind.
    for module in (local_answers, rule):
        patch.setattr(module, "decide", decides)


def asking(patch: Patch, asks: Callable[[Question, TransferKind], Question]) -> None:
    def questions(
        asked: QuestionForm, kind: TransferKind, transfers: Iterable[Transfer]
    ) -> list[Question]:
        return [asks(question, kind) for question in questions_of(asked, kind, transfers)]

    patch.setattr(kind_rules, "questions_of", questions)


def refund_on_timeout(patch: Patch) -> None:
    """A timeout is taken for a «no»: the money goes back although it may have arrived."""

    def hasty(flow: Flow, transfer: Transfer, answer: Answer, terms: DecisionContext) -> Move:
        taken = Rejected(answer.reason) if isinstance(answer, Unknown) else answer
        return decide(flow, transfer, taken, terms)

    deciding(patch, hasty)


def exception_is_a_no(patch: Patch) -> None:
    """Whatever the client of a system raises is taken for its refusal."""

    async def ask(system: System, questions: Sequence[Question]) -> Sequence[Answer] | Unknown:
        try:
            return await system.ask(questions)
        except Unreachable:
            raise
        except Exception as fault:  # noqa: BLE001  This is the bug.
            return [Rejected(str(fault))] * len(questions)

    patch.setattr(step, "ask", ask)


def gives_up(patch: Patch) -> None:
    """After some attempts a question is closed as failed, whatever has become of it."""

    def tired(flow: Flow, transfer: Transfer, answer: Answer, terms: DecisionContext) -> Move:
        over = isinstance(answer, Unknown) and transfer.attempts >= PATIENCE
        return decide(flow, transfer, Rejected("GAVE_UP") if over else answer, terms)

    deciding(patch, tired)


def doubt_is_counted_as_an_answer(patch: Patch) -> None:
    """Every Unknown adds a version, so that the same question goes out under another key."""

    def counting(flow: Flow, transfer: Transfer, answer: Answer, terms: DecisionContext) -> Move:
        move = decide(flow, transfer, answer, terms)
        if isinstance(answer, Unknown) and not move.entries:
            return replace(move, after=move.after.but(version=transfer.version + 1))
        return move

    deciding(patch, counting)


def new_key_for_each_attempt(patch: Patch) -> None:
    """A retried credit has a fresh idempotency key, as many HTTP clients make one per call."""

    def fresh(question: Question, kind: TransferKind) -> Question:
        if question.verb is not Verb.CREDIT or question.party.system != "core":
            return question
        return replace(question, version=question.version + 1_000 * kind.attempts)

    asking(patch, fresh)


def float_amount(patch: Patch) -> None:
    """The amount goes through a float on its way out, and is rounded above 2**53."""

    def rounded(question: Question, _: TransferKind) -> Question:
        return replace(question, amount=int(float(question.amount)))

    asking(patch, rounded)


def asks_before_it_persists(patch: Patch) -> None:
    """The core is asked before the row that knows of it is in the database."""
    honest = write_batch._write_once

    async def hasty(context: EngineContext[Any], work: WriteBatch, **terms: Any) -> WriteResult:
        for transfer in work.batch if work.creations else ():
            if transfer.lane in context.outside:
                question = question_of(context.flows[transfer.flow], transfer)
                with suppress(Unreachable):
                    await step.ask(context.outside[str(transfer.lane)], [question])
        return await honest(context, work, **terms)

    patch.setattr(write_batch, "_write_once", hasty)


def hands_over_before_the_commit(patch: Patch) -> None:
    """The next lane gets the row while its transaction can still fail."""
    honest = write_batch._transact

    async def transact(
        context: EngineContext[Any], work: WriteBatch, slots: RingReservation, **terms: Any
    ) -> Any:
        class Early:
            """Hands over what is written at once."""

            def __getattr__(self, name: str) -> Any:
                return getattr(context.store, name)

            async def write(
                self, tx: Any, moves: Moves, leased: Sequence[bool]
            ) -> Sequence[Transfer]:
                rows = await context.store.write(tx, moves, leased)
                context.woken(slots.fill(rows))
                slots._lanes = [None] * len(rows)
                return rows

        early = dataclasses.replace(context, store=cast("Any", Early()))
        return await honest(early, work, slots, **terms)

    patch.setattr(write_batch, "_transact", transact)


def lost_commit_under_new_ids(patch: Patch) -> None:
    """After a COMMIT without a reply the batch runs again, as other transfers."""

    async def still_open(self: RequestBatch[Any], work: WriteBatch) -> WriteBatch:
        return await self.begin([self._requests[t.id.int] for t in work.batch])

    patch.setattr(RequestBatch, "still_open", still_open)


def lost_commit_is_an_error(patch: Patch) -> None:
    """A COMMIT without a reply is told as a failure, which invites the caller to pay again."""
    honest = write_batch._write_once

    async def once(context: EngineContext[Any], work: WriteBatch, **terms: Any) -> WriteResult:
        try:
            return await honest(context, work, **terms)
        except CommitUnknown as fault:
            if not work.creations:
                raise
            raise NoSession(str(fault)) from fault

    patch.setattr(write_batch, "_write_once", once)


def refuses_what_may_have_happened(patch: Patch) -> None:
    """A refusal is told although an earlier try of the same request may have moved money."""

    def refuse(_: RequestBatch[Any], pending: PendingRequest, refusal: Refusal, __: object) -> None:
        pending_request.answer(pending, refusal)

    patch.setattr(RequestBatch, "_refuse", refuse)


def refuses_what_another_process_made(patch: Patch) -> None:
    """A limit is told as a refusal, although this very request, made elsewhere, has used it up."""

    async def refused(self: RequestBatch[Any], result: WriteResult) -> None:
        for id_, refusal in result.refused:
            self._refuse(self._requests[id_.int], refusal, result.work.doubts)

    patch.setattr(RequestBatch, "_refused", refused)


def inbox_takes_without_a_lock(patch: Patch) -> None:
    """A request of the inbox is made without looking whether somebody has made it meanwhile."""

    async def take(
        self: MemoryInbox, tx: Any, ids: Sequence[UUID], behind: Behind = nothing
    ) -> Sequence[UUID]:
        await behind()
        return ids

    patch.setattr(MemoryInbox, "take", take)


def inbox_decides_later(patch: Patch) -> None:
    """The inbox is told what became of a request in a transaction of its own, or not at all."""
    honest, once = local_answers.decide_requests, write_batch._write_once

    async def decide(context: EngineContext[Any], tx: Any, created: Any, refused: Any) -> None:
        if refused:
            await honest(context, tx, (), refused)

    async def written(context: EngineContext[Any], work: WriteBatch, **terms: Any) -> WriteResult:
        result = await once(context, work, **terms)
        made = [row.id for row in result.rows if work.creations and work.creations[0].asked]
        if made:
            async with context.store.transaction() as tx:
                await honest(context, tx, made, ())
        return result

    patch.setattr(write_batch, "decide_requests", decide)
    patch.setattr(write_batch, "_write_once", written)


def one_lock_stops_all(patch: Patch) -> None:
    """A batch that waits for somebody's lock is tried again as a whole, however often."""
    patch.setattr(write_batch, "LOCK_WAITS", 10**6)


def expiry_is_judged_at_the_claim(patch: Patch) -> None:
    """A request of the inbox that expires after its claim is made all the same."""

    def refused(creation: write_batch.Creation, at_us: int) -> Refusal | None:
        return creation.refusal

    patch.setattr(write_batch, "_refused", refused)


def accepts_what_waits_for_a_lock(patch: Patch) -> None:
    """A request that waits for long is accepted, although nobody has tried to commit it."""

    def tired(fault: Exception, attempt: int, pace: write_batch.BatchPace) -> bool:
        return attempt >= write_batch.TRIES - 1

    async def failed(self: RequestBatch[Any], work: WriteBatch, fault: Exception) -> None:
        self.doubtful(work)

    patch.setattr(write_batch, "_is_tired", tired)
    patch.setattr(RequestBatch, "failed", failed)


def another_amount_under_a_known_key(patch: Patch) -> None:
    """A request is answered by its cid alone, whatever it asks for."""

    def matches(self: PendingRequest, fingerprint: bytes) -> bool:
        return True

    patch.setattr(PendingRequest, "matches", matches)


def ended_rows_move_again(patch: Patch) -> None:
    """Whoever comes late finds an ended row held by nobody, and records his answer over it."""

    async def lock(
        self: MemoryStore, tx: Any, transfers: Sequence[Transfer], behind: Behind = nothing
    ) -> Sequence[Transfer]:
        await tx.lock("transfers", sorted(t.id for t in transfers))
        await behind()
        rows = {t.id: tx.get("transfers", t.id).transfer for t in transfers}
        return [t for t in transfers if rows[t.id].version == t.version or rows[t.id].lane is None]

    patch.setattr(MemoryStore, "lock", lock)
    patch.setattr(MemoryStore, "write", write_blindly)


def unordered_locks(patch: Patch) -> None:
    """Accounts are locked as they come, so that two batches wait for each other."""

    async def lock(
        context: EngineContext[Any], tx: Any, moves: Moves, groups: Mapping[str, LocalGroup]
    ) -> None:
        asking = [moves.now(place) for group in groups.values() for place in group.places]
        for name in sorted(context.local):
            wanted = {
                Account(party.owner, party.book, transfer.asset_id)
                for transfer in asking
                for party in transfer.parties.values()
                if party.system == name
            }
            if wanted:
                await context.local[name].lock(tx, context.dice.sample(sorted(wanted), len(wanted)))

    patch.setattr(write_batch, "lock_accounts", lock)


def ring_ignores_the_brake(patch: Patch) -> None:
    """What was handed over inside the process is asked although all is halted."""

    async def popped(self: Lane[Any], _: Expect) -> list[Transfer]:
        return self.ring.pop(MAX_BATCH, self.context.clock())

    patch.setattr(Lane, "_popped", popped)


def never_scans(patch: Patch) -> None:
    """Only what was handed over is asked about: what a dead worker held is forgotten."""

    async def look(self: DueScan[Any]) -> None:
        return

    patch.setattr(DueScan, "_look", look)


def forgets_how_often(patch: Patch) -> None:
    """Each Unknown starts the count of attempts anew, and nobody is ever called."""

    def forgetful(flow: Flow, transfer: Transfer, answer: Answer, terms: DecisionContext) -> Move:
        move = decide(flow, transfer.but(attempts=1), answer, terms)
        return replace(move, after=move.after.but(attempts=0), before=transfer)

    deciding(patch, forgetful)


def calls_nobody(patch: Patch) -> None:
    """What is stuck stays stuck without a word."""

    def silent(flow: Flow, transfer: Transfer, answer: Answer, terms: DecisionContext) -> Move:
        return replace(decide(flow, transfer, answer, terms), alarm=Alarm.NONE)

    deciding(patch, silent)


def cries_wolf(patch: Patch) -> None:
    """Somebody is called at the first doubt, so that soon nobody listens."""

    def nervous(flow: Flow, transfer: Transfer, answer: Answer, terms: DecisionContext) -> Move:
        move = decide(flow, transfer, answer, terms)
        return replace(move, alarm=Alarm.PAGE) if isinstance(answer, Unknown) else move

    deciding(patch, nervous)


def drops_an_answer(patch: Patch) -> None:
    """Of two answers in one transaction only the last is written to the history."""
    honest = MemoryStore._write

    def last(self: MemoryStore, tx: Any, move: Move, hashes: list[bytes], row: MemoryRow) -> None:
        honest(self, tx, replace(move, entries=move.entries[-1:]), hashes[-1:], row)

    patch.setattr(MemoryStore, "_write", last)


def outages_leave_no_trace(patch: Patch) -> None:
    """A system that is unreachable closes its lane, and nothing is counted for what waits there."""

    async def note(self: Lane[Any], reason: str) -> None:
        pass

    patch.setattr(Lane, "_note", note)


def trusts_the_databases_clock(patch: Patch) -> None:
    """Nobody looks whether the database's clock was set back, so that leases last until then."""

    async def keep(_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    patch.setattr(whole_engine, "keep_clock", keep)


def floor_by_one_clock_sent_at_once(patch: Patch) -> None:
    """A floor is sent as the database's clock has it, and nobody keeps it or doubts it."""

    async def round_(self: Retirement) -> UUID:
        lowest = await self._floors.lowest(self._horizon.horizon_s)
        return await self._retire(lowest)

    async def raise_to(_: MemoryStore, floor: UUID) -> UUID:
        return floor

    patch.setattr(Retirement, "round", round_)
    patch.setattr(MemoryStore, "raise_to", raise_to)
    patch.setattr(Core, "_latest_floor", lambda _: 2**128 - 1)
