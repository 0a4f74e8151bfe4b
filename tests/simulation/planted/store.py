"""Bugs of the store and of the ledger in it: in locks, leases, keys, hashes and balances."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest

from tests.moves import moves_of
from tidegate.core.account import Account
from tidegate.core.answers import Answer, Rejected
from tidegate.core.ids import NO_FLOOR, Horizon
from tidegate.core.kind import GENESIS, Transfer
from tidegate.core.moves import Moves
from tidegate.core.ports import AfterLock, FlowChecksums, KeyLookup, RequestKey, no_action
from tidegate.core.transfer import EvidenceColumn, HashForm, Question, Step, chain_hashes, hash_form
from tidegate.engine import local_answers, write_batch
from tidegate.engine.write_batch import WriteBatch
from tidegate.simulation.store import SimTransaction, WorkerStore
from tidegate.store import memory_handovers, memory_store, written_rows
from tidegate.store.memory_store import CIDS, MemoryStore
from tidegate.store.memory_tables import HANDOVERS, TRANSFERS, MemoryRow, MemoryTables
from tidegate.store.memory_transaction import TwinTransaction
from tidegate.systems.ledger import judge
from tidegate.systems.ledger import memory as ledger
from tidegate.systems.ledger.judge import LedgerJudge, LedgerOperation, account_of
from tidegate.systems.ledger.memory import MemoryLedger

Patch = pytest.MonkeyPatch


async def write_blindly(
    self: MemoryStore, tx: TwinTransaction, moves: Moves, leased: Sequence[bool]
) -> Sequence[Transfer]:
    """An UPDATE by id alone."""
    batch = written_rows.written(moves, leased, tx.at_us)
    if not moves.created:
        await tx.lock(TRANSFERS, sorted(t.id for t in moves.transfers))
    pairs = zip(batch.rows, batch.chains(), leased, strict=True)
    for row, (after, hashes, asked) in enumerate(pairs):
        move = moves.move(row)
        if move.before is None:
            self._row(tx, move, after, hashes, asked)
            continue
        kept = tx.get(TRANSFERS, move.before.id)
        due = self._due(tx, move, asked, kept.deadline_s)
        self._write(tx, move, hashes, MemoryRow(after, *due, kept.expires_s))
    return batch.rows


def no_compare_and_set(patch: Patch) -> None:
    """A row is written without a check whether it has changed since it was read."""

    async def lock(
        self: MemoryStore,
        tx: TwinTransaction,
        transfers: Sequence[Transfer],
        after_lock: AfterLock = no_action,
    ) -> Any:
        await tx.lock(TRANSFERS, sorted(t.id for t in transfers))
        await after_lock()
        return transfers

    patch.setattr(MemoryStore, "lock", lock)
    patch.setattr(MemoryStore, "write", write_blindly)


def compares_states(patch: Patch) -> None:
    """The compare-and-set compares the state, but a flow can reach the same state twice."""

    async def lock(
        self: MemoryStore,
        tx: TwinTransaction,
        transfers: Sequence[Transfer],
        after_lock: AfterLock = no_action,
    ) -> Any:
        await tx.lock(TRANSFERS, sorted(t.id for t in transfers))
        await after_lock()
        return [t for t in transfers if tx.get(TRANSFERS, t.id).transfer.state == t.state]

    patch.setattr(MemoryStore, "lock", lock)
    patch.setattr(MemoryStore, "write", write_blindly)


def trusts_the_lease(patch: Patch) -> None:
    """A leased row is taken for our own, so that its version is not compared."""

    async def lock(
        self: MemoryStore,
        tx: TwinTransaction,
        transfers: Sequence[Transfer],
        after_lock: AfterLock = no_action,
    ) -> Any:
        await tx.lock(TRANSFERS, sorted(t.id for t in transfers))
        await after_lock()
        found = {t.id: tx.get(TRANSFERS, t.id) for t in transfers}
        return [
            t
            for t in transfers
            if found[t.id].transfer.version == t.version
            or (found[t.id].transfer.lane and found[t.id].due_s > self.clock())
        ]

    patch.setattr(MemoryStore, "lock", lock)
    patch.setattr(MemoryStore, "write", write_blindly)


def leases_by_the_workers_clock(patch: Patch) -> None:
    """A lease is measured by the worker's clock, which can jump."""
    unpatched = MemoryStore.claim

    async def claim(
        self: WorkerStore, lane: str, limit: int, flows: FlowChecksums
    ) -> Sequence[Transfer]:
        claimed = await unpatched(self, lane, limit, flows)
        found = self.tables.rows[TRANSFERS]
        for transfer in claimed:
            row = found[transfer.id]
            found[transfer.id] = row._replace(due_s=self.worker.clock() + self.lease_s)
        return claimed

    patch.setattr(MemoryStore, "claim", claim)


