"""One PostgreSQL for the whole run, and for every case a fresh copy of the same money."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from uuid import UUID

import psycopg
from psycopg import sql

from bench.literal import TABLES
from bench.rail import BINDING, open_trading
from bench.spec import ASSET, GUILD, STORE
from tidegate import EmbeddedPostgres, Party, Question, Verb, all_flows, migrate
from tidegate.core.answers import Done
from tidegate.core.wire import Binding
from tidegate.postgres import find_binaries
from tidegate.systems.guild import POINT

# Every commit is durable, as everywhere; the rest gives all cases the same room to write in.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
}
SHOWN = (*SETTINGS, "wal_sync_method", "commit_delay", "autovacuum", "data_checksums")
START = 10**15  # Each account's money, in smallest units.
CORE_BATCH = 8_192
TPCB_SCALE = 10
STOP_S = 30.0

FUND = """
INSERT INTO {store}.ledger_accounts (owner, book, asset_id, available)
SELECT owner, 'FUNDING', {asset}, {start} FROM generate_series(1, {accounts}) AS owner;
INSERT INTO literal.balances_tb (user_id, asset_id, available)
SELECT owner, {asset}, {start} FROM generate_series(1, {accounts}) AS owner;
"""


# Guilds without a daily limit, whose members have as much as anybody.
MEMBERS = """
UPDATE economy.guild_settings SET daily_limit = 0;
INSERT INTO {store}.ledger_accounts (owner, book, asset_id, available)
SELECT (member - 1) / {guild} + 1, 'member:' || member, {point}, {start}
  FROM generate_series(1, {accounts}) AS member;
"""


class NotConserved(Exception):
    """Money was made or lost, or a transfer has not ended."""


class Base(NamedTuple):
    """What every case of one kind begins with; copied, and never used itself."""

    database: str
    core: Path | None


class Stage(NamedTuple):
    """Where one run of one case takes place."""

    database: str
    core: str
    roles: Mapping[str, int]  # The process that plays each role.
    directory: Path


class World:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = Path(tempfile.mkdtemp(prefix="run-", dir=directory))
        self._sockets = Path(tempfile.mkdtemp(prefix="tg-"))  # Short: a socket's name must be.
        self._bases: dict[str, Base] = {}
        self._held = ExitStack()
        self.server = EmbeddedPostgres(self._directory / "pg", settings=SETTINGS)
        self.programs = find_binaries().directory

    def __enter__(self) -> Self:
        self._held.callback(shutil.rmtree, self._sockets, ignore_errors=True)
        self._held.callback(shutil.rmtree, self._directory, ignore_errors=True)
        self._held.enter_context(self.server)
        connection = psycopg.connect(self.server.url(), autocommit=True)
        self.connection = self._held.enter_context(connection)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()

    @property
    def directory(self) -> Path:
        return self._directory

    def settings(self) -> dict[str, str]:
        rows = self.connection.execute(
            "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s)",
            (["server_version", *SHOWN],),
        )
        return dict(rows.fetchall())

    def base(self, accounts: int) -> Base:
        """Owners with the same money in each account of each world, made once."""
        name = f"base_{accounts}"
        if name not in self._bases:
            self._create(name)
            url = self.server.url(name)
            migrate(url, STORE, all_flows())
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(TABLES)
                values = {"store": STORE, "asset": ASSET, "start": START, "accounts": accounts}
                # Numbers and a name of our own: nothing of it comes from outside.
                connection.execute(FUND.format(**values).encode())
                _count(connection, f"{STORE}.ledger_accounts", "literal.balances_tb")
            core = self._directory / f"core-{name}"
            with self._core(core) as (address, _), bound(address, url):
                asyncio.run(_credit(address, accounts))
            self._bases[name] = Base(name, core)
        return self._bases[name]

    def guilds(self, accounts: int) -> Base:
        """The same with members of guilds, made once."""
        name = f"base_{accounts}_members"
        if name not in self._bases:
            self._bases[name] = self.copied(self.base(accounts), name)
            values = {"store": STORE, "guild": GUILD, "point": POINT, "start": START}
            with psycopg.connect(self.server.url(name), autocommit=True) as connection:
                connection.execute(MEMBERS.format(**values, accounts=accounts).encode())
                _count(connection, f"{STORE}.ledger_accounts")
        return self._bases[name]

    def copied(self, base: Base, name: str) -> Base:
        """Another base that begins as this one does."""
        self._create(name, base.database)
        return base._replace(database=name)

    def forget(self, base: Base) -> None:
        self._drop(base.database)

    def tpcb(self) -> Base:
        """What pgbench makes for itself."""
        if "tpcb" not in self._bases:
            self._create("base_tpcb")
            command = [str(self.programs / "pgbench"), "--initialize", "--quiet"]
            command += [f"--scale={TPCB_SCALE}", self.server.url("base_tpcb")]
            subprocess.run(command, check=True, capture_output=True, timeout=300)
            self._bases["tpcb"] = Base("base_tpcb", None)
        return self._bases["tpcb"]

    @contextmanager
    def stage(self, base: Base) -> Iterator[Stage]:
        """A copy of the money, right after a checkpoint, gone at the end."""
        self._create("run", base.database)
        directory = Path(tempfile.mkdtemp(prefix="case-", dir=self._directory))
        roles = {"postgres": self.server.pid}
        try:
            if base.core is None:
                yield Stage(self.server.url("run"), "", roles, directory)
                return
            shutil.copytree(base.core, directory / "core")
            url = self.server.url("run")
            with self._core(directory / "core") as (address, pid), bound(address, url):
                roles["core"] = pid
                yield Stage(url, address, roles, directory)
        finally:
            self._drop("run")
            shutil.rmtree(directory)

    @contextmanager
    def _core(self, directory: Path) -> Iterator[tuple[str, int]]:
        """The trading core as its own process, as `tidegate core` runs it."""
        address = f"unix:{self._sockets / 'core'}"
        words = ["-m", "tidegate.trading_core", "--data", str(directory), "--listen", address]
        with subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            try:
                assert child.stdout is not None
                assert child.stderr is not None
                if not child.stdout.readline():
                    raise RuntimeError(f"the core did not start: {child.stderr.read()}")
                yield address, child.pid
            finally:
                child.terminate()
                child.wait(STOP_S)

    def _create(self, name: str, template: str = "template0") -> None:
        # Copied as files between two checkpoints: the copy is in no case's WAL.
        self._drop(name)
        statement = "CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy"
        names = (sql.Identifier(name), sql.Identifier(template))
        self.connection.execute(sql.SQL(statement).format(*names))

    def _drop(self, name: str) -> None:
        statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        self.connection.execute(statement.format(sql.Identifier(name)))


PLACE = f"""
SELECT i.store::text, c.system_identifier || '/' || d.oid
  FROM {STORE}.store_identity AS i, pg_control_system() AS c, pg_database AS d
 WHERE d.datname = current_database()
