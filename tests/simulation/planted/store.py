"""Bugs of the store and of the ledger in it: who may write, and what is judged by what."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest

from tidegate.core.account import Account
from tidegate.core.answers import Answer, Rejected
from tidegate.core.ids import NO_FLOOR, Horizon
from tidegate.core.kind import GENESIS, Transfer
from tidegate.core.moves import Moves, moves_of
from tidegate.core.ports import Behind, FlowChecksums, KeyLookup, RequestKey, nothing
from tidegate.core.transfer import EvidenceColumn, Form, Question, Step, chain, hashed_form
from tidegate.engine import local_answers, write_batch
from tidegate.engine.write_batch import WriteBatch
from tidegate.simulation.store import NodeStore, SimTransaction
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
    """A row is written whatever has become of it since it was read."""

    async def lock(
        self: MemoryStore,
        tx: TwinTransaction,
        transfers: Sequence[Transfer],
        behind: Behind = nothing,
    ) -> Any:
        await tx.lock(TRANSFERS, sorted(t.id for t in transfers))
        await behind()
        return transfers

    patch.setattr(MemoryStore, "lock", lock)
    patch.setattr(MemoryStore, "write", write_blindly)


def compares_states(patch: Patch) -> None:
    """The compare-and-set looks at the state, and a flow can come by the same state twice."""

    async def lock(
        self: MemoryStore,
        tx: TwinTransaction,
        transfers: Sequence[Transfer],
        behind: Behind = nothing,
    ) -> Any:
        await tx.lock(TRANSFERS, sorted(t.id for t in transfers))
        await behind()
        return [t for t in transfers if tx.get(TRANSFERS, t.id).transfer.state == t.state]

    patch.setattr(MemoryStore, "lock", lock)
    patch.setattr(MemoryStore, "write", write_blindly)


def trusts_the_lease(patch: Patch) -> None:
    """A row that is leased is taken for our own, so that its version is not looked at."""

    async def lock(
        self: MemoryStore,
        tx: TwinTransaction,
        transfers: Sequence[Transfer],
        behind: Behind = nothing,
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
    patch.setattr(MemoryStore, "write", write_blindly)


def leases_by_the_workers_clock(patch: Patch) -> None:
    """A lease is counted by the clock of whoever takes it, and clocks jump."""
    honest = MemoryStore.claim

    async def claim(
        self: NodeStore, lane: str, limit: int, flows: FlowChecksums
    ) -> Sequence[Transfer]:
        claimed = await honest(self, lane, limit, flows)
        found = self.tables.rows[TRANSFERS]
        for transfer in claimed:
            row = found[transfer.id]
            found[transfer.id] = row._replace(due_s=self.node.clock() + self.lease_s)
        return claimed

    patch.setattr(MemoryStore, "claim", claim)


def claims_every_flow(patch: Patch) -> None:
    """A worker takes whatever is due, of flows that it does not know as well."""

    def ours(self: MemoryStore, flows: FlowChecksums) -> frozenset[str]:
        return frozenset() if self.tables.halts else frozenset(self.tables.flows)

    patch.setattr(MemoryStore, "ours", ours)


def cid_per_worker(patch: Patch) -> None:
    """Each worker remembers only the keys that came to itself."""
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
    """Each answer's hash stands for itself, so that one before it can be taken out."""

    def alone(
        heads: Iterable[bytes], form: Form, numbers: Iterable[int], evidences: EvidenceColumn
    ) -> list[bytes]:
        return chain([GENESIS for _ in heads], form, numbers, evidences)

    patch.setattr(written_rows, "chain", alone)


def hash_leaves_out_the_answer(patch: Patch) -> None:
    """The chain holds, whether a question was answered with yes or no."""

    def vague(step: Step) -> tuple[Form, ...]:
        return tuple(hashed_form(step.after.flow, line._replace(answer="")) for line in step.lines)

    patch.setattr(written_rows, "_forms", vague)


# The ledger.


async def _no_locks(context: object, tx: object, moves: object, groups: object) -> None:
    """For the ledger that locks when it writes."""


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
    """Balances are read, then locked, then written: by then another has spent the money."""
    patch.setattr(write_batch, "lock_accounts", _no_locks)
    patch.setattr(MemoryLedger, "ask", _ask_then_lock)


def effect_before_the_lock(patch: Patch) -> None:
    """The ledger moves money first; whether the transfer is still there to be moved comes after."""
    honest = write_batch._transact

    async def transact(context: Any, work: WriteBatch, slots: Any, **terms: Any) -> Any:
        if work.creations:
            return await honest(context, work, slots, **terms)
        async with context.store.transaction() as tx:
            moves = write_batch._first_moves(context, work)
            groups = local_answers.groups_of(context, moves)
            await local_answers.ask_local_systems(context, tx, moves, groups)
            fresh = {t.id for t in await context.store.lock(tx, work.batch)}
            places = [place for place, t in enumerate(work.batch) if t.id in fresh]
            moves = moves_of([moves.move(place) for place in places])
            rows = await context.store.write(tx, moves, slots.reserve(moves, halted=False))
            await local_answers.tell_listeners(context, tx, moves)
            if work.lane in context.remembering:
                await context.remembering[work.lane].remember(tx)
        return write_batch.WriteResult(work, rows), moves

    patch.setattr(write_batch, "_transact", transact)
    judges_before_it_locks(patch)


