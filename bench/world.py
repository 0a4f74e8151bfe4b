"""One PostgreSQL for the whole run, and for every case a new copy of the same accounts."""

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

# Every commit is durable. The other settings give all cases the same space for WAL.
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


# Guilds without a daily limit, whose members have the same balance as all owners.
MEMBERS = """
UPDATE economy.guild_settings SET daily_limit = 0;
INSERT INTO {store}.ledger_accounts (owner, book, asset_id, available)
SELECT (member - 1) / {guild} + 1, 'member:' || member, {point}, {start}
  FROM generate_series(1, {accounts}) AS member;
"""


class NotConserved(Exception):
    """Money was created or lost, or a transfer has not ended."""


class Base(NamedTuple):
    """The database and core with which cases start. It is copied, and never used itself."""

    database: str
    core: Path | None


class Stage(NamedTuple):
    """The database, core and directory of one run of one case."""

    database: str
    core: str
    roles: Mapping[str, int]  # The process id of each role.
    directory: Path


class World:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = Path(tempfile.mkdtemp(prefix="run-", dir=directory))
        self._sockets = Path(
            tempfile.mkdtemp(prefix="tg-")
        )  # Short, as the path of a socket is limited.
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
        """A base of owners with the same money in each account. It is created once."""
        name = f"base_{accounts}"
        if name not in self._bases:
            self._create(name)
            url = self.server.url(name)
            migrate(url, STORE, all_flows(), economy=True)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(TABLES)
                values = {"store": STORE, "asset": ASSET, "start": START, "accounts": accounts}
                # Only numbers and names of our own: no input from outside.
                connection.execute(FUND.format(**values).encode())
                _count(connection, f"{STORE}.ledger_accounts", "literal.balances_tb")
            core = self._directory / f"core-{name}"
            with self._core(core) as (address, _), bound(address, url):
                asyncio.run(_credit(address, accounts))
            self._bases[name] = Base(name, core)
        return self._bases[name]

    def guilds(self, accounts: int) -> Base:
        """A base of guild members. It is created once."""
        name = f"base_{accounts}_members"
        if name not in self._bases:
            self._bases[name] = self.copied(self.base(accounts), name)
            values = {"store": STORE, "guild": GUILD, "point": POINT, "start": START}
            with psycopg.connect(self.server.url(name), autocommit=True) as connection:
                connection.execute(MEMBERS.format(**values, accounts=accounts).encode())
                _count(connection, f"{STORE}.ledger_accounts")
        return self._bases[name]

    def copied(self, base: Base, name: str) -> Base:
        """A copy of a base, to be changed."""
        self._create(name, base.database)
        return base._replace(database=name)

    def forget(self, base: Base) -> None:
        self._drop(base.database)

    def tpcb(self) -> Base:
        """The base that pgbench creates."""
        if "tpcb" not in self._bases:
            self._create("base_tpcb")
            command = [str(self.programs / "pgbench"), "--initialize", "--quiet"]
            command += [f"--scale={TPCB_SCALE}", self.server.url("base_tpcb")]
            subprocess.run(command, check=True, capture_output=True, timeout=300)
            self._bases["tpcb"] = Base("base_tpcb", None)
        return self._bases["tpcb"]

    @contextmanager
    def stage(self, base: Base) -> Iterator[Stage]:
        """A copy of a base right after a checkpoint. It is removed at the end."""
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
        """Run the trading core as a process, like `tidegate core`."""
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
        # Copied as files between two checkpoints, so that the copy is in no case's WAL.
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
    """Bind the core to the store of this database.

    For the core, a copied database is another one, so that each copy has to be bound again.
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
        assert found in (binding, Binding()), found  # An unbound core binds at the hello.


def _count(connection: psycopg.Connection, *filled: str) -> None:
    """Analyze the tables with rows, or the planner would assume that they are empty."""
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
    """All money, and the number of open transfers."""

    money: int
    open: int


SUMS = f"""
SELECT (SELECT coalesce(sum(available + held), 0) FROM {STORE}.ledger_accounts)
     + (SELECT coalesce(sum(available), 0) FROM literal.balances_tb),
       (SELECT count(*) FROM {STORE}.transfers WHERE lane IS NOT NULL)
     + (SELECT count(*) FROM literal.transfers_tb WHERE state NOT IN (40, -10, -30))
"""


def books(stage: Stage) -> Books:
    """The sum of all accounts of the ledgers and of the core."""
    with psycopg.connect(stage.database, autocommit=True) as connection:
        [money, open_] = connection.execute(SUMS.encode()).fetchone() or (0, 0)
    return Books(int(money) + asyncio.run(_core_total(stage.core)), open_)


TPCB_SUMS = """
SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
       (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history)
"""


def tpcb_books(stage: Stage) -> Books:
    """The sums of pgbench's four tables, which must be equal."""
    with psycopg.connect(stage.database, autocommit=True) as connection:
        sums = connection.execute(TPCB_SUMS).fetchone() or (0,)
    return Books(max(map(int, sums)) - min(map(int, sums)), 0)


async def _core_total(address: str) -> int:
    async with open_trading(address) as trading:
        return sum((await trading.totals()).sums.values())
