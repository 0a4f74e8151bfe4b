"""A store and a ledger that tell of each operation: what it was about and what came of it."""

from collections.abc import AsyncIterator, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from tests.differential.one_side import Seat
from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.kind import Transfer
from tidegate.core.moves import Moves
from tidegate.core.ports import (
    Behind,
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
    nothing,
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
def operation(seat: Seat, name: str, about: object, wants: Keys = ()) -> Any:
    """Tell how it ended. What a fault says is each side's own; of what kind it is, is not."""
    outcome = Outcome()
    seat.wants = frozenset(wants)
    try:
        yield outcome
    except StoreFault as fault:
        outcome.result = type(fault).__name__
        raise
    finally:
        seat.wants = frozenset()
        seat.tell(name, about, outcome.result)


def rows_of(transfers: Iterable[Transfer]) -> list[tuple[str, Hashable]]:
    return [(TRANSFERS, t.id) for t in transfers]


def accounts_of(accounts: Iterable[Account]) -> list[tuple[str, Hashable]]:
    return [(ACCOUNTS, a) for a in accounts]


def short(id_: UUID) -> str:
    return id_.hex[-6:]


def brief(transfers: Iterable[Transfer]) -> str:
    return " ".join(f"{short(t.id)}@{t.version}" for t in transfers)


def shown(result: object) -> str:
    """In a few words, for a script that somebody has to read."""
    if isinstance(result, list) and result and isinstance(result[0], Transfer):
        return brief(result)
    if isinstance(result, list):
        return " ".join(type(each).__name__ for each in result) or "nothing"
    return str(result)[:60]


def by_id(transfers: Iterable[Transfer]) -> list[Transfer]:
    """In one order, because the database gives them in any."""
    return sorted(transfers, key=lambda t: t.id)


async def done(tx: Any) -> None:
    """What was only sent is done now, because the twin has done it."""
    if isinstance(tx, PostgresTransaction):
        await tx._sync()


class TellingStore:
    """The store of one session. It changes nothing but the order of what has none."""

    def __init__(self, seat: Seat, inner: Store[Any]) -> None:
        self.seat = seat
        self.inbox = inner.inbox
        self.inner = inner
        self.lease_s = inner.lease_s

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        whole = self.inner.transaction()
        try:
            with operation(self.seat, "begin", "") as told:
                tx = await whole.__aenter__()
                # Each side numbers its transactions by itself.
                told.result = (await tx.begun())._replace(xid=None)
            yield tx
        except BaseException as fault:
            self.seat.tell("rollback", type(fault).__name__, None)
            await whole.__aexit__(type(fault), fault, fault.__traceback__)
            raise
        with operation(self.seat, "commit", ""):
            await whole.__aexit__(None, None, None)

    async def due(self, lanes: Sequence[str], flows: FlowChecksums) -> Sequence[str]:
        with operation(self.seat, "due", " ".join(lanes)) as told:
            told.result = due = list(await self.inner.due(lanes, flows))
        return due

    async def claim(self, lane: str, limit: int, flows: FlowChecksums) -> Sequence[Transfer]:
        with operation(self.seat, "claim", f"{lane} {limit}") as told:
            told.result = claimed = by_id(await self.inner.claim(lane, limit, flows))
        return claimed

    async def askable(
        self, transfers: Sequence[Transfer], flows: FlowChecksums
    ) -> Sequence[Transfer]:
        with operation(self.seat, "askable", brief(transfers)) as told:
            told.result = asked = list(await self.inner.askable(transfers, flows))
        return asked

    async def lock(
        self, tx: Any, transfers: Sequence[Transfer], behind: Behind = nothing
    ) -> Sequence[Transfer]:
        with operation(self.seat, "lock", brief(transfers), rows_of(transfers)) as told:
            told.result = fresh = list(await self.inner.lock(tx, transfers))
        await behind()
        return fresh

    async def reserve(self, tx: Any, keys: Sequence[RequestKey]) -> None:
        about = " ".join(f"{key.owner}/{key.text}" for key in keys)
        wants = [(CIDS, (key.owner, key.text)) for key in keys]
        with operation(self.seat, "reserve", about, wants):
            await self.inner.reserve(tx, keys)
            await done(tx)

    async def write(self, tx: Any, moves: Moves, leased: Sequence[bool]) -> Sequence[Transfer]:
        pairs = list(zip(moves.transfers, moves.steps, strict=True))
        about = " ".join(f"{short(t.id)}@{s.start}→{s.after.state}" for t, s in pairs)
        wants = rows_of(() if moves.created else moves.transfers)
        with operation(self.seat, "write", about, wants) as told:
            told.result = rows = list(await self.inner.write(tx, moves, leased))
            await done(tx)
        return rows

    async def look(self, keys: Sequence[tuple[int, str]]) -> KeyLookup:
        with operation(self.seat, "look", keys) as told:
            look = await self.inner.look(keys)
            told.result = (look.at_us, list(look.known))
        return look

    async def aborted(self, xids: Sequence[str | None]) -> bool:
        with operation(self.seat, "aborted", len(xids)) as told:
            told.result = aborted = await self.inner.aborted(xids)
        return aborted

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        with operation(self.seat, "find", " ".join(map(short, ids))) as told:
            told.result = found = by_id(await self.inner.find(ids))
        return found

    async def ended(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        with operation(self.seat, "ended", " ".join(map(short, ids))) as told:
            told.result = found = by_id(await self.inner.ended(ids))
        return found

    async def release(self, transfers: Sequence[Transfer]) -> None:
        with operation(self.seat, "release", brief(transfers), rows_of(transfers)):
            await self.inner.release(transfers)

    async def note_outage(self, lane: str, worker: str, attempts: int, reason: str) -> None:
        with operation(self.seat, "note outage", f"{lane} {attempts} {reason}"):
            await self.inner.note_outage(lane, worker, attempts, reason)

    async def end_outage(self, lane: str, worker: str) -> None:
        with operation(self.seat, "end outage", lane):
            await self.inner.end_outage(lane, worker)

    async def outages(self) -> Sequence[Outage]:
        with operation(self.seat, "outages", "") as told:
            told.result = found = list(await self.inner.outages())
        return found

    async def mend_clock(self, beyond_s: float | None, limit: int) -> tuple[float, int]:
        with operation(self.seat, "mend clock", beyond_s) as told:
            told.result = mended = await self.inner.mend_clock(beyond_s, limit)
        return mended

    async def halted(self) -> bool:
        with operation(self.seat, "halted", "") as told:
            told.result = halted = await self.inner.halted()
        return halted

    async def halt(self, reason: str, actor: str) -> int:
        with operation(self.seat, "halt", reason):
            return await self.inner.halt(reason, actor)

    async def halts(self) -> Sequence[Halt]:
        with operation(self.seat, "halts", "") as told:
            found = list(await self.inner.halts())
            told.result = [(halt.reason, halt.actor) for halt in found]
        return found

    async def resume(
        self, reason: str, actor: str, ids: Sequence[int] | None = None
    ) -> Sequence[Halt]:
        with operation(self.seat, "resume", reason) as told:
            ended = await self.inner.resume(reason, actor, ids)
            told.result = [(halt.reason, halt.actor) for halt in ended]
        return ended


class Operated(LocalSystem[Any], Protocol):
    """A ledger with the operator's word on it."""

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
        """One UPDATE: it waits for the row, if it is there."""
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


class Listening(LocalSystem[Any], Listener[Any], Protocol):
    """A system that keeps a record of its own."""


class TellingRules:
    """The guild's: its allowance, or its checks."""

    reversible = True

    def __init__(self, seat: Seat, inner: Listening) -> None:
        self.seat, self.inner, self.name = seat, inner, inner.name

    async def lock(
        self, tx: Any, accounts: Sequence[Account], next_: Sequence[Question] = ()
    ) -> None:
        wants = [(THROTTLES, (a.owner, member_of(a.book))) for a in accounts]
        with operation(self.seat, f"lock {self.name}", wants, wants):
            await self.inner.lock(tx, accounts, next_)
            await done(tx)

    async def ask(self, tx: Any, questions: Sequence[Question]) -> Sequence[Answer]:
        about = " ".join(f"{short(q.transfer_id)}@{q.version} {q.amount}" for q in questions)
        with operation(self.seat, f"ask {self.name}", about) as told:
            told.result = answers = list(await self.inner.ask(tx, questions))
            await done(tx)
        return answers

    async def refused(self, tx: Any, requests: Sequence[tuple[InboxRequest, Refusal]]) -> None:
        with operation(self.seat, f"refuse {self.name}", len(requests)):
            await self.inner.refused(tx, requests)
            await done(tx)

    async def moved(self, tx: Any, moves: Sequence[Move]) -> None:
        about = " ".join(f"{short(m.after.id)} {m.after.state}" for m in moves)
        with operation(self.seat, f"tell {self.name}", about):
            await self.inner.moved(tx, moves)
            await done(tx)


class TellingLedger:
    name = "ledger"
    reversible = True

    def __init__(self, seat: Seat, inner: Operated) -> None:
        self.seat = seat
        self.inner = inner

    async def lock(
        self,
        tx: Any,
        accounts: Sequence[Account],
        next_: Sequence[Question] = (),
    ) -> None:
        about = " ".join(f"{a.owner}/{a.book}" for a in accounts)
        with operation(self.seat, "lock accounts", about, accounts_of(accounts)):
            await self.inner.lock(tx, accounts)  # It looks when it is asked, as the twin does.
            await done(tx)

    async def ask(self, tx: Any, questions: Sequence[Question]) -> Sequence[Answer]:
        about = " ".join(
            f"{short(q.transfer_id)}@{q.version} {q.verb} {q.party.owner}/{q.party.book} {q.amount}"
            for q in questions
        )
        wants = accounts_of(map(account_of, questions))
        with operation(self.seat, "ask", about, wants) as told:
            told.result = answers = list(await self.inner.ask(tx, questions))
            await done(tx)
        return answers

    async def set_status(self, account: Account, status: LedgerStatus) -> bool:
        about = f"{account.owner}/{account.book} {status}"
        with operation(self.seat, "set status", about, accounts_of([account])) as told:
            told.result = there = await self.inner.set_status(account, status)
        return there


class Local(NamedTuple):
    """The systems in the database, as a session has them."""

    ledger: TellingLedger
    rules: tuple[TellingRules, ...]


def on_the_twin(seat: Seat, store: Any) -> Local:
    rules = TellingRules(seat, MemoryAllowance()), TellingRules(seat, MemoryChecks())
    return Local(TellingLedger(seat, TwinLedger(store)), rules)


def on_postgres(seat: Seat, store: PostgresStore) -> Local:
    rules = TellingRules(seat, Allowance()), TellingRules(seat, Checks())
    return Local(TellingLedger(seat, RealLedger(store)), rules)
