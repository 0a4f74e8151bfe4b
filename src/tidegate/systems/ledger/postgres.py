"""The ledger on PostgreSQL: three statements for a batch, whatever its size."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tidegate.core.answers import Answer
from tidegate.core.flow import UNDOES
from tidegate.core.ports import Account, SqlTransaction
from tidegate.core.sql import load, numbers, texts, uuids
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

STATEMENTS = load("tidegate.systems.ledger", "ledger.sql")


class Sql(Protocol):
    """Anything that runs one statement: a store, for what needs no transaction around it."""

    async def run(self, statement: str, values: Mapping[str, object]) -> list[Any]: ...


class LockingTransaction(SqlTransaction, Protocol):
    """A transaction that remembers what was locked in it, and what was sent and not waited for."""

    held: set[Any]
    locking: list[tuple[Sequence[Any], Any]]
    looking: tuple[Sequence[Question], Any] | None

    def send(self, statement: str, values: Mapping[str, object]) -> Any:
        """Put a statement beside those that wait already, for its rows to be had later."""

    async def rows(self, sent: Any) -> list[Any]: ...


class Ledger:
    """Local: it answers inside the transaction that records its answers."""

    reversible = True

    def __init__(self, name: str = "ledger") -> None:
        self.name = name

    async def lock(
        self, tx: LockingTransaction, accounts: Sequence[Account], next_: Sequence[Question] = ()
    ) -> None:
        """Waited for with the look: a later statement, which sees a later moment."""
        tx.locking.append((accounts, tx.send(STATEMENTS["lock"], _account_columns(accounts))))
        if next_:
            tx.looking = next_, self._send_look(tx, next_)

    async def ask(self, tx: LockingTransaction, questions: Sequence[Question]) -> Sequence[Answer]:
        accounts, known = await self._look(tx, questions)
        wanted = {account_of(q) for q in questions if may_open(q)}
        if missing := sorted(wanted - accounts.keys()):
            await tx.post(STATEMENTS["open"], _account_columns(missing))
        # One that another session opened meanwhile is not locked by having been met. Each round
        # locks one more of the batch's accounts at least.
        while unlocked := sorted((wanted | accounts.keys()) - tx.held):
            await self.lock(tx, unlocked)
            accounts, known = await self._look(tx, questions)
        if undoing := [q.transfer_id for q in questions if q.verb in UNDOES]:
            rows = await tx.fetch(STATEMENTS["look_undone"], {"ids": uuids(undoing)})
            known += [_operation(row) for row in rows]
        judgement = Judgement(accounts, known)
        answers = [judgement.judge(question) for question in questions]
        if judgement.written:
            await tx.post(STATEMENTS["apply"], _operation_columns(judgement.written))
        return answers

    async def _look(
        self, tx: LockingTransaction, questions: Sequence[Question]
    ) -> tuple[dict[Account, Balance], list[Operation]]:
        foreseen, sent = tx.looking or ((), None)
        tx.looking = None
        rows = await tx.rows(sent if foreseen is questions else self._send_look(tx, questions))
        for locked, sent in tx.locking:
            tx.held.update(locked)
            tx.held.difference_update(Account(*row) for row in await tx.rows(sent))
        tx.locking.clear()
        accounts, known = {}, []
        for question, row in zip(questions, rows, strict=True):
            if row[0] is not None:
                accounts[account_of(question)] = Balance(row[0], row[1], row[2])
            if row[3] is not None:
                known.append(_operation((question.transfer_id, question.version, *row[3:])))
        return accounts, known

    def _send_look(self, tx: LockingTransaction, questions: Sequence[Question]) -> Any:
        values = {
            "ids": uuids(q.transfer_id for q in questions),
            "versions": numbers(q.version for q in questions),
            **_account_columns([account_of(q) for q in questions]),
        }
        return tx.send(STATEMENTS["look"], values)

    async def query(self, sql: Sql, questions: Sequence[Question]) -> Sequence[Answer | None]:
        """What is stored under each question's key; None where nothing is."""
        rows = await sql.run(
            STATEMENTS["look_undone"], {"ids": uuids(q.transfer_id for q in questions)}
        )
        stored = {(o.transfer_id, o.version): answer_of(o) for o in map(_operation, rows)}
        return [stored.get((q.transfer_id, q.version)) for q in questions]

    async def set_status(self, sql: Sql, account: Account, status: Status) -> bool:
        """False if there is no such account."""
        values = {"asset": account.asset_id, "status": str(status), **account._asdict()}
        return bool(await sql.run(STATEMENTS["set_status"], values))

    async def balances(self, sql: Sql, owner: int) -> Mapping[Account, Balance]:
        rows = await sql.run(STATEMENTS["balances"], {"owner": owner})
        return {Account(*row[:3]): Balance(*row[3:]) for row in rows}


def _account_columns(accounts: Sequence[Account]) -> dict[str, object]:
    return {
        "owners": numbers(a.owner for a in accounts),
        "books": texts(a.book for a in accounts),
        "assets": numbers(a.asset_id for a in accounts),
    }


def _operation_columns(operations: Sequence[Operation]) -> dict[str, object]:
    return {
        "ids": uuids(o.transfer_id for o in operations),
        "versions": numbers(o.version for o in operations),
        **_account_columns([o.account for o in operations]),
        "verbs": texts(o.verb for o in operations),
        "amounts": numbers(o.amount for o in operations),
        "undoes": numbers(o.undoes for o in operations),
        "results": texts(o.result for o in operations),
        "reasons": texts(o.reason for o in operations),
        "deltas": numbers(o.delta for o in operations),
        "held_deltas": numbers(o.held_delta for o in operations),
        "balances": numbers(o.balance_after for o in operations),
    }


def _operation(row: Sequence[Any]) -> Operation:
    return Operation(row[0], row[1], Account(*row[2:5]), *row[5:])
