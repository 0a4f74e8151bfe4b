"""Bugs of the engine: what an answer means, when something is asked, who is told."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from tests.simulation.planted.store import record_blindly
from tidegate.core.answers import Alarm, Answer, Rejected, Unknown, Unreachable
from tidegate.core.decide import Terms, decide
from tidegate.core.flow import Flow, Verb
from tidegate.core.ports import Account, Behind, Birth, Known, System, nothing
from tidegate.core.transfer import Move, Question, Transfer, question_of
from tidegate.engine import births, step
from tidegate.engine.births import Births, Newborn
from tidegate.engine.lanes import MAX_BATCH, Lane
from tidegate.engine.rings import Slots
from tidegate.store.memory import MemoryStore

PATIENCE = 4  # Attempts after which somebody gives up.

Patch = pytest.MonkeyPatch


def refund_on_timeout(patch: Patch) -> None:
    """A timeout is taken for a «no»: the money goes back although it may have arrived."""

    def hasty(flow: Flow, transfer: Transfer, answer: Answer, terms: Terms) -> Move:
        taken = Rejected(answer.reason) if isinstance(answer, Unknown) else answer
        return decide(flow, transfer, taken, terms)

    patch.setattr(step, "decide", hasty)


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

    def tired(flow: Flow, transfer: Transfer, answer: Answer, terms: Terms) -> Move:
        over = isinstance(answer, Unknown) and transfer.attempts >= PATIENCE
        return decide(flow, transfer, Rejected("GAVE_UP") if over else answer, terms)

    patch.setattr(step, "decide", tired)


def doubt_is_counted_as_an_answer(patch: Patch) -> None:
    """Every Unknown adds a version, so that the same question goes out under another key."""

    def counting(flow: Flow, transfer: Transfer, answer: Answer, terms: Terms) -> Move:
        move = decide(flow, transfer, answer, terms)
        if isinstance(answer, Unknown) and not move.entries:
            return replace(move, after=replace(move.after, version=transfer.version + 1))
        return move

    patch.setattr(step, "decide", counting)


def new_key_for_each_attempt(patch: Patch) -> None:
    """A retried credit has a fresh idempotency key, as many HTTP clients make one per call."""

    def fresh(flow: Flow, transfer: Transfer) -> Question:
        question = question_of(flow, transfer)
        if question.verb is not Verb.CREDIT or question.party.system != "core":
            return question
        return replace(question, version=question.version + 1_000 * transfer.attempts)

    patch.setattr(step, "question_of", fresh)


def float_amount(patch: Patch) -> None:
    """The amount goes through a float on its way out, and is rounded above 2**53."""

    def rounded(flow: Flow, transfer: Transfer) -> Question:
        question = question_of(flow, transfer)
        return replace(question, amount=int(float(question.amount)))

    patch.setattr(step, "question_of", rounded)


def asks_before_it_persists(patch: Patch) -> None:
    """The core is asked before the row that knows of it is in the database."""
    honest = Births._insert

    async def insert(self: Births[Any], newborns: Sequence[Newborn]) -> None:
        means = self._means
        for move in map(self._first_move, newborns):
            if (lane := move.after.lane) in means.outside:
                question = question_of(means.flows[move.after.flow], move.after)
                with suppress(Unreachable):
                    await step.ask(means.outside[str(lane)], [question])
        await honest(self, newborns)

    patch.setattr(Births, "_insert", insert)


def hands_over_before_the_commit(patch: Patch) -> None:
    """The next lane gets the row while its transaction can still fail."""

    async def transact(
        self: Births[Any], newborns: Sequence[Newborn], slots: Slots
    ) -> births.Delivery:
        means = self._means
        async with means.store.transaction() as tx:
            moves = await step.settle(means, tx, [self._first_move(n) for n in newborns])
            leased = slots.reserve(moves, halted=False)
            born = [
                Birth(move, n.key[1], n.fingerprint, n.request.lives_s)
                for n, move in zip(newborns, moves, strict=True)
            ]
            rows = await means.store.insert(tx, born, leased)
            await step.be_witnessed(means, tx, moves, born=True)
            means.woken(slots.fill(rows))
            slots._lanes = [None] * len(rows)
        return births.Delivery(newborns, [], moves, rows)

    patch.setattr(Births, "_transact", transact)


def lost_commit_under_new_ids(patch: Patch) -> None:
    """After a COMMIT without a reply the batch runs again, as other transfers."""
    honest = Births._look

    async def look(self: Births[Any], batch: list[Newborn], *, maybe: bool) -> list[Newborn]:
        for newborn in batch:
            newborn.id = None
        return await honest(self, batch, maybe=maybe)

    patch.setattr(Births, "_look", look)


def lost_commit_is_an_error(patch: Patch) -> None:
    """A COMMIT without a reply is told as a failure, which invites the caller to pay again."""

    async def bring(self: Births[Any], batch: Sequence[Newborn], *, maybe: bool = False) -> None:
        if found := await self._look(list(batch), maybe=maybe):
            await self._insert(found)

    patch.setattr(Births, "_bring", bring)


def another_amount_under_a_known_key(patch: Patch) -> None:
    """A request is answered by its cid alone, whatever it asks for."""

    def tell(newborn: Newborn, known: Known) -> None:
        for each in (newborn, *newborn.followers):
            births.reply(each, births.Receipt(known.transfer, duplicate=True))

    patch.setattr(births, "tell", tell)


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
    patch.setattr(MemoryStore, "record", record_blindly)


def unordered_locks(patch: Patch) -> None:
    """Accounts are locked as they come, so that two batches wait for each other."""

    async def lock(
        means: step.Means[Any], tx: Any, moves: Sequence[Move], groups: Mapping[str, step.Group]
    ) -> None:
        asking = [moves[place].after for group in groups.values() for place in group.places]
        for name in sorted(means.local):
            wanted = {
                Account(party.owner, party.book, transfer.asset_id)
                for transfer in asking
                for party in transfer.parties.values()
                if party.system == name
            }
            if wanted:
                await means.local[name].lock(tx, means.dice.sample(sorted(wanted), len(wanted)))

    patch.setattr(step, "_lock_accounts", lock)


def ring_ignores_the_brake(patch: Patch) -> None:
    """What was handed over inside the process is asked although all is halted."""

    async def popped(self: Lane[Any], now_s: float) -> list[Transfer]:
        return self.ring.pop(MAX_BATCH, now_s)

    patch.setattr(Lane, "_popped", popped)


def never_scans(patch: Patch) -> None:
    """Only what was handed over is asked about: what a dead worker held is forgotten."""

    async def batch(self: Lane[Any]) -> list[Transfer]:
        self._next_scan_s = self.means.clock() + self.scan_s
        return await self._popped(self.means.clock())

    patch.setattr(Lane, "_batch", batch)


def forgets_how_often(patch: Patch) -> None:
    """Each Unknown starts the count of attempts anew, and nobody is ever called."""

    def forgetful(flow: Flow, transfer: Transfer, answer: Answer, terms: Terms) -> Move:
        move = decide(flow, replace(transfer, attempts=1), answer, terms)
        return replace(move, after=replace(move.after, attempts=0), before=transfer)

    patch.setattr(step, "decide", forgetful)


def calls_nobody(patch: Patch) -> None:
    """What is stuck stays stuck without a word."""

    def silent(flow: Flow, transfer: Transfer, answer: Answer, terms: Terms) -> Move:
        return replace(decide(flow, transfer, answer, terms), alarm=Alarm.NONE)

    patch.setattr(step, "decide", silent)


def cries_wolf(patch: Patch) -> None:
    """Somebody is called at the first doubt, so that soon nobody listens."""

    def nervous(flow: Flow, transfer: Transfer, answer: Answer, terms: Terms) -> Move:
        move = decide(flow, transfer, answer, terms)
        return replace(move, alarm=Alarm.PAGE) if isinstance(answer, Unknown) else move

    patch.setattr(step, "decide", nervous)


def drops_an_answer(patch: Patch) -> None:
    """Of two answers in one transaction only the last is written to the history."""
    honest = Move.then

    def then(self: Move, later: Move) -> Move:
        both = honest(self, later)
        return replace(both, entries=later.entries or self.entries)

    patch.setattr(Move, "then", then)
