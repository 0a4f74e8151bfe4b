"""The ledger on PostgreSQL: three statements for a batch of any size."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.flow import UNDO_VERBS
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
    """An object that runs one statement by itself, without a transaction around it."""

    async def run(self, statement: str, values: Mapping[str, object]) -> list[Any]: ...


class LockingTransaction(SqlTransaction, Protocol):
    """A transaction that records its account locks, and the statements without a read result."""

    locked: dict[Any, Any]  # Locked accounts, with their balances after the operations judged.
    locking: list[tuple[Sequence[Any], Any]]  # Lock statements that were sent.
    looking: tuple[Sequence[Question], Any] | None  # The look statement that was sent.

    def send(self, statement: str, values: Mapping[str, object]) -> Any:
        """Queue a statement without waiting. `rows` returns its result later."""

    async def rows(self, sent: Any) -> list[Any]: ...


class Ledger:
    """A local system: it answers inside the transaction that records its answers.

    It reads balances only from its locks, which return the newest ones. Until the transaction ends,
    no other session can change a locked balance, and only the ledger changes it in this one.
    """

    reversible = True

    def __init__(self, name: str = "ledger") -> None:
        self.name = name

    async def lock(
        self, tx: LockingTransaction, accounts: Sequence[Account], next_: Sequence[Question] = ()
    ) -> None:
        """Send the lock without waiting; `ask` waits for it together with the look.

        The look is a later statement, so its snapshot is taken after the accounts were locked.
        """
        tx.locking.append((accounts, tx.send(STATEMENTS["lock"], _account_columns(accounts))))
        if next_:
            tx.looking = next_, self._send_look(tx, next_)

    async def ask(self, tx: LockingTransaction, questions: Sequence[Question]) -> Sequence[Answer]:
        known = await self._look(tx, questions)
        accounts = [account_of(q) for q in questions]
        entries = parts(questions)
        needed = set(accounts)
        if len(entries) > len(questions):
            needed.update(account_of(q) for q in entries)
        unknown_assets, opening = frozenset[int](), None
        # These accounts did not exist when the batch was locked, or the batch did not name them.
        # Accounts are locked again after they were opened: another session may have opened them.
        if unlocked := sorted(needed - tx.locked.keys()):
            openable = {account_of(q) for q in entries if may_open(q) and has_owner(q)}
            if missing := sorted(openable - tx.locked.keys()):
                opening = tx.send(STATEMENTS["open"], _account_columns(missing))
            await self.lock(tx, unlocked, questions)
            known = await self._look(tx, questions)
            if opening:
                unknown_assets = frozenset(row[0] for row in await tx.rows(opening))
            opened = (a for a in missing if a.asset_id not in unknown_assets)
            assert all(account in tx.locked for account in opened), "opened accounts are locked"
        if undoing := [q.transfer_id for q in questions if q.verb in UNDO_VERBS]:
            rows = await tx.fetch(STATEMENTS["look_undone"], {"ids": uuids(undoing)})
            known += [_operation(row) for row in rows]
        judgement = LedgerJudge(tx.locked, known, unknown_assets)
        answers = judgement.judge_all(questions, accounts)
        if judgement.written or judgement.plain_moves:
            await tx.post(STATEMENTS["apply"], _operation_columns(judgement))
        return answers

    async def _look(
        self, tx: LockingTransaction, questions: Sequence[Question]
    ) -> list[LedgerOperation]:
        """The stored operations of the questions' keys. The pending locks are read, too."""
        expected, sent = tx.looking or ((), None)
        tx.looking = None
        rows = await tx.rows(sent if expected is questions else self._send_look(tx, questions))
        for accounts, locked in tx.locking:
            for ordinal, available, held, status in await tx.rows(locked):
                tx.locked[accounts[ordinal - 1]] = balance_of((available, held, status))
        tx.locking.clear()
        return [_operation(row) for row in rows]

    def _send_look(self, tx: LockingTransaction, questions: Sequence[Question]) -> Any:
        values = {
            "ids": uuids([q.transfer_id for q in questions]),
            "versions": integers([q.version for q in questions]),
        }
        return tx.send(STATEMENTS["look"], values)

    async def query(self, sql: Sql, questions: Sequence[Question]) -> Sequence[Answer | None]:
        """The answer stored under each question's key, or None."""
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
        """Return False if the account does not exist."""
        values = {"asset": account.asset_id, "status": str(status), **account._asdict()}
        return bool(await sql.run(STATEMENTS["set_status"], values))

    async def balances(self, sql: Sql, owner: int) -> Mapping[Account, LedgerBalance]:
        rows = await sql.run(STATEMENTS["balances"], {"owner": owner})
        return {Account(*row[:3]): LedgerBalance(*row[3:]) for row in rows}