def claims_every_flow(patch: Patch) -> None:
    """A worker claims all due rows, even of flows that it does not know."""

    def ours(self: MemoryStore, flows: FlowChecksums) -> frozenset[str]:
        return frozenset() if self.tables.halts else frozenset(self.tables.flows)

    patch.setattr(MemoryStore, "ours", ours)


def cid_per_worker(patch: Patch) -> None:
    """Each worker knows only the keys that it has reserved itself."""
    seen: dict[MemoryStore, set[tuple[int, str]]] = defaultdict(set)
    look, reserve, insert_row = MemoryStore.look, MemoryStore.reserve, TwinTransaction.insert

    async def looked(self: MemoryStore, keys: Sequence[tuple[int, str]]) -> KeyLookup:
        at_us, found = await look(self, keys)
        own = [known if key in seen[self] else None for key, known in zip(keys, found, strict=True)]
        return KeyLookup(at_us, own)

    async def reserved(self: MemoryStore, tx: TwinTransaction, keys: Sequence[RequestKey]) -> None:
        seen[self] |= {(key.owner, key.text) for key in keys}
        await reserve(self, tx, keys)

    async def taken(self: TwinTransaction, table: str, key: Hashable, row: object) -> bool:
        if table != CIDS:
            return await insert_row(self, table, key, row)
        self.put(table, key, row)
        return True

    patch.setattr(MemoryStore, "look", looked)
    patch.setattr(MemoryStore, "reserve", reserved)
    patch.setattr(TwinTransaction, "insert", taken)


def history_not_chained(patch: Patch) -> None:
    """The hash of an answer does not include the one before, so that it can be removed."""

    def alone(
        heads: Iterable[bytes], form: HashForm, numbers: Iterable[int], evidences: EvidenceColumn
    ) -> list[bytes]:
        return chain_hashes([GENESIS for _ in heads], form, numbers, evidences)

    patch.setattr(written_rows, "chain_hashes", alone)


def hash_leaves_out_the_answer(patch: Patch) -> None:
    """The hash does not include the answer, so that it can be changed."""

    def vague(step: Step) -> tuple[HashForm, ...]:
        return tuple(
            hash_form(step.after.flow, line._replace(answer="")) for line in step.entry_forms
        )

    patch.setattr(written_rows, "_forms", vague)


# The ledger.


async def _no_locks(context: object, tx: object, moves: object, groups: object) -> None:
    """Lock no accounts before the ledger is asked."""


async def _ask_then_lock(
    self: MemoryLedger, tx: Any, questions: Sequence[Question]
) -> Sequence[Answer]:
    await tx.pause()
    accounts = {account_of(q): tx.get(ledger.ACCOUNTS, account_of(q)) for q in questions}
    found = {account: balance for account, balance in accounts.items() if balance is not None}
    judgement = LedgerJudge(found, ledger._known(tx, questions))
    await tx.pause()
    answers = [judgement.judge(question, account_of(question)) for question in questions]
    await self._apply(tx, judgement.written)
    return answers


def judges_before_it_locks(patch: Patch) -> None:
    """Balances are read before they are locked: another transaction may spend the money between."""
    patch.setattr(write_batch, "lock_accounts", _no_locks)
    patch.setattr(MemoryLedger, "ask", _ask_then_lock)


def effect_before_the_lock(patch: Patch) -> None:
    """The ledger moves money before the transfer's row is locked and compared."""
    unpatched = write_batch._transact

    async def transact(context: Any, work: WriteBatch, slots: Any, **options: Any) -> Any:
        if work.creations:
            return await unpatched(context, work, slots, **options)
        async with context.store.transaction() as tx:
            moves = write_batch._first_moves(context, work)
            groups = local_answers.local_groups(context, moves)
            await local_answers.ask_local_systems(context, tx, moves, groups)
            fresh = {t.id for t in await context.store.lock(tx, work.batch)}
            places = [place for place, t in enumerate(work.batch) if t.id in fresh]
            moves = moves_of([moves.move(place) for place in places])
            rows = await context.store.write(tx, moves, slots.reserve(moves, halted=False))
            await local_answers.notify_listeners(context, tx, moves)
            if work.lane in context.remembering:
                await context.remembering[work.lane].remember(tx)
        return write_batch.WriteResult(work, rows), moves

    patch.setattr(write_batch, "_transact", transact)
    judges_before_it_locks(patch)


def ledger_forgets_refusals(patch: Patch) -> None:
    """A refusal is not stored: the same question succeeds later, when the account has money."""

    def refuse(_: LedgerJudge, __: Question, reason: str) -> Answer:
        return Rejected(str(reason))

    patch.setattr(LedgerJudge, "_refuse", refuse)


