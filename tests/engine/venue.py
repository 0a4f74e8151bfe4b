"""An outside system in memory that keeps the contract of a system."""

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.transfer import Question
from tidegate.systems.ledger import LedgerStatus
from tidegate.systems.ledger.judge import LedgerBalance, LedgerJudge, LedgerOperation, account_of


class Venue:
    """Decides each key once: it gives the same answer to the same key again."""

    def __init__(self) -> None:
        self.accounts: dict[Account, LedgerBalance] = {}
        self.operations: dict[UUID, list[LedgerOperation]] = defaultdict(list)
        self.effects: list[tuple[UUID, str, int]] = []

    def execute(self, questions: Sequence[Question]) -> list[Answer]:
        for question in questions:
            account = Account(question.party.owner, question.party.book, question.asset_id)
            self.accounts.setdefault(account, LedgerBalance(0, 0, LedgerStatus.ACTIVE))
        ids = dict.fromkeys(q.transfer_id for q in questions)
        known = [operation for id_ in ids for operation in self.operations[id_]]
        judge = LedgerJudge(self.accounts, known)
        answers = [judge.judge(question, account_of(question)) for question in questions]
        for operation in judge.written:
            self.operations[operation.transfer_id].append(operation)
            if operation.moved:
                effect = (operation.transfer_id, operation.verb, operation.delta)
                self.effects.append(effect)
        return answers
