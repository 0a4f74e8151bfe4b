"""The faults that are injected into a running Tidegate, in an order drawn from one seed."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import psycopg

from tests.crash.relay import SERVER_PORT, Relay
from tests.crash.small_disk import CoreDisk
from tests.running import alive, descendants

CALL_TIMEOUT_S = 5.0  # The engine's timeout of a call to the core.
PAUSE_S = CALL_TIMEOUT_S + 1.0
FULL_S = 1.5  # How long the disk stays full after the core has noticed it.
TIMEOUT_S = 35.0
POLL_S = 0.02
T = TypeVar("T")
SESSIONS = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE datname = 'tidegate' AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


class Harmless(Exception):
    """A fault had no effect in time, so it does not count."""


class Faults:
    def __init__(self, directory: Path, relay: Relay, disk: CoreDisk, dice: random.Random) -> None:
        self.directory, self.relay, self.disk, self.dice = directory, relay, disk, dice
        self.counts: Counter[str] = Counter()
        self.kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "kill api": lambda: self.kill("api"),
            "kill worker": lambda: self.kill("worker-1"),
            "kill core": lambda: self.kill("core"),
            "kill postgres": lambda: self.kill("postgres"),
            "kill a session of postgres": self.kill_session,
            "kill everything at once": self.kill_all,
            "stop api": lambda: self.pause("api"),
            "stop worker": lambda: self.pause("worker-1"),
            "stop core": lambda: self.pause("core"),
            "stop postgres": lambda: self.pause("postgres"),
            "terminate sessions": self.terminate,
            "swallow a commit's reply": self.swallow,
            "fill the core's disk": self.fill,
        }

    def order(self, count: int) -> list[str]:
        """All kinds in a random order, then all kinds again, and so on."""
        turns: list[str] = []
        while len(turns) < count:
            turns += self.dice.sample(list(self.kinds), len(self.kinds))
        return turns[:count]

    async def inject(self, kind: str) -> None:
        """Inject a fault and return when it is over. Its effects may last longer."""
        await self.kinds[kind]()
        self.counts[kind] += 1

    def pid(self, name: str) -> int | None:
        try:
            pid = int((self.directory / "run" / f"{name}.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if alive(pid) else None

    async def running_pid(self, name: str) -> int:
        return await eventually(lambda: self.pid(name), f"{name} is not running")

    async def kill(self, name: str) -> None:
        await self.running_pid(name)
        while (pid := self.pid(name)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return

    async def kill_all(self) -> None:
        """Kill everything, like a power failure that loses no disk content."""
        pids = [await self.running_pid(name) for name in ("core", "api", "postgres", "worker-1")]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def kill_session(self) -> None:
        """Kill a backend: PostgreSQL then assumes damaged shared memory and restarts by itself."""
        async with self.connected() as database:
            pids = [pid async for (pid,) in await database.execute(SESSIONS)]
        if not pids:
            raise Harmless("no client is connected")
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.dice.choice(pids), signal.SIGKILL)

    async def pause(self, name: str) -> None:
        pid = await self.running_pid(name)
        pids = [pid, *descendants(pid)] if name == "postgres" else [pid]
        try:
            self._signal(pids, signal.SIGSTOP)
            await asyncio.sleep(PAUSE_S)
        finally:
            self._signal(pids, signal.SIGCONT)

    def _signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def terminate(self) -> None:
        async with self.connected() as database:
            ended = await database.execute(
                f"SELECT count(pg_terminate_backend(pid)) FROM ({SESSIONS}) AS sessions"
            )
            row = await ended.fetchone()
        if not row or not row[0]:
            raise Harmless("no client is connected")

    async def swallow(self) -> None:
        before, self.relay.proxy.swallow = self.relay.proxy.swallowed, 1
        try:
            await eventually(lambda: self.relay.proxy.swallowed > before, "no commit")
        finally:
            self.relay.proxy.swallow = 0

    async def fill(self) -> None:
        pid = await self.running_pid("core")
        try:
            self.disk.fill(pid)
            await eventually(lambda: not alive(pid), "the core did not notice")
            await asyncio.sleep(FULL_S)
        finally:
            self.disk.free()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """Connect to PostgreSQL without the relay, as soon as a server runs."""
        until_s = time.monotonic() + TIMEOUT_S
        address = f"host={self.relay.cluster} port={SERVER_PORT} dbname=tidegate user=postgres"
        while True:
            try:
                database = await psycopg.AsyncConnection.connect(address, autocommit=True)
                break
            except psycopg.OperationalError as fault:
                if time.monotonic() > until_s:
                    raise Harmless(f"PostgreSQL is unreachable: {fault}") from fault
                await asyncio.sleep(POLL_S)
        async with database:
            yield database


async def eventually(poll: Callable[[], T | None], problem: str, within_s: float = TIMEOUT_S) -> T:
    """Poll until there is a true value, and return it."""
    until_s = time.monotonic() + within_s
    while not (value := poll()):
        if time.monotonic() > until_s:
            raise Harmless(problem)
        await asyncio.sleep(POLL_S)
    return value
