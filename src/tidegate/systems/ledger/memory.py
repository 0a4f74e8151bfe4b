"""The ledger's twin for simulation: the same rules over tables in memory."""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.flow import UNDOES
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
ASSETS = frozenset(range(1, 7))  # As the first migration makes them.
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
        next_: Sequence[Question] = (),  # noqa: ARG002  It looks when it is asked.
    ) -> None:
        await tx.lock(ACCOUNTS, accounts)

    async def ask(self, tx: MemoryTransaction, questions: Sequence[Question]) -> Sequence[Answer]:
        """A pause for each statement of the real one, so that others come between where they do."""
        await tx.pause()
        asked = parts(questions)
        named = {account_of(q) for q in asked}
        wanted = {account_of(q) for q in asked if may_open(q) and has_owner(q)}
        strange = frozenset[int]()
        if unlocked := _unlocked(tx, named):
            missing = sorted(wanted.intersection(unlocked))
            strange = frozenset(a.asset_id for a in missing) - self._assets
            if missing:
                await self._open(tx, [a for a in missing if a.asset_id not in strange])
            await self.lock(tx, sorted(unlocked))
            await tx.pause()
        judgement = LedgerJudge(_found(tx, named), _known(tx, questions), strange)
        if any(q.verb in UNDOES for q in questions):
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
        """What is stored under the question's key; None if nothing is."""
        stored = operations.get(question.transfer_id, ())
        entries = {o.entry: o for o in stored if o.version == question.version}
        return answer_of(entries[0], entries.get(FEES_ENTRY)) if entries else None


def _unlocked(tx: MemoryTransaction, accounts: Iterable[Account]) -> list[Account]:
    return [account for account in accounts if (ACCOUNTS, account) not in tx.held]


def _found(tx: MemoryTransaction, accounts: Iterable[Account]) -> dict[Account, LedgerBalance]:
    """Those that are locked. What another session has opened since is not there for us."""
    return {a: tx.get(ACCOUNTS, a) for a in accounts if (ACCOUNTS, a) in tx.held}


def _known(tx: MemoryTransaction, questions: Sequence[Question]) -> list[LedgerOperation]:
    ids = dict.fromkeys(q.transfer_id for q in questions)
    return [operation for id_ in ids for operation in tx.get(OPERATIONS, id_) or ()]