def _account_columns(accounts: Sequence[Account]) -> Columns:
    """Columns of accounts. A batch has few pairs of book and asset: rows refer to them by index."""
    indexes, kinds = numbered([account[1:] for account in accounts])
    return {
        "owners": bigints([account.owner for account in accounts]),
        "kinds": integers(indexes),
        **shared(_book_columns, kinds),
    }


def _book_columns(kinds: Sequence[tuple[str, int]]) -> Columns:
    return encoded({"books": names(b for b, _ in kinds), "assets": numbers(a for _, a in kinds)})


class _SharedColumns(NamedTuple):
    """The values that many operations of a batch share."""

    version: int
    book: str
    asset_id: int
    verb: str
    undoes: int | None
    result: str
    reason: str
    sign: int  # The change of the available balance is the amount times this sign.
    held_sign: int  # The same for the held balance.
    entry: int


def _common(o: LedgerOperation) -> tuple[object, ...]:
    _, book, asset_id = o.account
    return (
        *(o.version, book, asset_id, o.verb, o.undoes, o.result, o.reason),
        *(_sign(o.delta, o.amount), _sign(o.held_delta, o.amount), o.entry),
    )


def _common_of_moves(moves: Sequence[PlainMove]) -> list[tuple[object, ...]]:
    """The shared values of each plain move, computed once per kind."""
    by_kind: dict[tuple[object, ...], tuple[object, ...]] = {}
    common = []
    for move in moves:
        question, account, _ = move
        kind = question.verb, question.version, account.book, account.asset_id, question.undoes
        if (values := by_kind.get(kind)) is None:
            values = by_kind[kind] = _common(operation_of(move))
        common.append(values)
    return common


def _sign(delta: int, amount: int) -> int:
    if delta == 0:
        return 0
    assert abs(delta) == amount, f"{delta} is not a change by {amount}"
    return 1 if delta > 0 else -1


def _operation_columns(judgement: LedgerJudge) -> Columns:
    operations, moves = judgement.written, judgement.plain_moves
    indexes, kinds = numbered([*map(_common, operations), *_common_of_moves(moves)])
    small, large = amounts([o.amount for o in operations] + [q.amount for q, _, _ in moves])
    balances = [o.balance_after for o in operations] + [after for _, _, after in moves]
    small_balances, large_balances = amounts(balances)
    return {
        "ids": uuids([o.transfer_id for o in operations] + [q.transfer_id for q, _, _ in moves]),
        "kinds": integers(indexes),
        "owners": bigints([o.account.owner for o in operations] + [a.owner for _, a, _ in moves]),
        "amounts": small,
        "large_amounts": large,
        "balances": small_balances,
        "large_balances": large_balances,
        **shared(_common_columns, kinds),
    }


def _common_columns(kinds: Sequence[tuple[Any, ...]]) -> Columns:
    shared_columns = [_SharedColumns(*kind) for kind in kinds]
    columns = {
        "versions": numbers(k.version for k in shared_columns),
        "books": names(k.book for k in shared_columns),
        "assets": numbers(k.asset_id for k in shared_columns),
        "verbs": names(k.verb for k in shared_columns),
        "undoes": numbers(k.undoes for k in shared_columns),
        "results": names(k.result for k in shared_columns),
        "reasons": names(k.reason for k in shared_columns),
        "signs": numbers(k.sign for k in shared_columns),
        "held_signs": numbers(k.held_sign for k in shared_columns),
        "entries": numbers(k.entry for k in shared_columns),
    }
    return encoded(columns)


def _operation(row: Sequence[Any]) -> LedgerOperation:
    return LedgerOperation(row[0], row[1], Account(*row[2:5]), *row[5:])
