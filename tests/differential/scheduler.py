"""The scheduler: it runs one statement of one session on both sides, and compares the results."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from tests.conftest import SCHEMA
from tests.differential.acts import ASSET, MEMBERS, RULES, SAVINGS, ActRunner, SeedTraits
from tests.differential.recording import Local, RecordingStore, on_postgres, on_the_twin, summary
from tests.differential.side_session import (
    CLOCK,
    CURRENT,
    LEASE_S,
    PATHS,
    Clock,
    Fate,
    ScheduledStore,
    SideSession,
    postgres,
)
from tests.differential.table_contents import (
    EMPTY,
    broken_chains,
    difference,
    read_postgres,
    read_twin,
)
from tidegate.core.account import Account
from tidegate.engine import write_batch
from tidegate.store.memory_tables import TRANSFERS
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import WholeNumber
from tidegate.systems.guild import POINT, book_of
from tidegate.systems.guild.memory import SETTINGS
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, LedgerStatus
from tidegate.systems.ledger.judge import LedgerBalance
from tidegate.systems.ledger.memory import ACCOUNTS

SESSIONS, ACTS = 4, 14
TICK_US = 1_000
PATIENCE_S = 10.0
POLL_S = 0.001
POLLS = int(PATIENCE_S / POLL_S)
SPINS = 50
CHECK_S = 0.2
BLOCKED_CHECKS = 3  # A session that is seen blocked so often in a row is really blocked.
# Operations after which other sessions may see new rows.
PUBLISHING = frozenset({"commit", "claim", "release", "halt", "resume", "set status"})
# Events of a session that are not operations.
NOT_OPERATIONS = frozenset({"alert", "ended", "created", "gave up", "rollback", "crashed"})

BLOCKED = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
KILL = "SELECT pg_terminate_backend(%s)"
ALIVE = "SELECT FROM pg_stat_activity WHERE pid = %s"
BALANCES = {
    (FUNDING, ASSET): 500,
    (SAVINGS, ASSET): 300,
    (OUTSIDE, ASSET): -800,
    (SUSPENSE, ASSET): 0,
}
BALANCES |= {(book_of(member), POINT): 300 * member for member in MEMBERS}
INSERT_RULES = "INSERT INTO economy.guild_settings VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
INSERT_ACCOUNT = (
    "INSERT INTO ledger_accounts (owner, book, asset_id, available, status)"
    " VALUES (%s, %s, %s, %s, %s)"
)
SHIFT_DUE = (
    "UPDATE transfers AS t SET due_at = due_at + k.later * interval '1 us'"
    " FROM unnest(%s::uuid[], %s::bigint[]) AS k (id, later) WHERE t.id = k.id"
)


@dataclass
class Counts:
    """Numbers of what was run on both sides and compared."""

    seeds: int = 0
    operations: int = 0
    statements: int = 0
    comparisons: int = 0  # Comparisons of all tables.
    parked: int = 0  # How often a session had to wait for a row.
    killed: int = 0
    replies_lost: int = 0
    deadlocks: int = 0
    by_operation: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)  # Ended transfers, by flow and state.

    def add(self, other: "Counts") -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


Act = tuple[int, int]  # The numbers of a session and of its act.
SessionKey = tuple[SeedTraits, int]
ALL = tuple(itertools.product(range(SESSIONS), range(ACTS)))


class SeedActs(NamedTuple):
    """A seed, and the acts of it that are run."""

    seed: int
    acts: tuple[Act, ...] = ALL

    def __str__(self) -> str:
        return f"seed {self.seed}, {len(self.acts)} of {len(ALL)} acts"

    def shorter(self, size: int) -> "Iterator[SeedActs]":
        """All selections that leave out this many acts in a row."""
        for start in range(0, len(self.acts), size):
            yield self._replace(acts=self.acts[:start] + self.acts[start + size :])


class Difference(AssertionError):
    """The two sides do not agree."""

    def __init__(self, selection: SeedActs, message: str) -> None:
        super().__init__(message)
        self.selection = selection


class SessionPair:
    """One session, on both sides."""

    def __init__(self, number: int, clock: Clock) -> None:
        self.number = number
        self.twin = SideSession(f"twin {number}", clock)
        self.real = SideSession(f"postgresql {number}", clock)
        self.parked = False

    @property
    def finished(self) -> bool:
        return self.twin.finished and self.real.finished


class SeedRun:
    """The run of one seed."""

    def __init__(self, sides: "Sides", selection: "SeedActs") -> None:
        self.sides, self.selection, self.seed = sides, selection, selection.seed
        self.admin = sides.admin
        self.dice = random.Random(f"stage {self.seed}")
        self.clock = Clock()
        self.store = ScheduledStore(self.clock)
        self.pairs = [SessionPair(number, self.clock) for number in range(SESSIONS)]
        self.counts = Counts(seeds=1)
        self.script: list[str] = []
        self.published = False  # Whether new rows may be visible in the tables.
        self.tasks: list[asyncio.Task[None]] = []

    async def run(self) -> Counts:
        traits = SeedTraits.of_seed(self.seed)
        await self._create_accounts(traits)
        for pair in self.pairs:
            identity, real = (traits, pair.number), self.sides.store
            self._start(pair.twin, self.store, on_the_twin(pair.twin, self.store), identity)
            self._start(pair.real, real, on_postgres(pair.real, real), identity)
        try:
            await self._schedule()
        finally:
            await self._stop_tasks()
        for task in self.tasks:
            await task
        return self.counts

    async def _stop_tasks(self) -> None:
        # Repeated, because a task may miss a cancellation at the moment when its wait ends.
        while pending := [task for task in self.tasks if not task.done()]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=CHECK_S)
        for task in self.tasks:
            if not task.cancelled():
                task.exception()  # Mark it as retrieved. The event "crashed" has recorded it.

    async def _create_accounts(self, traits: SeedTraits) -> None:
        """Create some accounts; some of them are frozen or disabled."""
        await self.admin.execute(EMPTY)
        for guild, rules in RULES.items():
            self.store.tables.rows[SETTINGS][guild] = rules
        accounts = self.store.tables.rows[ACCOUNTS]
        for owner, (account, available) in itertools.product(traits.owners, BALANCES.items()):
            if self.dice.random() < 0.6:
                status = self.dice.choice(
                    (*[LedgerStatus.ACTIVE] * 5, LedgerStatus.FROZEN, LedgerStatus.DISABLED)
                )
                accounts[Account(owner, *account)] = LedgerBalance(available, 0, status)
                await self.admin.execute(INSERT_ACCOUNT, (owner, *account, available, status))

    def _start(self, session: SideSession, store: Any, local: Local, key: SessionKey) -> None:
        async def run_session() -> None:
            CURRENT.set(session)
            try:
                runner = ActRunner(RecordingStore(session, store), local, *key)
                await runner.run(act for n, act in self.selection.acts if n == key[1])
            except Exception as fault:
                session.add_event("crashed", repr(fault), None)
                raise
            finally:
                session.finish()

        self.tasks.append(asyncio.ensure_future(run_session()))

    async def _schedule(self) -> None:
        for pair in self.pairs:
            await self._settle(pair)
        while not all(pair.finished for pair in self.pairs):
            self.clock.now_us += TICK_US
            if self.dice.random() < 0.01:
                self.clock.now_us += int(self.dice.choice((1.0, LEASE_S, 70.0)) * 1_000_000)
            ready = [pair for pair in self.pairs if self._ready(pair)]
            if not ready:
                self.counts.deadlocks += 1
                await self._kill(self.dice.choice(self._in_transaction()))
            elif (chance := self.dice.random()) < 0.015 and (open_ := self._in_transaction()):
                await self._kill(self.dice.choice(open_))
            else:
                await self._step(self.dice.choice(ready), lost=chance > 0.9)
            for pair in self.pairs:
                if pair.parked:
                    await self._settle(pair)
            if self.published:
                await self._compare_tables()
        await self._compare_tables()

    def _ready(self, pair: SessionPair) -> bool:
        """Two sessions never wait for the same row: which one PostgreSQL serves is undefined."""
        if pair.parked or pair.finished:
            return False
        holders, own = self.store.tables.holders, pair.twin.open_tx
        if all(holders.get(key, own) is own for key in pair.twin.wants):
            return True
        return not any(other.parked and pair.twin.wants & other.twin.wants for other in self.pairs)

    def _in_transaction(self) -> list[SessionPair]:
        return [pair for pair in self.pairs if pair.twin.open_tx is not None]

    async def _step(self, pair: SessionPair, *, lost: bool) -> None:
        statement = pair.real.next
        fate = Fate.REPLY_LOST if lost and statement == "COMMIT" else Fate.DONE
        if statement == "claim":
            await self._separate_due_times()
        self.script.append(f"{pair.number}: {statement}{' (reply lost)' * (fate is not Fate.DONE)}")
        self.counts.statements += 1
        self.counts.replies_lost += fate is Fate.REPLY_LOST
        pair.twin.take_turn(fate)
        pair.real.take_turn(fate)
        await self._settle(pair)

    async def _separate_due_times(self) -> None:
        """Give all rows different due times: of rows due at the same time, a claim may take any."""
        rows = self.store.tables.rows[TRANSFERS]
        free = [id_ for id_ in rows if (TRANSFERS, id_) not in self.store.tables.holders]
        taken: set[float] = {row.due_s for id_, row in rows.items() if id_ not in free}
        later: dict[UUID, int] = {}
        for id_ in sorted(free):  # type: ignore[type-var]
            row, shift = rows[id_], 0
            while (due_s := (round(row.due_s * 1_000_000) + shift) / 1_000_000) in taken:
                shift += 1
            taken.add(due_s)
            if shift:
                rows[id_] = row._replace(due_s=due_s)
                later[id_] = shift  # type: ignore[index]
        if later:
            await self.admin.execute(SHIFT_DUE, (list(later), list(later.values())))

    async def _kill(self, pair: SessionPair) -> None:
        self.script.append(f"{pair.number}: killed")
        self.counts.killed += 1
        assert pair.twin.open_tx is not None
        assert pair.real.pipeline is not None
        pair.twin.open_tx.end()
        backend = (pair.real.pipeline.backend,)
        await self.admin.execute(KILL, backend)
        for _ in range(POLLS):
            if not await (await self.admin.execute(ALIVE, backend)).fetchone():
                return
            await asyncio.sleep(POLL_S)
        raise AssertionError("a killed session did not end")

    async def _settle(self, pair: SessionPair) -> None:
        """Wait until the session stops on both sides, and check that the reason is the same."""
        for poll in range(POLLS):
            if pair.twin.stopped.is_set() or pair.twin.is_blocked:
                break
            await asyncio.sleep(0 if poll < SPINS else POLL_S)
        waits = not pair.twin.stopped.is_set()
        if waits:
            await self._expect_blocked(pair)
        else:
            await self._expect_stopped(pair)
        self.counts.parked += waits and not pair.parked
        if waits and not pair.parked:
            self.script.append(f"{pair.number}: waits")
        pair.parked = waits
        self._compare_events(pair)

    async def _expect_stopped(self, pair: SessionPair) -> None:
        blocked = 0
        for _ in range(int(PATIENCE_S / CHECK_S)):
            await asyncio.wait(
                [stopped := asyncio.ensure_future(pair.real.stopped.wait())], timeout=CHECK_S
            )
            if stopped.done():
                return
            stopped.cancel()
            blocked = blocked + 1 if await self._blocked(pair) else 0
            if blocked == BLOCKED_CHECKS:
                self._differ(pair, "the twin continued, and PostgreSQL waits for a lock")
        self._differ(pair, "the twin continued, and PostgreSQL did not finish")

    async def _expect_blocked(self, pair: SessionPair) -> None:
        for _ in range(POLLS):
            if pair.real.stopped.is_set():
                self._differ(pair, "the twin waits for a row, and PostgreSQL continued")
            if await self._blocked(pair):
                return
            await asyncio.sleep(POLL_S)
        self._differ(pair, "the twin waits for a row, and PostgreSQL waits for no lock")

    async def _blocked(self, pair: SessionPair) -> bool:
        if (pipeline := pair.real.pipeline) is None:
            return False
        cursor = await self.admin.execute(BLOCKED, (pipeline.backend,))
        return bool((await cursor.fetchall())[0][0])

    def _compare_events(self, pair: SessionPair) -> None:
        twin, real = pair.twin.events, pair.real.events
        pair.twin.events, pair.real.events = [], []
        for ours, theirs in zip(twin, real, strict=False):
            if ours != theirs:
                self._differ(pair, f"twin       {ours}\npostgresql {theirs}")
            event = f"{ours.operation} {ours.about}".rstrip()
            self.script.append(f"{pair.number}: · {event} = {summary(ours.result)}")
        if len(twin) != len(real):
            self._differ(pair, f"events: twin       {twin}\nevents: postgresql {real}")
        if pair.twin.finished != pair.real.finished:
            self._differ(pair, f"finished: twin {pair.twin.finished}, real {pair.real.finished}")
        names = [event.operation for event in twin if event.operation not in NOT_OPERATIONS]
        self.counts.operations += len(names)
        self.counts.by_operation.update(names)
        self.counts.ends.update(event.about for event in twin if event.operation == "ended")
        self.published |= not PUBLISHING.isdisjoint(names)

    async def _compare_tables(self) -> None:
        self.published = False
        self.counts.comparisons += 1
        ours, theirs = read_twin(self.store.tables), await read_postgres(self.admin)
        if found := difference(ours, theirs):
            self._differ(None, found)
        for side, contents in (("twin", ours), ("postgresql", theirs)):
            if broken := broken_chains(contents):
                self._differ(None, f"the history of {broken} is broken on the side of {side}")

    def _differ(self, pair: SessionPair | None, message: str) -> None:
        session = "" if pair is None else f", session {pair.number}"
        lines = [*self.script, "", f"{self.selection}{session}:", message]
        raise Difference(self.selection, "\n".join(lines))


@dataclass(frozen=True)
class Sides:
    """A database with the test's clock, a store on it, and a session that reads all tables."""

    admin: psycopg.AsyncConnection[Any]
    store: PostgresStore


@asynccontextmanager
async def prepared_sides(database: str) -> AsyncIterator[Sides]:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as admin:
        await admin.execute(f"SET search_path TO {SCHEMA}, tidegate")
        admin.adapters.register_loader("numeric", WholeNumber)
        await admin.execute(f"SET statement_timeout TO '{int(PATIENCE_S)}s'")
        await admin.execute(CLOCK)
        await admin.execute(PATHS)
        for guild, rules in RULES.items():
            after = "every_transfer" if rules.every_transfer else "daily_limit"
            await admin.execute(INSERT_RULES, (guild, rules.limit, rules.cooldown_s, after))
        async with postgres(database) as store:
            with without_pauses():
                yield Sides(admin, store)


@contextmanager
def without_pauses() -> Iterator[None]:
    """Shorten the engine's pauses between retries, which are not compared."""
    pause_s = write_batch.RETRY_FIRST_S
    write_batch.RETRY_FIRST_S = POLL_S / 2
    try:
        yield
    finally:
        write_batch.RETRY_FIRST_S = pause_s
