"""The ledger on PostgreSQL: three statements for a batch, whatever its size."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.flow import UNDOES
from tidegate.core.ports import SqlTransaction
from tidegate.core.sql import (
    Columns,
    amounts,
    bigints,
    encoded,
    integers,
    load,
    names,
    numbered,
    numbers,
    shared,
    uuids,
)
from tidegate.core.transfer import Question
from tidegate.systems.ledger.judge import (
    FEES_ENTRY,
    LedgerBalance,
    LedgerJudge,
    LedgerOperation,
    LedgerStatus,
    PlainMove,
    account_of,
    answer_of,
    balance_of,
    has_owner,
    may_open,
    operation_of,
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
        accounts = [account_of(q) for q in questions]
        asked = parts(questions)
        named = set(accounts)
        if len(asked) > len(questions):
            named.update(account_of(q) for q in asked)
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
        judgement = LedgerJudge(tx.locked, known, strange)
        answers = judgement.judge_all(questions, accounts)
        if judgement.written or judgement.moved:
            await tx.post(STATEMENTS["apply"], _operation_columns(judgement))
        return answers

    async def _look(
        self, tx: LockingTransaction, questions: Sequence[Question]
    ) -> list[LedgerOperation]:
        """What is known of the questions' keys; what was locked meanwhile is at hand then."""
        foreseen, sent = tx.looking or ((), None)
        tx.looking = None
        rows = await tx.rows(sent if foreseen is questions else self._send_look(tx, questions))
        for accounts, locked in tx.locking:
            for place, available, held, status in await tx.rows(locked):
                tx.locked[accounts[place - 1]] = balance_of((available, held, status))
        tx.locking.clear()
        return [_operation(row) for row in rows]

    def _send_look(self, tx: LockingTransaction, questions: Sequence[Question]) -> Any:
        values = {
            "ids": uuids([q.transfer_id for q in questions]),
            "versions": integers([q.version for q in questions]),
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

    async def set_status(self, sql: Sql, account: Account, status: LedgerStatus) -> bool:
        """False if there is no such account."""
        values = {"asset": account.asset_id, "status": str(status), **account._asdict()}
        return bool(await sql.run(STATEMENTS["set_status"], values))

    async def balances(self, sql: Sql, owner: int) -> Mapping[Account, LedgerBalance]:
        rows = await sql.run(STATEMENTS["balances"], {"owner": owner})
        return {Account(*row[:3]): LedgerBalance(*row[3:]) for row in rows}


def _account_columns(accounts: Sequence[Account]) -> Columns:
    """The books and assets of a batch are few: each account names its own by its place."""
    which, kinds = numbered([account[1:] for account in accounts])
    return {
        "owners": bigints([account.owner for account in accounts]),
        "kinds": integers(which),
        **shared(_book_columns, kinds),
    }


def _book_columns(kinds: Sequence[tuple[str, int]]) -> Columns:
    return encoded({"books": names(b for b, _ in kinds), "assets": numbers(a for _, a in kinds)})


class _SharedColumns(NamedTuple):
    """What many operations of a batch have in common."""

    version: int
    book: str
    asset_id: int
    verb: str
    undoes: int | None
    result: str
    reason: str
    sign: int  # Of the change of the available, which is the amount or nothing.
    held_sign: int
    entry: int


def _common(o: LedgerOperation) -> tuple[object, ...]:
    _, book, asset_id = o.account
    return (
        *(o.version, book, asset_id, o.verb, o.undoes, o.result, o.reason),
        *(_sign(o.delta, o.amount), _sign(o.held_delta, o.amount), o.entry),
    )


def _shapes(moved: Sequence[PlainMove]) -> list[tuple[object, ...]]:
    """What operations in the short form have in common. It is worked out once for each kind."""
    found: dict[tuple[object, ...], tuple[object, ...]] = {}
    shapes = []
    for each in moved:
        question, account, _ = each
        kind = question.verb, question.version, account.book, account.asset_id, question.undoes
        if (shape := found.get(kind)) is None:
            shape = found[kind] = _common(operation_of(each))
        shapes.append(shape)
    return shapes


def _sign(delta: int, amount: int) -> int:
    if delta == 0:
        return 0
    assert abs(delta) == amount, f"{delta} is no change by {amount}"
    return 1 if delta > 0 else -1


def _operation_columns(judgement: LedgerJudge) -> Columns:
    long, short = judgement.written, judgement.moved
    which, kinds = numbered([*map(_common, long), *_shapes(short)])
    small, large = amounts([o.amount for o in long] + [q.amount for q, _, _ in short])
    after = [o.balance_after for o in long] + [after for _, _, after in short]
    small_after, large_after = amounts(after)
    return {
        "ids": uuids([o.transfer_id for o in long] + [q.transfer_id for q, _, _ in short]),
        "kinds": integers(which),
        "owners": bigints([o.account.owner for o in long] + [a.owner for _, a, _ in short]),
        "amounts": small,
        "large_amounts": large,
        "balances": small_after,
        "large_balances": large_after,
        **shared(_common_columns, kinds),
    }


def _common_columns(kinds: Sequence[tuple[Any, ...]]) -> Columns:
    several = [_SharedColumns(*kind) for kind in kinds]
    columns = {
        "versions": numbers(k.version for k in several),
        "books": names(k.book for k in several),
        "assets": numbers(k.asset_id for k in several),
        "verbs": names(k.verb for k in several),
        "undoes": numbers(k.undoes for k in several),
        "results": names(k.result for k in several),
        "reasons": names(k.reason for k in several),
        "signs": numbers(k.sign for k in several),
        "held_signs": numbers(k.held_sign for k in several),
        "entries": numbers(k.entry for k in several),
    }
    return encoded(columns)


def _operation(row: Sequence[Any]) -> LedgerOperation:
    return LedgerOperation(row[0], row[1], Account(*row[2:5]), *row[5:])
