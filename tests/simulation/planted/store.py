"""Bugs of the store and of the ledger in it: who may write, and what is judged by what."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tidegate.core.answers import Answer, Rejected
from tidegate.core.ports import Behind, Birth, Known, nothing
from tidegate.core.transfer import GENESIS, Entry, Move, Question, Transfer, chained
from tidegate.engine import step
from tidegate.simulation.store import NodeStore
from tidegate.store import rows
from tidegate.store.memory import CIDS, TRANSFERS, MemoryStore, Row, Twin
from tidegate.systems.ledger import judge
from tidegate.systems.ledger import memory as ledger
from tidegate.systems.ledger.judge import Judgement, Operation
from tidegate.systems.ledger.memory import MemoryLedger

Patch = pytest.MonkeyPatch


async def record_blindly(
    self: MemoryStore, tx: Twin, moves: Sequence[Move], leased: Sequence[bool]
) -> Sequence[Transfer]:
    """An UPDATE by id alone."""
    await tx.lock(TRANSFERS, sorted(move.before.id for move in moves))
    written = []
    for move, held in zip(moves, leased, strict=True):
        kept = tx.get(TRANSFERS, move.before.id)
        after, hashes = rows.written(move, held, tx.at_us, move.before.created_us)
        due = self._due(tx, move, held, kept.deadline_s)
        self._write(tx, move, hashes, Row(after, *due, kept.expires_s))
        written.append(after)
    return written


def no_compare_and_set(patch: Patch) -> None:
    """A row is written whatever has become of it since it was read."""

    async def lock(
        self: MemoryStore, tx: Twin, transfers: Sequence[Transfer], behind: Behind = nothing
    ) -> Any:
        await tx.lock(TRANSFERS, sorted(t.id for t in transfers))
        await behind()
        return transfers

    patch.setattr(MemoryStore, "lock", lock)
    patch.setattr(MemoryStore, "record", record_blindly)


def compares_states(patch: Patch) -> None:
    """The compare-and-set looks at the state, and a flow can come by the same state twice."""

    async def lock(
        self: MemoryStore, tx: Twin, transfers: Sequence[Transfer], behind: Behind = nothing
    ) -> Any:
        await tx.lock(TRANSFERS, sorted(t.id for t in transfers))
        await behind()
        return [t for t in transfers if tx.get(TRANSFERS, t.id).transfer.state == t.state]

    patch.setattr(MemoryStore, "lock", lock)
    patch.setattr(MemoryStore, "record", record_blindly)


def trusts_the_lease(patch: Patch) -> None:
    """A row that is leased is taken for our own, so that its version is not looked at."""

    async def lock(
        self: MemoryStore, tx: Twin, transfers: Sequence[Transfer], behind: Behind = nothing
    ) -> Any:
        await tx.lock(TRANSFERS, sorted(t.id for t in transfers))
        await behind()
        found = {t.id: tx.get(TRANSFERS, t.id) for t in transfers}
        return [
            t
            for t in transfers
            if found[t.id].transfer.version == t.version
            or (found[t.id].transfer.lane and found[t.id].due_s > self.clock())
        ]

    patch.setattr(MemoryStore, "lock", lock)
    patch.setattr(MemoryStore, "record", record_blindly)


def leases_by_the_workers_clock(patch: Patch) -> None:
    """A lease is counted by the clock of whoever takes it, and clocks jump."""
    honest = MemoryStore.claim

    async def claim(self: NodeStore, lane: str, limit: int) -> Sequence[Transfer]:
        claimed = await honest(self, lane, limit)
        found = self.tables.rows[TRANSFERS]
        for transfer in claimed:
            row = found[transfer.id]
            found[transfer.id] = row._replace(due_s=self.node.clock() + self.lease_s)
        return claimed

    patch.setattr(MemoryStore, "claim", claim)


def cid_per_worker(patch: Patch) -> None:
    """Each worker remembers only the keys that came to itself."""
    seen: dict[MemoryStore, set[tuple[int, str]]] = defaultdict(set)
    look, insert, insert_row = MemoryStore.look, MemoryStore.insert, Twin.insert

    async def looked(
        self: MemoryStore, keys: Sequence[tuple[int, str]]
    ) -> tuple[int, bool, Sequence[Known | None]]:
        at_us, halted, found = await look(self, keys)
        own = [known if key in seen[self] else None for key, known in zip(keys, found, strict=True)]
        return at_us, halted, own

    async def inserted(
        self: MemoryStore, tx: Twin, births: Sequence[Birth], leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        seen[self] |= {(birth.move.after.owner, birth.cid) for birth in births}
        return await insert(self, tx, births, leased)

    async def taken(self: Twin, table: str, key: Hashable, row: object) -> bool:
        if table != CIDS:
            return await insert_row(self, table, key, row)
        self.put(table, key, row)
        return True

    patch.setattr(MemoryStore, "look", looked)
    patch.setattr(MemoryStore, "insert", inserted)
    patch.setattr(Twin, "insert", taken)


def history_not_chained(patch: Patch) -> None:
    """Each answer's hash stands for itself, so that one before it can be taken out."""

    def alone(_: bytes, transfer: Transfer, entry: Entry, at_us: int) -> bytes:
        return chained(GENESIS, transfer, entry, at_us)

    patch.setattr(rows, "chained", alone)


