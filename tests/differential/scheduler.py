"""The scheduler: one statement at a time, of the same session on both sides, and then a look."""

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
from tests.differential.acts import ASSET, MEMBERS, RULES, SAVINGS, Luck, Player
from tests.differential.books import EMPTY, broken_chains, difference, postgres_books, twin_books
from tests.differential.one_side import (
    CLOCK,
    LEASE_S,
    PATHS,
    SEAT,
    Clock,
    Fate,
    Seat,
    SeatedStore,
    postgres,
)
from tests.differential.recording import Local, TellingStore, on_postgres, on_the_twin, shown
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
LOOK_S = 0.001
LOOKS = int(PATIENCE_S / LOOK_S)
SPINS = 50
GLANCE_S = 0.2
BLOCKED_FOR_GOOD = 3  # Glances: what is only on its way is not blocked for so long.
# Operations after which something new may be there for all to see.
PUBLISHING = frozenset({"commit", "claim", "release", "halt", "resume", "set status"})
# What a session tells beside its operations.
REMARKS = frozenset({"alert", "ended", "born", "gave up", "rollback", "crashed"})

BLOCKED = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
KILL = "SELECT pg_terminate_backend(%s)"
ALIVE = "SELECT FROM pg_stat_activity WHERE pid = %s"
OPENED = {
    (FUNDING, ASSET): 500,
    (SAVINGS, ASSET): 300,
    (OUTSIDE, ASSET): -800,
    (SUSPENSE, ASSET): 0,
}
OPENED |= {(book_of(member), POINT): 300 * member for member in MEMBERS}
RULE = "INSERT INTO economy.guild_settings VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
OPEN = (
    "INSERT INTO ledger_accounts (owner, book, asset_id, available, status)"
    " VALUES (%s, %s, %s, %s, %s)"
)
UNTIE = (
    "UPDATE transfers AS t SET due_at = due_at + k.later * interval '1 us'"
    " FROM unnest(%s::uuid[], %s::bigint[]) AS k (id, later) WHERE t.id = k.id"
)


@dataclass
class Counts:
    """What was done on both sides, and compared."""

    seeds: int = 0
    operations: int = 0
    statements: int = 0
    comparisons: int = 0  # Of all tables.
    parked: int = 0
    killed: int = 0
    replies_lost: int = 0
    deadlocks: int = 0
    by_operation: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)  # Of transfers, by flow and state.

    def add(self, other: "Counts") -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


Act = tuple[int, int]  # A session, and which of its acts.
ALL = tuple(itertools.product(range(SESSIONS), range(ACTS)))


class Part(NamedTuple):
    """Which seed is played, and which of its acts."""

    seed: int
    acts: tuple[Act, ...] = ALL

    def __str__(self) -> str:
        return f"seed {self.seed}, {len(self.acts)} of {len(ALL)} acts"

    def shorter(self, size: int) -> "Iterator[Part]":
        """Without so many acts in a row, wherever they stand."""
        for start in range(0, len(self.acts), size):
            yield self._replace(acts=self.acts[:start] + self.acts[start + size :])


class Difference(AssertionError):
    """The two sides do not agree."""

    def __init__(self, part: Part, said: str) -> None:
        super().__init__(said)
        self.part = part


class Pair:
    """One session: its seat at the twin and its seat at PostgreSQL."""

    def __init__(self, number: int, clock: Clock) -> None:
        self.number = number
        self.twin = Seat(f"twin {number}", clock)
        self.real = Seat(f"postgresql {number}", clock)
        self.parked = False

    @property
    def finished(self) -> bool:
        return self.twin.finished and self.real.finished


