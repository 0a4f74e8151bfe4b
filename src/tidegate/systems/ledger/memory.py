"""The ledger's twin for simulation: the same rules over tables in memory."""

from collections.abc import Hashable, Mapping, Sequence

from tidegate.core.answers import Answer
from tidegate.core.ports import Account, MemoryTransaction
from tidegate.core.transfer import Question
from tidegate.systems.ledger.judge import (
    Balance,
    Judgement,
    Operation,
    Status,
    account_of,
    answer_of,
    may_open,
)

ACCOUNTS, OPERATIONS = "ledger_accounts", "ledger_operations"
EMPTY = Balance(0, 0, Status.ACTIVE)


class MemoryLedger:
    reversible = True

    def __init__(self, name: str = "ledger") -> None:
        self.name = name

    async def lock(self, tx: MemoryTransaction, accounts: Sequence[Account]) -> None:
        await tx.lock(ACCOUNTS, accounts)

    async def ask(self, tx: MemoryTransaction, questions: Sequence[Question]) -> Sequence[Answer]:
        await tx.pause()
        for question in questions:
            if may_open(question) and tx.get(ACCOUNTS, account_of(question)) is None:
                tx.put(ACCOUNTS, account_of(question), EMPTY)
        accounts = {a: tx.get(ACCOUNTS, a) for a in map(account_of, questions)}
        found = {a: balance for a, balance in accounts.items() if balance is not None}
        known: list[Operation] = []
        for transfer_id in {q.transfer_id: None for q in questions}:
            known += tx.get(OPERATIONS, transfer_id) or ()
        judgement = Judgement(found, known)
        answers = [judgement.judge(question) for question in questions]
        for operation in judgement.written:
            earlier = tx.get(OPERATIONS, operation.transfer_id) or ()
            tx.put(OPERATIONS, operation.transfer_id, (*earlier, operation))
            if operation.moved:
                tx.put(ACCOUNTS, operation.account, judgement.accounts[operation.account])
        return answers

    def query(
        self, operations: Mapping[Hashable, Sequence[Operation]], question: Question
    ) -> Answer | None:
        """What is stored under the question's key; None if nothing is."""
        stored = operations.get(question.transfer_id, ())
        return next((answer_of(o) for o in stored if o.version == question.version), None)
