"""A store and local systems that record each operation: its arguments and its result."""

from collections.abc import AsyncIterator, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from tests.differential.side_session import SideSession
from tests.moves import steps_of
from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.kind import Transfer
from tidegate.core.moves import Moves
from tidegate.core.ports import (
    AfterLock,
    FlowChecksums,
    Halt,
    InboxRequest,
    KeyLookup,
    Listener,
    LocalSystem,
    Outage,
    RequestKey,
    Store,
    StoreFault,
    no_action,
)
from tidegate.core.refusals import Refusal
from tidegate.core.transfer import Move, Question
from tidegate.store.memory_store import CIDS
from tidegate.store.memory_tables import TRANSFERS
from tidegate.store.postgres import PostgresStore
from tidegate.store.transaction import PostgresTransaction
from tidegate.systems.guild import Allowance, Checks, MemoryAllowance, MemoryChecks, member_of
from tidegate.systems.guild.memory import THROTTLES
from tidegate.systems.ledger import Ledger, LedgerStatus, MemoryLedger
from tidegate.systems.ledger.judge import account_of
from tidegate.systems.ledger.memory import ACCOUNTS

Keys = Iterable[tuple[str, Hashable]]


class Outcome:
    result: object = None


@contextmanager
def operation(session: SideSession, name: str, about: object, wants: Keys = ()) -> Any:
    """Record how an operation ended. Of a fault only the type is recorded, because the messages of
    the two sides differ.
    """
    outcome = Outcome()
    session.wants = frozenset(wants)
    try:
        yield outcome
    except StoreFault as fault:
        outcome.result = type(fault).__name__
        raise
    finally:
        session.wants = frozenset()
        session.add_event(name, about, outcome.result)


def rows_of(transfers: Iterable[Transfer]) -> list[tuple[str, Hashable]]:
    return [(TRANSFERS, t.id) for t in transfers]


def accounts_of(accounts: Iterable[Account]) -> list[tuple[str, Hashable]]:
    return [(ACCOUNTS, a) for a in accounts]


def short(id_: UUID) -> str:
    return id_.hex[-6:]


def ids_and_versions(transfers: Iterable[Transfer]) -> str:
    return " ".join(f"{short(t.id)}@{t.version}" for t in transfers)


def summary(result: object) -> str:
    """A short form of a result, for the script of a run."""
    if isinstance(result, list) and result and isinstance(result[0], Transfer):
        return ids_and_versions(result)
    if isinstance(result, list):
        return " ".join(type(item).__name__ for item in result) or "nothing"
    return str(result)[:60]


def by_id(transfers: Iterable[Transfer]) -> list[Transfer]:
    """Sorted by id, because the database returns rows in any order."""
    return sorted(transfers, key=lambda t: t.id)


async def finish_sends(tx: Any) -> None:
    """Run the statements that were only queued, because the twin has run them already."""
    if isinstance(tx, PostgresTransaction):
        await tx._sync()


