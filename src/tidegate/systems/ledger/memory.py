"""The ledger in memory, for tests and simulation: the same rules over tables in memory."""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.flow import UNDO_VERBS
from tidegate.core.ports import MemoryTransaction
from tidegate.core.transfer import Question
from tidegate.systems.ledger.judge import (
    FEES_ENTRY,
    LedgerBalance,
    LedgerJudge,
    LedgerOperation,
    LedgerStatus,
    account_of,
    answer_of,
    balance_of,
    has_owner,
    may_open,
    parts,
)

ACCOUNTS, OPERATIONS = "ledger_accounts", "ledger_operations"
ASSETS = frozenset(range(1, 7))  # The assets that the first migration creates.
EMPTY = LedgerBalance(0, 0, LedgerStatus.ACTIVE)


class MemoryLedger:
    reversible = True

    def __init__(self, name: str = "ledger", assets: frozenset[int] = ASSETS) -> None:
        self.name = name
        self._assets = assets

    async def lock(
        self,
        tx: MemoryTransaction,
        accounts: Sequence[Account],
        next_: Sequence[Question] = (),  # noqa: ARG002  Operations are looked up in `ask`.
    ) -> None:
        await tx.lock(ACCOUNTS, accounts)

    async def ask(self, tx: MemoryTransaction, questions: Sequence[Question]) -> Sequence[Answer]:
        """Pause where the real ledger runs a statement, so that other tasks run at that point."""
        await tx.pause()
        entries = parts(questions)
        needed = {account_of(q) for q in entries}
        openable = {account_of(q) for q in entries if may_open(q) and has_owner(q)}
        unknown_assets = frozenset[int]()
        if unlocked := _unlocked(tx, needed):
            missing = sorted(openable.intersection(unlocked))
            unknown_assets = frozenset(a.asset_id for a in missing) - self._assets
            if missing:
                await self._open(tx, [a for a in missing if a.asset_id not in unknown_assets])
            await self.lock(tx, sorted(unlocked))
            await tx.pause()
        judgement = LedgerJudge(_balances(tx, needed), _known(tx, questions), unknown_assets)
        if any(q.verb in UNDO_VERBS for q in questions):
            await tx.pause()
        answers = judgement.judge_all(questions, [account_of(question) for question in questions])
        if written := judgement.operations_written():
            await self._apply(tx, written)
        return answers

    async def _open(self, tx: MemoryTransaction, accounts: Sequence[Account]) -> None:
        await tx.pause()
        for account in accounts:
            await tx.insert(ACCOUNTS, account, EMPTY)

    async def _apply(self, tx: MemoryTransaction, operations: Sequence[LedgerOperation]) -> None:
        await tx.lock(ACCOUNTS, sorted({o.account for o in operations if o.moved}))
        for operation in operations:
            earlier = tx.get(OPERATIONS, operation.transfer_id) or ()
            tx.put(OPERATIONS, operation.transfer_id, (*earlier, operation))
            if operation.moved:
                balance = tx.get(ACCOUNTS, operation.account)
                available = balance.available + operation.delta
                held = balance.held + operation.held_delta
                tx.put(ACCOUNTS, operation.account, balance_of((available, held, balance.status)))

    def query(
        self, operations: Mapping[Hashable, Sequence[LedgerOperation]], question: Question
    ) -> Answer | None:
        """The answer stored under the question's key, or None."""
        stored = operations.get(question.transfer_id, ())
        entries = {o.entry: o for o in stored if o.version == question.version}
        return answer_of(entries[0], entries.get(FEES_ENTRY)) if entries else None


def _unlocked(tx: MemoryTransaction, accounts: Iterable[Account]) -> list[Account]:
    return [account for account in accounts if (ACCOUNTS, account) not in tx.held]


def _balances(tx: MemoryTransaction, accounts: Iterable[Account]) -> dict[Account, LedgerBalance]:
    """The locked accounts only: an account that another session opened later is not visible."""
    return {a: tx.get(ACCOUNTS, a) for a in accounts if (ACCOUNTS, a) in tx.held}


def _known(tx: MemoryTransaction, questions: Sequence[Question]) -> list[LedgerOperation]:
    ids = dict.fromkeys(q.transfer_id for q in questions)
    return [operation for id_ in ids for operation in tx.get(OPERATIONS, id_) or ()]
