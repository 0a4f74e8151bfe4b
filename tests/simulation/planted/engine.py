"""Bugs of the engine: in decisions, in the order of asking and recording, and in alerts."""

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
from tidegate.core.ports import AfterLock, CommitUnknown, NoSession, System, no_action
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
from tidegate.store.memory_store import MemoryStore
from tidegate.store.memory_tables import MemoryRow
from tidegate.trading_core.core import Core

MAX_ATTEMPTS = 4  # After these the planted bug gives up.

Patch = pytest.MonkeyPatch


def deciding(patch: Patch, decides: Any) -> None:
    # The places that decide a single transfer, and one transfer that represents its kind.
    for module in (local_answers, rule):
        patch.setattr(module, "decide", decides)


def asking(patch: Patch, asks: Callable[[Question, TransferKind], Question]) -> None:
    def questions(
        asked: QuestionForm, kind: TransferKind, transfers: Iterable[Transfer]
    ) -> list[Question]:
        return [asks(question, kind) for question in questions_of(asked, kind, transfers)]

    patch.setattr(kind_rules, "questions_of", questions)


def refund_on_timeout(patch: Patch) -> None:
    """A timeout is treated as a rejection: the money is refunded although it may have arrived."""

    def timeout_as_rejected(
        flow: Flow, transfer: Transfer, answer: Answer, context: DecisionContext
    ) -> Move:
        wrong = Rejected(answer.reason) if isinstance(answer, Unknown) else answer
        return decide(flow, transfer, wrong, context)

    deciding(patch, timeout_as_rejected)


def exception_is_a_no(patch: Patch) -> None:
    """Every exception of a system's client is treated as a rejection."""

    async def ask(system: System, questions: Sequence[Question]) -> Sequence[Answer] | Unknown:
        try:
            return await system.ask(questions)
        except Unreachable:
            raise
        except Exception as fault:  # noqa: BLE001  This is the bug.
            return [Rejected(str(fault))] * len(questions)

    patch.setattr(step, "ask", ask)


def gives_up(patch: Patch) -> None:
    """After some attempts a question counts as rejected, although its outcome is unknown."""

    def give_up_late(
        flow: Flow, transfer: Transfer, answer: Answer, context: DecisionContext
    ) -> Move:
        give_up = isinstance(answer, Unknown) and transfer.attempts >= MAX_ATTEMPTS
        return decide(flow, transfer, Rejected("GAVE_UP") if give_up else answer, context)

    deciding(patch, give_up_late)


def doubt_is_counted_as_an_answer(patch: Patch) -> None:
    """Every Unknown increments the version, so that the question is repeated with another key."""

    def counting(flow: Flow, transfer: Transfer, answer: Answer, context: DecisionContext) -> Move:
        move = decide(flow, transfer, answer, context)
        if isinstance(answer, Unknown) and not move.entries:
            return replace(move, after=move.after.replace(version=transfer.version + 1))
        return move

    deciding(patch, counting)


def new_key_for_each_attempt(patch: Patch) -> None:
    """Each retry of a credit has a new idempotency key, as with many HTTP clients."""

    def fresh(question: Question, kind: TransferKind) -> Question:
        if question.verb is not Verb.CREDIT or question.party.system != "core":
            return question
        return replace(question, version=question.version + 1_000 * kind.attempts)

    asking(patch, fresh)


def float_amount(patch: Patch) -> None:
    """The amount is converted to a float when it is sent, and is rounded above 2**53."""

    def rounded(question: Question, _: TransferKind) -> Question:
        return replace(question, amount=int(float(question.amount)))

    asking(patch, rounded)


def asks_before_it_persists(patch: Patch) -> None:
    """The core is asked before the transfer's row is in the database."""
    unpatched = write_batch._write_once

    async def timeout_as_rejected(
        context: EngineContext[Any], work: WriteBatch, **options: Any
    ) -> WriteResult:
        for transfer in work.batch if work.creations else ():
            if transfer.lane in context.outside:
                question = question_of(context.flows[transfer.flow], transfer)
                with suppress(Unreachable):
                    await step.ask(context.outside[str(transfer.lane)], [question])
        return await unpatched(context, work, **options)

    patch.setattr(write_batch, "_write_once", timeout_as_rejected)