class RecordingStore:
    """The store of one session. It changes only the order of results that have no order."""

    def __init__(self, session: SideSession, inner: Store[Any]) -> None:
        self.session = session
        self.inbox = inner.inbox
        self.inner = inner
        self.lease_s = inner.lease_s

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        transaction = self.inner.transaction()
        try:
            with operation(self.session, "begin", "") as outcome:
                tx = await transaction.__aenter__()
                # The two sides have different transaction numbers.
                outcome.result = (await tx.begun())._replace(xid=None)
            yield tx
        except BaseException as fault:
            self.session.add_event("rollback", type(fault).__name__, None)
            await transaction.__aexit__(type(fault), fault, fault.__traceback__)
            raise
        with operation(self.session, "commit", ""):
            await transaction.__aexit__(None, None, None)

    async def due(self, lanes: Sequence[str], flows: FlowChecksums) -> Sequence[str]:
        with operation(self.session, "due", " ".join(lanes)) as outcome:
            outcome.result = due = list(await self.inner.due(lanes, flows))
        return due

    async def claim(self, lane: str, limit: int, flows: FlowChecksums) -> Sequence[Transfer]:
        with operation(self.session, "claim", f"{lane} {limit}") as outcome:
            outcome.result = claimed = by_id(await self.inner.claim(lane, limit, flows))
        return claimed

    async def askable(
        self, transfers: Sequence[Transfer], flows: FlowChecksums
    ) -> Sequence[Transfer]:
        with operation(self.session, "askable", ids_and_versions(transfers)) as outcome:
            outcome.result = askable = list(await self.inner.askable(transfers, flows))
        return askable

    async def lock(
        self, tx: Any, transfers: Sequence[Transfer], after_lock: AfterLock = no_action
    ) -> Sequence[Transfer]:
        with operation(
            self.session, "lock", ids_and_versions(transfers), rows_of(transfers)
        ) as outcome:
            outcome.result = locked = list(await self.inner.lock(tx, transfers))
        await after_lock()
        return locked

    async def reserve(self, tx: Any, keys: Sequence[RequestKey]) -> None:
        about = " ".join(f"{key.owner}/{key.text}" for key in keys)
        wants = [(CIDS, (key.owner, key.text)) for key in keys]
        with operation(self.session, "reserve", about, wants):
            await self.inner.reserve(tx, keys)
            await finish_sends(tx)

    async def write(self, tx: Any, moves: Moves, leased: Sequence[bool]) -> Sequence[Transfer]:
        pairs = list(zip(moves.transfers, steps_of(moves), strict=True))
        about = " ".join(f"{short(t.id)}@{s.start}→{s.after.state}" for t, s in pairs)
        wants = rows_of(() if moves.created else moves.transfers)
        with operation(self.session, "write", about, wants) as outcome:
            outcome.result = rows = list(await self.inner.write(tx, moves, leased))
            await finish_sends(tx)
        return rows

    async def look(self, keys: Sequence[tuple[int, str]]) -> KeyLookup:
        with operation(self.session, "look", keys) as outcome:
            look = await self.inner.look(keys)
            outcome.result = (look.at_us, list(look.known))
        return look

    async def aborted(self, xids: Sequence[str | None]) -> bool:
        with operation(self.session, "aborted", len(xids)) as outcome:
            outcome.result = aborted = await self.inner.aborted(xids)
        return aborted

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        with operation(self.session, "find", " ".join(map(short, ids))) as outcome:
            outcome.result = found = by_id(await self.inner.find(ids))
        return found

    async def ended(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        with operation(self.session, "ended", " ".join(map(short, ids))) as outcome:
            outcome.result = found = by_id(await self.inner.ended(ids))
        return found

    async def release(self, transfers: Sequence[Transfer]) -> None:
        with operation(self.session, "release", ids_and_versions(transfers), rows_of(transfers)):
            await self.inner.release(transfers)

    async def note_outage(self, lane: str, worker: str, attempts: int, reason: str) -> None:
        with operation(self.session, "note outage", f"{lane} {attempts} {reason}"):
            await self.inner.note_outage(lane, worker, attempts, reason)

    async def end_outage(self, lane: str, worker: str) -> None:
        with operation(self.session, "end outage", lane):
            await self.inner.end_outage(lane, worker)

    async def outages(self) -> Sequence[Outage]:
        with operation(self.session, "outages", "") as outcome:
            outcome.result = found = list(await self.inner.outages())
        return found

    async def mend_clock(self, beyond_s: float | None, limit: int) -> tuple[float, int]:
        with operation(self.session, "mend clock", beyond_s) as outcome:
            outcome.result = mended = await self.inner.mend_clock(beyond_s, limit)
        return mended

    async def halted(self) -> bool:
        with operation(self.session, "halted", "") as outcome:
            outcome.result = halted = await self.inner.halted()
        return halted

    async def halt(self, reason: str, actor: str) -> int:
        with operation(self.session, "halt", reason):
            return await self.inner.halt(reason, actor)

    async def halts(self) -> Sequence[Halt]:
        with operation(self.session, "halts", "") as outcome:
            found = list(await self.inner.halts())
            outcome.result = [(halt.reason, halt.actor) for halt in found]
        return found

    async def resume(
        self, reason: str, actor: str, ids: Sequence[int] | None = None
    ) -> Sequence[Halt]:
        with operation(self.session, "resume", reason) as outcome:
            ended = await self.inner.resume(reason, actor, ids)
            outcome.result = [(halt.reason, halt.actor) for halt in ended]
        return ended


class LedgerWithStatus(LocalSystem[Any], Protocol):
    """A ledger whose accounts an operator can freeze and disable."""

    async def set_status(self, account: Account, status: LedgerStatus) -> bool: ...


class RealLedger(Ledger):
    def __init__(self, store: PostgresStore) -> None:
        super().__init__()
        self.store = store

    async def set_status(self, account: Account, status: LedgerStatus) -> bool:  # type: ignore[override]
        return await super().set_status(self.store, account, status)


class TwinLedger(MemoryLedger):
    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store

    async def set_status(self, account: Account, status: LedgerStatus) -> bool:
        """Like one UPDATE: it waits for the lock of the row, if the row exists."""
        await self.store.pause()
        tx = self.store._begin()
        try:
            if tx.get(ACCOUNTS, account) is None:
                return False
            await tx.hold(ACCOUNTS, [account])
            tx.put(ACCOUNTS, account, tx.get(ACCOUNTS, account)._replace(status=status))
            tx.commit()
        finally:
            tx.end()
        return True


class ListeningSystem(LocalSystem[Any], Listener[Any], Protocol):
    """A local system that keeps its own record of moves."""


class RecordingGuild:
    """A local system of the guild: its allowance, or its checks."""

    reversible = True

    def __init__(self, session: SideSession, inner: ListeningSystem) -> None:
        self.session, self.inner, self.name = session, inner, inner.name

    async def lock(
        self, tx: Any, accounts: Sequence[Account], next_: Sequence[Question] = ()
    ) -> None:
        wants = [(THROTTLES, (a.owner, member_of(a.book))) for a in accounts]
        with operation(self.session, f"lock {self.name}", wants, wants):
            await self.inner.lock(tx, accounts, next_)
            await finish_sends(tx)

    async def ask(self, tx: Any, questions: Sequence[Question]) -> Sequence[Answer]:
        about = " ".join(f"{short(q.transfer_id)}@{q.version} {q.amount}" for q in questions)
        with operation(self.session, f"ask {self.name}", about) as outcome:
            outcome.result = answers = list(await self.inner.ask(tx, questions))
            await finish_sends(tx)
        return answers

    async def refused(self, tx: Any, requests: Sequence[tuple[InboxRequest, Refusal]]) -> None:
        with operation(self.session, f"refuse {self.name}", len(requests)):
            await self.inner.refused(tx, requests)
            await finish_sends(tx)

    async def moved(self, tx: Any, moves: Sequence[Move]) -> None:
        about = " ".join(f"{short(m.after.id)} {m.after.state}" for m in moves)
        with operation(self.session, f"moved {self.name}", about):
            await self.inner.moved(tx, moves)
            await finish_sends(tx)


class RecordingLedger:
    name = "ledger"
    reversible = True

    def __init__(self, session: SideSession, inner: LedgerWithStatus) -> None:
        self.session = session
        self.inner = inner

    async def lock(
        self,
        tx: Any,
        accounts: Sequence[Account],
        next_: Sequence[Question] = (),
    ) -> None:
        about = " ".join(f"{a.owner}/{a.book}" for a in accounts)
        with operation(self.session, "lock accounts", about, accounts_of(accounts)):
            # Without the next questions, so that it reads operations when asked, as the twin does.
            await self.inner.lock(tx, accounts)
            await finish_sends(tx)

    async def ask(self, tx: Any, questions: Sequence[Question]) -> Sequence[Answer]:
        about = " ".join(
            f"{short(q.transfer_id)}@{q.version} {q.verb} {q.party.owner}/{q.party.book} {q.amount}"
            for q in questions
        )
        wants = accounts_of(map(account_of, questions))
        with operation(self.session, "ask", about, wants) as outcome:
            outcome.result = answers = list(await self.inner.ask(tx, questions))
            await finish_sends(tx)
        return answers

    async def set_status(self, account: Account, status: LedgerStatus) -> bool:
        about = f"{account.owner}/{account.book} {status}"
        with operation(self.session, "set status", about, accounts_of([account])) as outcome:
            outcome.result = exists = await self.inner.set_status(account, status)
        return exists


class Local(NamedTuple):
    """The local systems of a session."""

    ledger: RecordingLedger
    rules: tuple[RecordingGuild, ...]


def on_the_twin(session: SideSession, store: Any) -> Local:
    rules = RecordingGuild(session, MemoryAllowance()), RecordingGuild(session, MemoryChecks())
    return Local(RecordingLedger(session, TwinLedger(store)), rules)


def on_postgres(session: SideSession, store: PostgresStore) -> Local:
    rules = RecordingGuild(session, Allowance()), RecordingGuild(session, Checks())
    return Local(RecordingLedger(session, RealLedger(store)), rules)