def ledger_batch_sees_no_balance_before_it(patch: Patch) -> None:
    """Each question is judged by the balance before the batch, so that together they overdraw."""
    unpatched = LedgerJudge.judge_all

    def judge_all(
        self: LedgerJudge, questions: Sequence[Question], accounts: Sequence[Account]
    ) -> list[Answer]:
        before, answers = dict(self.accounts), []
        for question, account in zip(questions, accounts, strict=True):
            answers += unpatched(self, [question], [account])
            self.accounts.update(before)
        return answers

    patch.setattr(LedgerJudge, "judge_all", judge_all)


def ledger_takes_a_reused_key(patch: Patch) -> None:
    """A known key with another amount gets the known answer."""

    def matches(_: LedgerOperation, __: LedgerOperation | None, ___: Question) -> bool:
        return True

    patch.setattr(judge, "_matches", matches)


def ledger_undoes_twice(patch: Patch) -> None:
    """A second refund of the same debit finds the debit done, and pays again."""
    unpatched = LedgerJudge._undo

    def undo(self: LedgerJudge, question: Question) -> Answer:
        self.closings.clear()
        return unpatched(self, question)

    patch.setattr(LedgerJudge, "_undo", undo)


def ledger_undo_without_tombstone(patch: Patch) -> None:
    """A refund before its debit leaves no tombstone, so that the late debit takes the money."""
    unpatched = LedgerJudge._undo

    def undo(self: LedgerJudge, question: Question) -> Answer:
        unseen = (question.transfer_id, question.undoes) not in self.operations
        if unseen and not question.expect_done:
            return self._done_unmoved(question)
        return unpatched(self, question)

    patch.setattr(LedgerJudge, "_undo", undo)


def ids_by_the_clock_alone(patch: Patch) -> None:
    """New ids ignore the floor: while the clock is behind it, every request is refused."""
    patch.setattr(memory_store, "id_time_us", lambda now_us, _: now_us)
    # Remove the bound of the floor, so that only the ids themselves can stay above it.
    patch.setattr(Horizon, "latest", lambda _, __: UUID(int=2**128 - 1))


def creations_below_the_floor(patch: Patch) -> None:
    """Transfers are created with ids below the floor, and are stuck after their debit."""
    ids_by_the_clock_alone(patch)
    unpatched = TwinTransaction.__init__

    def init(self: TwinTransaction, *args: Any) -> None:
        unpatched(self, *args)
        self.floor = NO_FLOOR

    patch.setattr(TwinTransaction, "__init__", init)


def hands_over_without_a_list(patch: Patch) -> None:
    """Rows that a process holds in memory are written as held, but not listed in handovers."""

    def hand_over(tx: TwinTransaction, ids: Sequence[UUID], until_s: float) -> None:
        unpatched(tx, ids, until_s)
        for name in [name for name in tx.written if name[0] == HANDOVERS]:
            del tx.written[name]

    unpatched = memory_handovers.hand_over
    patch.setattr(memory_store, "hand_over", hand_over)


def lists_after_the_commit(patch: Patch) -> None:
    """A process lists the rows that it holds after the commit, and may die before."""
    unpatched = SimTransaction.commit

    def commit(self: SimTransaction) -> None:
        for name in [
            name for name in self.written if name[0] == HANDOVERS and not self.acknowledged
        ]:
            del self.written[name]
        unpatched(self)

    patch.setattr(SimTransaction, "commit", commit)


def lists_are_deleted_while_rows_are_locked(patch: Patch) -> None:
    """A list is deleted while one of its rows is locked, and then no list contains the row."""

    def lapse(tables: MemoryTables, now_s: float, lease_s: float) -> None:
        unpatched(tables, now_s, lease_s)
        lists = tables.rows[HANDOVERS]
        for number in [number for number, listed in lists.items() if listed.until_s <= now_s]:
            del lists[number]

    unpatched = memory_handovers.lapse
    patch.setattr(memory_store, "lapse", lapse)


def lists_are_deleted_early(patch: Patch) -> None:
    """A list is deleted before the lease ends, while its rows are still held."""

    def lapse(tables: MemoryTables, now_s: float, lease_s: float) -> None:
        unpatched(tables, now_s, lease_s)
        lists = tables.rows[HANDOVERS]
        for number in [n for n, listed in lists.items() if listed.until_s <= now_s + lease_s - 1]:
            del lists[number]

    unpatched = memory_handovers.lapse
    patch.setattr(memory_store, "lapse", lapse)


def what_is_held_stays_held(patch: Patch) -> None:
    """Claims ignore the lists whose leases have ended."""
    patch.setattr(memory_store, "lapse", lambda tables, now_s, lease_s: None)


def lists_wait_for_a_clock_that_was_set_back(patch: Patch) -> None:
    """After the clock is set back, held rows are not released until the clock is at their lease."""
    patch.setattr(memory_store, "lapse_all", lambda tables, now_s: None)
    patch.setattr(memory_store, "listed", lambda tables: frozenset())