"""


@contextmanager
def bound(address: str, database: str) -> Iterator[None]:
    """The core serves the store of this database, and whoever greets it meanwhile speaks for it.

    A copied database is another place to a core, so that each copy has to be confirmed.
    """
    with psycopg.connect(database, autocommit=True) as connection:
        [store, place] = connection.execute(PLACE.encode()).fetchone() or ("", "")
    asyncio.run(_rebind(address, Binding(store, place)))
    os.environ[BINDING] = f"{store} {place}"
    try:
        yield
    finally:
        del os.environ[BINDING]


async def _rebind(address: str, binding: Binding) -> None:
    async with open_trading(address) as trading:
        found = await trading.rebind(binding.store, binding)
        assert found in (binding, Binding()), found  # An unbound core binds at the greeting.


def _count(connection: psycopg.Connection, *filled: str) -> None:
    """Only what has rows: no store begins with tables that were counted while they were empty."""
    for table in filled:
        connection.execute(f"VACUUM ANALYZE {table}".encode())


async def _credit(address: str, accounts: int) -> None:
    async with open_trading(address) as trading:
        for first in range(1, accounts + 1, CORE_BATCH):
            owners = range(first, min(first + CORE_BATCH, accounts + 1))
            questions = [
                Question(UUID(int=o), 0, Verb.CREDIT, Party("core", "SPOT", o), ASSET, START)
                for o in owners
            ]
            answers = await trading.ask(questions)
            assert all(isinstance(answer, Done) for answer in answers), "the core took it all"


class Books(NamedTuple):
    """All the money there is, and what has not ended."""

    money: int
    open: int


SUMS = f"""
SELECT (SELECT coalesce(sum(available + held), 0) FROM {STORE}.ledger_accounts)
     + (SELECT coalesce(sum(available), 0) FROM literal.balances_tb),
       (SELECT count(*) FROM {STORE}.transfers WHERE lane IS NOT NULL)
     + (SELECT count(*) FROM literal.transfers_tb WHERE state NOT IN (40, -10, -30))
"""


def books(stage: Stage) -> Books:
    """Everything that the accounts of the ledgers and of the core hold together."""
    with psycopg.connect(stage.database, autocommit=True) as connection:
        [money, open_] = connection.execute(SUMS.encode()).fetchone() or (0, 0)
    return Books(int(money) + asyncio.run(_core_total(stage.core)), open_)


TPCB_SUMS = """
SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
       (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history)
"""


def tpcb_books(stage: Stage) -> Books:
    """Of pgbench's four tables, each must come to the same."""
    with psycopg.connect(stage.database, autocommit=True) as connection:
        sums = connection.execute(TPCB_SUMS).fetchone() or (0,)
    return Books(max(map(int, sums)) - min(map(int, sums)), 0)


async def _core_total(address: str) -> int:
    async with open_trading(address) as trading:
        return sum((await trading.totals()).sums.values())