def ledger_forgets_refusals(patch: Patch) -> None:
    """A refusal is only said: the same question succeeds later, when the account has money."""

    def refuse(_: LedgerJudge, __: Question, reason: str) -> Answer:
        return Rejected(str(reason))

    patch.setattr(LedgerJudge, "_refuse", refuse)


def ledger_batch_sees_no_balance_before_it(patch: Patch) -> None:
    """Each question is judged by the balance before its batch: together they overdraw."""
    honest = LedgerJudge.judge_all

    def judge_all(
        self: LedgerJudge, questions: Sequence[Question], accounts: Sequence[Account]
    ) -> list[Answer]:
        before, answers = dict(self.accounts), []
        for question, account in zip(questions, accounts, strict=True):
            answers += honest(self, [question], [account])
            self.accounts.update(before)
        return answers

    patch.setattr(LedgerJudge, "judge_all", judge_all)


def ledger_takes_a_reused_key(patch: Patch) -> None:
    """Under a known key any amount gets the known answer."""

    def matches(_: LedgerOperation, __: LedgerOperation | None, ___: Question) -> bool:
        return True

    patch.setattr(judge, "_matches", matches)


def ledger_undoes_twice(patch: Patch) -> None:
    """A second refund of the same debit finds the debit done, and pays again."""
    honest = LedgerJudge._undo

    def undo(self: LedgerJudge, question: Question) -> Answer:
        self.closings.clear()
        return honest(self, question)

    patch.setattr(LedgerJudge, "_undo", undo)


def ledger_undo_without_tombstone(patch: Patch) -> None:
    """A refund overtakes its debit and leaves no mark: the debit comes late, and stays."""
    honest = LedgerJudge._undo

    def undo(self: LedgerJudge, question: Question) -> Answer:
        unseen = (question.transfer_id, question.undoes) not in self.operations
        if unseen and not question.expect_done:
            return self._stand(question)
        return honest(self, question)

    patch.setattr(LedgerJudge, "_undo", undo)


def ids_by_the_clock_alone(patch: Patch) -> None:
    """New ids do not heed the floor: while the clock is behind it, every request is refused."""
    patch.setattr(memory_store, "id_time_us", lambda now_us, _: now_us)
    # All clocks are ahead once: then only the ids themselves keep out of the way.
    patch.setattr(Horizon, "latest", lambda _, __: UUID(int=2**128 - 1))


def births_below_the_floor(patch: Patch) -> None:
    """The same, and what is below the floor is let in: it is stuck after its debit."""
    ids_by_the_clock_alone(patch)
    honest = TwinTransaction.__init__

    def init(self: TwinTransaction, *args: Any) -> None:
        honest(self, *args)
        self.floor = NO_FLOOR

    patch.setattr(TwinTransaction, "__init__", init)


def hands_over_without_a_list(patch: Patch) -> None:
    """What a process holds in memory is written as held, and nothing says that it is."""

    def hand_over(tx: TwinTransaction, ids: Sequence[UUID], until_s: float) -> None:
        honest(tx, ids, until_s)
        for name in [name for name in tx.written if name[0] == HANDOVERS]:
            del tx.written[name]

    honest = memory_handovers.hand_over
    patch.setattr(memory_store, "hand_over", hand_over)


def lists_once_it_is_told(patch: Patch) -> None:
    """A process lists what it holds when it learns that the rows are written, and may have died."""
    honest = SimTransaction.commit

    def commit(self: SimTransaction) -> None:
        for name in [name for name in self.written if name[0] == HANDOVERS and not self.heard]:
            del self.written[name]
        honest(self)

    patch.setattr(SimTransaction, "commit", commit)


def lists_are_deleted_while_rows_are_locked(patch: Patch) -> None:
    """Whoever has locked a row may write nothing, and then no list names it any more."""

    def lapse(tables: MemoryTables, now_s: float, lease_s: float) -> None:
        honest(tables, now_s, lease_s)
        lists = tables.rows[HANDOVERS]
        for number in [number for number, listed in lists.items() if listed.until_s <= now_s]:
            del lists[number]

    honest = memory_handovers.lapse
    patch.setattr(memory_store, "lapse", lapse)


def lists_are_deleted_early(patch: Patch) -> None:
    """A list is looked at before the lease is over, and is deleted with what is still held."""

    def lapse(tables: MemoryTables, now_s: float, lease_s: float) -> None:
        honest(tables, now_s, lease_s)
        lists = tables.rows[HANDOVERS]
        for number in [n for n, listed in lists.items() if listed.until_s <= now_s + lease_s - 1]:
            del lists[number]

    honest = memory_handovers.lapse
    patch.setattr(memory_store, "lapse", lapse)


def what_is_held_stays_held(patch: Patch) -> None:
    """Claims do not look at what has lapsed."""
    patch.setattr(memory_store, "lapse", lambda tables, now_s, lease_s: None)


def lists_wait_for_a_clock_that_was_set_back(patch: Patch) -> None:
    """When the clock is set back, what is held stays where it is until its time comes again."""
    patch.setattr(memory_store, "lapse_all", lambda tables, now_s: None)
    patch.setattr(memory_store, "listed", lambda tables: frozenset())
