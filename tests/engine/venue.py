"""An outside system in memory, with the contract of one."""

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.transfer import Question
from tidegate.systems.ledger import LedgerStatus
from tidegate.systems.ledger.judge import LedgerBalance, LedgerJudge, LedgerOperation, account_of


class Venue:
    """Decides each key once and for ever."""

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
        judgement = LedgerJudge(self.accounts, known)
        answers = [judgement.judge(question, account_of(question)) for question in questions]
        for operation in judgement.written:
            self.operations[operation.transfer_id].append(operation)
            if operation.moved:
                effect = (operation.transfer_id, operation.verb, operation.delta)
                self.effects.append(effect)
        return answers