def hands_over_before_the_commit(patch: Patch) -> None:
    """The next lane gets the row before its transaction commits."""
    unpatched = write_batch._transact

    async def transact(
        context: EngineContext[Any], work: WriteBatch, slots: RingReservation, **options: Any
    ) -> Any:
        class Early:
            """A store that hands rows over as soon as they are written."""

            def __getattr__(self, name: str) -> Any:
                return getattr(context.store, name)

            async def write(
                self, tx: Any, moves: Moves, leased: Sequence[bool]
            ) -> Sequence[Transfer]:
                rows = await context.store.write(tx, moves, leased)
                context.wake_lanes(slots.hand_over(rows))
                slots._lanes = [None] * len(rows)
                return rows

        early = dataclasses.replace(context, store=cast("Any", Early()))
        return await unpatched(early, work, slots, **options)

    patch.setattr(write_batch, "_transact", transact)


def lost_commit_under_new_ids(patch: Patch) -> None:
    """After a COMMIT without a reply the batch runs again with new ids."""

    async def still_open(self: RequestBatch[Any], work: WriteBatch) -> WriteBatch:
        return await self.begin([self._requests[t.id.int] for t in work.batch])

    patch.setattr(RequestBatch, "still_open", still_open)


def lost_commit_is_an_error(patch: Patch) -> None:
    """A COMMIT without a reply is returned as a failure, so that the caller pays again."""
    unpatched = write_batch._write_once

    async def once(context: EngineContext[Any], work: WriteBatch, **options: Any) -> WriteResult:
        try:
            return await unpatched(context, work, **options)
        except CommitUnknown as fault:
            if not work.creations:
                raise
            raise NoSession(str(fault)) from fault

    patch.setattr(write_batch, "_write_once", once)


def refuses_what_may_have_happened(patch: Patch) -> None:
    """A request is refused although an earlier try of it may have moved money."""

    def refuse(_: RequestBatch[Any], pending: PendingRequest, refusal: Refusal, __: object) -> None:
        pending_request.reply_to_all(pending, refusal)

    patch.setattr(RequestBatch, "_refuse", refuse)


def refuses_what_another_process_made(patch: Patch) -> None:
    """A request is refused by a limit that it has used up itself, in another process."""

    async def refused(self: RequestBatch[Any], result: WriteResult) -> None:
        for id_, refusal in result.refused:
            self._refuse(self._requests[id_.int], refusal, result.work.doubts)

    patch.setattr(RequestBatch, "_refused", refused)


def one_lock_stops_all(patch: Patch) -> None:
    """A batch that waits for a lock is never split, so that all of it waits."""
    patch.setattr(write_batch, "LOCK_WAITS", 10**6)


def accepts_what_waits_for_a_lock(patch: Patch) -> None:
    """A request that waits for a lock is reported as accepted, although no COMMIT was tried."""

    def give_up_late(fault: Exception, attempt: int, pace: write_batch.BatchPace) -> bool:
        return attempt >= write_batch.TRIES - 1

    async def failed(self: RequestBatch[Any], work: WriteBatch, fault: Exception) -> None:
        self.doubtful(work)

    patch.setattr(write_batch, "_out_of_tries", give_up_late)
    patch.setattr(RequestBatch, "failed", failed)


def another_amount_under_a_known_key(patch: Patch) -> None:
    """A known cid gets the known transfer, even if the request differs."""

    def matches(self: PendingRequest, fingerprint: bytes) -> bool:
        return True

    patch.setattr(PendingRequest, "matches", matches)


