"""The ledger on PostgreSQL: three statements for a batch, whatever its size."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tidegate.core.answers import Answer
from tidegate.core.flow import UNDOES
from tidegate.core.ports import Account, SqlTransaction
from tidegate.core.sql import load, names, numbers, sparse, uuids
from tidegate.core.transfer import Question
from tidegate.systems.ledger.judge import (
    FEES_ENTRY,
    Balance,
    Judgement,
    Operation,
    Status,
    account_of,
    answer_of,
    has_owner,
    may_open,
    parts,
)

STATEMENTS = load("tidegate.systems.ledger", "ledger.sql")


class Sql(Protocol):
    """Anything that runs one statement: a store, for what needs no transaction around it."""

    async def run(self, statement: str, values: Mapping[str, object]) -> list[Any]: ...


class LockingTransaction(SqlTransaction, Protocol):
    """A transaction that remembers what it has locked, and what was sent and not waited for."""

    locked: dict[Any, Any]  # Each account, with its balance after all that was judged in it.
    locking: list[tuple[Sequence[Any], Any]]
    looking: tuple[Sequence[Question], Any] | None

    def send(self, statement: str, values: Mapping[str, object]) -> Any:
        """Put a statement beside those that wait already, for its rows to be had later."""

    async def rows(self, sent: Any) -> list[Any]: ...


class Ledger:
    """Local: it answers inside the transaction that records its answers.

    Balances are those that the lock returned, which are the newest there are, and from then on
    ours: nobody else moves them, and in this transaction nobody but the ledger.
    """

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
        known = await self._look(tx, questions)
        asked = parts(questions)
        named = {account_of(q) for q in asked}
        strange, opening = frozenset[int](), None
        # Not there when they were to be locked, or not foreseen. What is opened is locked by a
        # statement of its own: another session may have been first.
        if unlocked := sorted(named - tx.locked.keys()):
            wanted = {account_of(q) for q in asked if may_open(q) and has_owner(q)}
            if missing := sorted(wanted - tx.locked.keys()):
                opening = tx.send(STATEMENTS["open"], _account_columns(missing))
            await self.lock(tx, unlocked, questions)
            known = await self._look(tx, questions)
            strange = frozenset(row[0] for row in await tx.rows(opening)) if opening else strange
            # Those of no asset were not opened.
            assert all(a in tx.locked or a.asset_id in strange for a in missing), "it was opened"
        if undoing := [q.transfer_id for q in questions if q.verb in UNDOES]:
            rows = await tx.fetch(STATEMENTS["look_undone"], {"ids": uuids(undoing)})
            known += [_operation(row) for row in rows]
        judgement = Judgement(tx.locked, known, strange)
        answers = [judgement.judge(question) for question in questions]
        if judgement.written:
            await tx.post(STATEMENTS["apply"], _operation_columns(judgement.written))
        return answers

    async def _look(self, tx: LockingTransaction, questions: Sequence[Question]) -> list[Operation]:
        """What is known of the questions' keys; what was locked meanwhile is at hand then."""
        foreseen, sent = tx.looking or ((), None)
        tx.looking = None
        rows = await tx.rows(sent if foreseen is questions else self._send_look(tx, questions))
        for accounts, locked in tx.locking:
            for place, *balance in await tx.rows(locked):
                tx.locked[accounts[place - 1]] = Balance(*balance)
        tx.locking.clear()
        return [_operation(row) for row in rows]

    def _send_look(self, tx: LockingTransaction, questions: Sequence[Question]) -> Any:
        values = {
            "ids": uuids([q.transfer_id for q in questions]),
            "versions": numbers([q.version for q in questions]),
        }
        return tx.send(STATEMENTS["look"], values)

    async def query(self, sql: Sql, questions: Sequence[Question]) -> Sequence[Answer | None]:
        """What is stored under each question's key; None where nothing is."""
        rows = await sql.run(
            STATEMENTS["look_undone"], {"ids": uuids(q.transfer_id for q in questions)}
        )
        stored = {(o.transfer_id, o.version, o.entry): o for o in map(_operation, rows)}
        answers: list[Answer | None] = []
        for key in ((q.transfer_id, q.version) for q in questions):
            operation = stored.get((*key, 0))
            fee = stored.get((*key, FEES_ENTRY))
            answers.append(None if operation is None else answer_of(operation, fee))
        return answers

    async def set_status(self, sql: Sql, account: Account, status: Status) -> bool:
        """False if there is no such account."""
        values = {"asset": account.asset_id, "status": str(status), **account._asdict()}
        return bool(await sql.run(STATEMENTS["set_status"], values))

    async def balances(self, sql: Sql, owner: int) -> Mapping[Account, Balance]:
        rows = await sql.run(STATEMENTS["balances"], {"owner": owner})
        return {Account(*row[:3]): Balance(*row[3:]) for row in rows}


def _account_columns(accounts: Sequence[Account]) -> dict[str, object]:
    owners, books, assets = zip(*accounts, strict=True) if accounts else ((), (), ())
    return {"owners": numbers(owners), "books": names(books), "assets": numbers(assets)}


def _operation_columns(operations: Sequence[Operation]) -> dict[str, object]:
    ids, versions, accounts, verbs, amounts, undoes, results, reasons, *more = zip(
        *operations, strict=True
    )
    deltas, held_deltas, balances, entries = more
    return {
        "ids": uuids(ids),
        "versions": numbers(versions),
        **_account_columns(accounts),
        "verbs": names(verbs),
        "amounts": numbers(amounts),
        "undoes": numbers(undoes),
        "results": names(results),
        "reasons": names(reasons),
        "deltas": numbers(deltas),
        "held_deltas": numbers(held_deltas),
        "balances": numbers(balances),
        "entries": sparse(entries),
    }


def _operation(row: Sequence[Any]) -> Operation:
    return Operation(row[0], row[1], Account(*row[2:5]), *row[5:])
