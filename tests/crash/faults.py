"""What is done to a running Tidegate: each kind of fault, by turns, drawn from one seed."""

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

from tests.crash.relay import BEHIND_PORT, Relay
from tests.crash.small_disk import Room
from tests.running import alive, descendants

CALL_TIMEOUT_S = 5.0  # What the engine waits for the core.
SILENCE_S = CALL_TIMEOUT_S + 1.0
FULL_S = 1.5  # How long the disk stays full after it was noticed.
PATIENCE_S = 35.0
LOOK_S = 0.02
T = TypeVar("T")
SESSIONS = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE datname = 'tidegate' AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


class Harmless(Exception):
    """A fault did not come about in time: nothing was there to be hurt."""


class Faults:
    def __init__(self, directory: Path, relay: Relay, room: Room, dice: random.Random) -> None:
        self.directory, self.relay, self.room, self.dice = directory, relay, room, dice
        self.counts: Counter[str] = Counter()
        self.kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "kill api": lambda: self.kill("api"),
            "kill worker": lambda: self.kill("worker-1"),
            "kill core": lambda: self.kill("core"),
            "kill postgres": lambda: self.kill("postgres"),
            "kill a session of postgres": self.kill_session,
            "kill everything at once": self.kill_all,
            "stop api": lambda: self.silence("api"),
            "stop worker": lambda: self.silence("worker-1"),
            "stop core": lambda: self.silence("core"),
            "stop postgres": lambda: self.silence("postgres"),
            "terminate sessions": self.terminate,
            "swallow a commit's reply": self.swallow,
            "fill the core's disk": self.fill,
        }

    def order(self, count: int) -> list[str]:
        """Each kind by turns, and within a turn as the dice fall."""
        turns: list[str] = []
        while len(turns) < count:
            turns += self.dice.sample(list(self.kinds), len(self.kinds))
        return turns[:count]

    async def commit(self, kind: str) -> None:
        """Return when the cause is gone; what it has caused may take longer."""
        await self.kinds[kind]()
        self.counts[kind] += 1

    def pid(self, name: str) -> int | None:
        try:
            pid = int((self.directory / "run" / f"{name}.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if alive(pid) else None

    async def living(self, name: str) -> int:
        return await eventually(lambda: self.pid(name), f"{name} is not running")

    async def kill(self, name: str) -> None:
        await self.living(name)
        while (pid := self.pid(name)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return

    async def kill_all(self) -> None:
        """As a power failure would, for all that is not on a disk."""
        pids = [await self.living(name) for name in ("core", "api", "postgres", "worker-1")]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def kill_session(self) -> None:
        """PostgreSQL takes it for a sign of damaged memory, and starts again by itself."""
        async with self.connected() as database:
            pids = [pid async for (pid,) in await database.execute(SESSIONS)]
        if not pids:
            raise Harmless("nobody is connected")
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.dice.choice(pids), signal.SIGKILL)

    async def silence(self, name: str) -> None:
        pid = await self.living(name)
        whole = [pid, *descendants(pid)] if name == "postgres" else [pid]
        try:
            self._signal(whole, signal.SIGSTOP)
            await asyncio.sleep(SILENCE_S)
        finally:
            self._signal(whole, signal.SIGCONT)

    def _signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def terminate(self) -> None:
        async with self.connected() as database:
            ended = await database.execute(
                f"SELECT count(pg_terminate_backend(pid)) FROM ({SESSIONS}) AS sessions"
            )
            found = await ended.fetchone()
        if not found or not found[0]:
            raise Harmless("nobody is connected")

    async def swallow(self) -> None:
        before, self.relay.proxy.swallow = self.relay.proxy.swallowed, 1
        try:
            await eventually(lambda: self.relay.proxy.swallowed > before, "nobody commits")
        finally:
            self.relay.proxy.swallow = 0

    async def fill(self) -> None:
        pid = await self.living("core")
        try:
            self.room.fill(pid)
            await eventually(lambda: not alive(pid), "the core did not notice")
            await asyncio.sleep(FULL_S)
        finally:
            self.room.free()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """Past the relay, and as soon as there is a server."""
        until_s = time.monotonic() + PATIENCE_S
        address = f"host={self.relay.cluster} port={BEHIND_PORT} dbname=tidegate user=postgres"
        while True:
            try:
                database = await psycopg.AsyncConnection.connect(address, autocommit=True)
                break
            except psycopg.OperationalError as fault:
                if time.monotonic() > until_s:
                    raise Harmless(f"PostgreSQL is away: {fault}") from fault
                await asyncio.sleep(LOOK_S)
        async with database:
            yield database


async def eventually(
    found: Callable[[], T | None], otherwise: str, within_s: float = PATIENCE_S
) -> T:
    until_s = time.monotonic() + within_s
    while not (seen := found()):
        if time.monotonic() > until_s:
            raise Harmless(otherwise)
        await asyncio.sleep(LOOK_S)
    return seen