class Stage:
    """A seed being played."""

    def __init__(self, house: "House", part: "Part") -> None:
        self.house, self.part, self.seed = house, part, part.seed
        self.admin = house.admin
        self.dice = random.Random(f"stage {self.seed}")
        self.clock = Clock()
        self.store = SeatedStore(self.clock)
        self.pairs = [Pair(number, self.clock) for number in range(SESSIONS)]
        self.counts = Counts(seeds=1)
        self.script: list[str] = []
        self.published = False  # Something new may be in the tables.
        self.tasks: list[asyncio.Task[None]] = []

    async def run(self) -> Counts:
        luck = Luck.thrown(self.seed)
        await self._furnish(luck)
        for pair in self.pairs:
            who, real = (luck, pair.number), self.house.store
            self._seat(pair.twin, self.store, on_the_twin(pair.twin, self.store), who)
            self._seat(pair.real, real, on_postgres(pair.real, real), who)
        try:
            await self._play()
        finally:
            await self._leave()
        for task in self.tasks:
            await task
        return self.counts

    async def _leave(self) -> None:
        # More than once: one that is told to go in the moment in which its wait ends, stays.
        while pending := [task for task in self.tasks if not task.done()]:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=GLANCE_S)
        for task in self.tasks:
            if not task.cancelled():
                task.exception()  # Seen here; what matters of it was told.

    async def _furnish(self, luck: Luck) -> None:
        """Some accounts are there from the start, and some of those will not serve."""
        await self.admin.execute(EMPTY)
        for guild, rules in RULES.items():
            self.store.tables.rows[SETTINGS][guild] = rules
        accounts = self.store.tables.rows[ACCOUNTS]
        for owner, (opened, available) in itertools.product(luck.owners, OPENED.items()):
            if self.dice.random() < 0.6:
                status = self.dice.choice(
                    (*[LedgerStatus.ACTIVE] * 5, LedgerStatus.FROZEN, LedgerStatus.DISABLED)
                )
                accounts[Account(owner, *opened)] = LedgerBalance(available, 0, status)
                await self.admin.execute(OPEN, (owner, *opened, available, status))

    def _seat(self, seat: Seat, store: Any, local: Local, who: tuple[Luck, int]) -> None:
        async def sit() -> None:
            SEAT.set(seat)
            try:
                player = Player(TellingStore(seat, store), local, *who)
                await player.play(act for number, act in self.part.acts if number == who[1])
            except Exception as fault:
                seat.tell("crashed", repr(fault), None)
                raise
            finally:
                seat.finish()

        self.tasks.append(asyncio.ensure_future(sit()))

    async def _play(self) -> None:
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
                await self._compare_books()
        await self._compare_books()

    def _ready(self, pair: Pair) -> bool:
        """Two sessions never wait for the same row: whom PostgreSQL serves first is not said."""
        if pair.parked or pair.finished:
            return False
        holders, own = self.store.tables.holders, pair.twin.open
        if all(holders.get(key, own) is own for key in pair.twin.wants):
            return True
        return not any(o.parked and pair.twin.wants & o.twin.wants for o in self.pairs)

    def _in_transaction(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.twin.open is not None]

    async def _step(self, pair: Pair, *, lost: bool) -> None:
        statement = pair.real.next
        fate = Fate.REPLY_LOST if lost and statement == "COMMIT" else Fate.DONE
        if statement == "claim":
            await self._untie()
        self.script.append(f"{pair.number}: {statement}{' (reply lost)' * (fate is not Fate.DONE)}")
        self.counts.statements += 1
        self.counts.replies_lost += fate is Fate.REPLY_LOST
        pair.twin.go(fate)
        pair.real.go(fate)
        await self._settle(pair)

    async def _untie(self) -> None:
        """Of rows due at the same moment a claim may take any: so no two are."""
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
            await self.admin.execute(UNTIE, (list(later), list(later.values())))

    async def _kill(self, pair: Pair) -> None:
        self.script.append(f"{pair.number}: killed")
        self.counts.killed += 1
        assert pair.twin.open is not None
        assert pair.real.line is not None
        pair.twin.open.end()
        backend = (pair.real.line.backend,)
        await self.admin.execute(KILL, backend)
        for _ in range(LOOKS):
            if not await (await self.admin.execute(ALIVE, backend)).fetchone():
                return
            await asyncio.sleep(LOOK_S)
        raise AssertionError("a session that was killed is still there")

    async def _settle(self, pair: Pair) -> None:
        """Wait until the session stands still on both sides, and for the same reason."""
        for look in range(LOOKS):
            if pair.twin.stopped.is_set() or pair.twin.waits:
                break
            await asyncio.sleep(0 if look < SPINS else LOOK_S)
        waits = not pair.twin.stopped.is_set()
        if waits:
            await self._see_blocked(pair)
        else:
            await self._see_stopped(pair)
        self.counts.parked += waits and not pair.parked
        if waits and not pair.parked:
            self.script.append(f"{pair.number}: waits")
        pair.parked = waits
        self._compare_told(pair)

    async def _see_stopped(self, pair: Pair) -> None:
        blocked = 0
        for _ in range(int(PATIENCE_S / GLANCE_S)):
            await asyncio.wait(
                [stopped := asyncio.ensure_future(pair.real.stopped.wait())], timeout=GLANCE_S
            )
            if stopped.done():
                return
            stopped.cancel()
            blocked = blocked + 1 if await self._blocked(pair) else 0
            if blocked == BLOCKED_FOR_GOOD:
                self._differ(pair, "the twin has gone on, and PostgreSQL waits for a lock")
        self._differ(pair, "the twin has gone on, and PostgreSQL is not done")

    async def _see_blocked(self, pair: Pair) -> None:
        for _ in range(LOOKS):
            if pair.real.stopped.is_set():
                self._differ(pair, "the twin waits for a row, and PostgreSQL has gone on")
            if await self._blocked(pair):
                return
            await asyncio.sleep(LOOK_S)
        self._differ(pair, "the twin waits for a row, and PostgreSQL for nothing known")

    async def _blocked(self, pair: Pair) -> bool:
        if pair.real.line is None:
            return False
        cursor = await self.admin.execute(BLOCKED, (pair.real.line.backend,))
        [(blocked,)] = await cursor.fetchall()
        return bool(blocked)

    def _compare_told(self, pair: Pair) -> None:
        twin, real = pair.twin.told, pair.real.told
        pair.twin.told, pair.real.told = [], []
        for ours, theirs in zip(twin, real, strict=False):
            if ours != theirs:
                self._differ(pair, f"twin       {ours}\npostgresql {theirs}")
            told = f"{ours.operation} {ours.about}".rstrip()
            self.script.append(f"{pair.number}: · {told} = {shown(ours.result)}")
        if len(twin) != len(real):
            self._differ(pair, f"twin       tells {twin}\npostgresql tells {real}")
        if pair.twin.finished != pair.real.finished:
            self._differ(pair, f"finished: twin {pair.twin.finished}, real {pair.real.finished}")
        names = [event.operation for event in twin if event.operation not in REMARKS]
        self.counts.operations += len(names)
        self.counts.by_operation.update(names)
        self.counts.ends.update(event.about for event in twin if event.operation == "ended")
        self.published |= not PUBLISHING.isdisjoint(names)

    async def _compare_books(self) -> None:
        self.published = False
        self.counts.comparisons += 1
        ours, theirs = twin_books(self.store.tables), await postgres_books(self.admin)
        if found := difference(ours, theirs):
            self._differ(None, found)
        for side, books in (("twin", ours), ("postgresql", theirs)):
            if broken := broken_chains(books):
                self._differ(None, f"the history of {broken} is broken on the side of {side}")

    def _differ(self, pair: Pair | None, what: str) -> None:
        who = "" if pair is None else f", session {pair.number}"
        script = "\n".join(self.script)
        raise Difference(self.part, f"{script}\n\n{self.part}{who}:\n{what}")


@dataclass(frozen=True)
class House:
    """A database whose clock is ours, a store on it, and a session that looks at everything."""

    admin: psycopg.AsyncConnection[Any]
    store: PostgresStore


@asynccontextmanager
async def opened(database: str) -> AsyncIterator[House]:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as admin:
        await admin.execute(f"SET search_path TO {SCHEMA}, tidegate")
        admin.adapters.register_loader("numeric", WholeNumber)
        await admin.execute(f"SET statement_timeout TO '{int(PATIENCE_S)}s'")
        await admin.execute(CLOCK)
        await admin.execute(PATHS)
        for guild, rules in RULES.items():
            after = "every_transfer" if rules.every_transfer else "daily_limit"
            await admin.execute(RULE, (guild, rules.limit, rules.cooldown_s, after))
        async with postgres(database) as store:
            with hurried():
                yield House(admin, store)


@contextmanager
def hurried() -> Iterator[None]:
    """How long the engine pauses before it tries again is not what is compared."""
    pause_s = write_batch.RETRY_FIRST_S
    write_batch.RETRY_FIRST_S = LOOK_S / 2
    try:
        yield
    finally:
        write_batch.RETRY_FIRST_S = pause_s