def ended_rows_move_again(patch: Patch) -> None:
    """A late answer is recorded over a row that has ended, because its lane is empty."""

    async def lock(
        self: MemoryStore, tx: Any, transfers: Sequence[Transfer], after_lock: AfterLock = no_action
    ) -> Sequence[Transfer]:
        await tx.lock("transfers", sorted(t.id for t in transfers))
        await after_lock()
        rows = {t.id: tx.get("transfers", t.id).transfer for t in transfers}
        return [t for t in transfers if rows[t.id].version == t.version or rows[t.id].lane is None]

    patch.setattr(MemoryStore, "lock", lock)
    patch.setattr(MemoryStore, "write", write_blindly)


def unordered_locks(patch: Patch) -> None:
    """Accounts are locked in random order, so that two batches deadlock."""

    async def lock(
        context: EngineContext[Any], tx: Any, moves: Moves, groups: Mapping[str, LocalGroup]
    ) -> None:
        asking = [
            moves.transfer_after(place) for group in groups.values() for place in group.indexes
        ]
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


def ring_ignores_halts(patch: Patch) -> None:
    """Transfers that were handed over within the process are asked during a halt."""

    async def popped(self: Lane[Any], _: Expect) -> list[Transfer]:
        return self.ring.pop(MAX_BATCH, self.context.clock())

    patch.setattr(Lane, "_popped", popped)


def never_scans(patch: Patch) -> None:
    """Only transfers that were handed over are asked: those of a dead worker are forgotten."""

    async def look(self: DueScan[Any]) -> None:
        return

    patch.setattr(DueScan, "_look", look)


def attempts_start_again(patch: Patch) -> None:
    """Each Unknown resets the count of attempts, so that no alert is ever raised."""

    def forgetful(flow: Flow, transfer: Transfer, answer: Answer, context: DecisionContext) -> Move:
        move = decide(flow, transfer.replace(attempts=1), answer, context)
        return replace(move, after=move.after.replace(attempts=0), before=transfer)

    deciding(patch, forgetful)


def no_alerts(patch: Patch) -> None:
    """A stuck transfer raises no alert."""

    def silent(flow: Flow, transfer: Transfer, answer: Answer, context: DecisionContext) -> Move:
        return replace(decide(flow, transfer, answer, context), alarm=Alarm.NONE)

    deciding(patch, silent)


def false_alerts(patch: Patch) -> None:
    """Every Unknown raises an alert, so that alerts are soon ignored."""

    def nervous(flow: Flow, transfer: Transfer, answer: Answer, context: DecisionContext) -> Move:
        move = decide(flow, transfer, answer, context)
        return replace(move, alarm=Alarm.PAGE) if isinstance(answer, Unknown) else move

    deciding(patch, nervous)


def drops_an_answer(patch: Patch) -> None:
    """If one transaction records two answers, only the last is written to the history."""
    unpatched = MemoryStore._write

    def last(self: MemoryStore, tx: Any, move: Move, hashes: list[bytes], row: MemoryRow) -> None:
        unpatched(self, tx, replace(move, entries=move.entries[-1:]), hashes[-1:], row)

    patch.setattr(MemoryStore, "_write", last)


def outages_are_not_recorded(patch: Patch) -> None:
    """An unreachable system closes its lane, but the failed probes are not counted."""

    async def note(self: Lane[Any], reason: str) -> None:
        pass

    patch.setattr(Lane, "_note", note)


def trusts_the_databases_clock(patch: Patch) -> None:
    """A database clock that is set back is not noticed, so that leases last much too long."""

    async def keep(_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    patch.setattr(whole_engine, "repair_clock", keep)


def floor_by_one_clock_sent_at_once(patch: Patch) -> None:
    """A floor is sent by the database's clock alone, without storing or checking it first."""

    async def round_(self: Retirement) -> UUID:
        lowest = await self._floors.lowest(self._horizon.horizon_s)
        return await self._retire(lowest)

    async def raise_to(_: MemoryStore, floor: UUID) -> UUID:
        return floor

    patch.setattr(Retirement, "round", round_)
    patch.setattr(MemoryStore, "raise_to", raise_to)
    patch.setattr(Core, "_latest_floor", lambda _: 2**128 - 1)