def hash_leaves_out_the_answer(patch: Patch) -> None:
    """The chain holds, whether a question was answered with yes or no."""

    def vague(head: bytes, transfer: Transfer, entry: Entry, at_us: int) -> bytes:
        return chained(head, transfer, replace(entry, answer=""), at_us)

    patch.setattr(rows, "chained", vague)


# The ledger.


async def _no_locks(means: object, tx: object, moves: object, groups: object) -> None:
    """For the ledger that locks when it writes."""


async def _ask_then_lock(
    self: MemoryLedger, tx: Any, questions: Sequence[Question]
) -> Sequence[Answer]:
    await tx.pause()
    judgement = Judgement(ledger._found(tx, questions), ledger._known(tx, questions))
    await tx.pause()
    answers = [judgement.judge(question) for question in questions]
    await self._apply(tx, judgement.written)
    return answers


def judges_before_it_locks(patch: Patch) -> None:
    """Balances are read, then locked, then written: by then another has spent the money."""
    patch.setattr(step, "_lock_accounts", _no_locks)
    patch.setattr(MemoryLedger, "ask", _ask_then_lock)


def effect_before_the_lock(patch: Patch) -> None:
    """The ledger moves money first; whether the transfer is still there to be moved comes after."""

    async def transact(means: Any, lane: str, work: step.Work, slots: Any) -> Any:
        async with means.store.transaction() as tx:
            firsts = step._first_moves(means, work)
            moves = await step.settle(means, tx, firsts)
            fresh = {t.id for t in await means.store.lock(tx, work.batch)}
            moves = [move for move in moves if move.before.id in fresh]
            leased = slots.reserve(moves, halted=False)
            written = await means.store.record(tx, moves, leased)
            await step.be_witnessed(means, tx, moves, born=False)
            if lane in means.remembering:
                await means.remembering[lane].remember(tx)
        return moves, written

    patch.setattr(step, "_transact", transact)
    judges_before_it_locks(patch)


def ledger_forgets_refusals(patch: Patch) -> None:
    """A refusal is only said: the same question succeeds later, when the account has money."""

    def refuse(_: Judgement, __: Question, reason: str) -> Answer:
        return Rejected(str(reason))

    patch.setattr(Judgement, "_refuse", refuse)


def ledger_batch_sees_no_balance_before_it(patch: Patch) -> None:
    """Each question is judged by the balance before its batch: together they overdraw."""
    honest = Judgement._move

    def move(self: Judgement, question: Question) -> Answer:
        account = judge.account_of(question)
        before = self.accounts[account]
        answer = honest(self, question)
        self.accounts[account] = before
        return answer

    patch.setattr(Judgement, "_move", move)


def ledger_takes_a_reused_key(patch: Patch) -> None:
    """Under a known key any amount gets the known answer."""

    def matches(_: Operation, __: Question) -> bool:
        return True

    patch.setattr(judge, "_matches", matches)


def ledger_undoes_twice(patch: Patch) -> None:
    """A second refund of the same debit finds the debit done, and pays again."""
    honest = Judgement._undo

    def undo(self: Judgement, question: Question) -> Answer:
        self.closings.clear()
        return honest(self, question)

    patch.setattr(Judgement, "_undo", undo)


def ledger_undo_without_tombstone(patch: Patch) -> None:
    """A refund overtakes its debit and leaves no mark: the debit comes late, and stays."""
    honest = Judgement._undo

    def undo(self: Judgement, question: Question) -> Answer:
        unseen = (question.transfer_id, question.undoes) not in self.operations
        if unseen and not question.expect_done:
            return self._stand(question)
        return honest(self, question)

    patch.setattr(Judgement, "_undo", undo)
