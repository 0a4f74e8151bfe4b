"""A transaction of the in-memory store: uncommitted rows, and row locks."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from tidegate.core.ports import BRIEF_S, LockTimeout, StoreUnavailable, TransactionStart

if TYPE_CHECKING:
    from tidegate.store.memory_tables import MemoryTables

# To call the class instead runs a Python function, which takes three times as long.
begun_as: Callable[[tuple[int, bool, UUID, str]], TransactionStart] = partial(
    tuple.__new__, TransactionStart
)


@types.coroutine
def yield_once() -> Generator[None, None, None]:
    """Let other tasks run once, like `asyncio.sleep(0)`, but cheaper: it is called very often."""
    yield


class TwinTransaction:
    """A transaction. Only it sees its writes until it commits; it keeps its locks until it ends."""

    def __init__(self, tables: "MemoryTables", at_us: int, lock_s: float) -> None:
        self.tables = tables
        self.at_us = at_us
        self._halted, self.floor = bool(tables.halts), tables.floor
        self.lock_s = lock_s
        self.written: dict[tuple[str, Hashable], object] = {}
        self.held: dict[tuple[str, Hashable], None] = {}  # In the order of locking.
        self.waits: asyncio.Future[None] | None = None
        self.ended = False
        tables.transactions += 1
        self.xid = str(tables.transactions)
        tables.running.add(self.xid)

    async def begun(self) -> TransactionStart:
        return begun_as((self.at_us, self._halted, self.floor, self.xid))

    async def wait_briefly(self) -> None:
        self.lock_s = min(self.lock_s, BRIEF_S)

    def get(self, table: str, key: Hashable) -> Any:
        # Most reads come before the first write, and to hash an id runs a Python function.
        if self.written and (row := self.written.get((table, key))) is not None:
            return row
        return self.tables.rows[table].get(key)

    def put(self, table: str, key: Hashable, row: object) -> None:
        self.written[table, key] = row

    async def lock(self, table: str, keys: Sequence[Hashable]) -> None:
        await self.pause()
        # Only rows that exist when the statement starts: others cannot be locked.
        rows, own = self.tables.rows[table], self.written
        await self.hold(table, [k for k in keys if k in rows or (own and (table, k) in own)])

    async def hold(self, table: str, keys: Sequence[Hashable]) -> None:
        holders, held = self.tables.holders, self.held
        for key in keys:
            name = table, key
            while holders.setdefault(name, self) is not self:
                await self._wait(table, key)
            held[name] = None

    async def insert(self, table: str, key: Hashable, row: object) -> bool:
        while self._contested(table, key):
            await self._wait(table, key)
        if self.get(table, key) is not None:
            return False
        self._take(table, key)
        self.put(table, key, row)
        return True

    def _contested(self, table: str, key: Hashable) -> bool:
        """Whether an INSERT must wait: another transaction inserted the key or changed its row."""
        holder = self.tables.holders.get((table, key), self)
        if holder is self:
            return False
        return self.get(table, key) is None or (table, key) in holder.written

    def _take(self, table: str, key: Hashable) -> bool:
        """Lock a row, unless another transaction holds it."""
        name = table, key
        if self.tables.holders.setdefault(name, self) is not self:
            return False
        self.held[name] = None
        return True

    async def _wait(self, table: str, key: Hashable) -> None:
        self.waits = asyncio.get_running_loop().create_future()
        self.tables.waiting[table, key].append(self.waits)
        try:
            await asyncio.wait_for(self.waits, self.lock_s)
        except TimeoutError as fault:
            raise LockTimeout(f"waited too long for {table} {key}") from fault
        finally:
            self.waits = None
        self._check_open()

    @types.coroutine
    def _pause(self) -> Generator[None, None, None]:
        """Like `yield_once`, then check that the session is open. One coroutine is cheaper."""
        yield
        if self.ended:
            self._check_open()

    pause = cast("Callable[[TwinTransaction], Coroutine[Any, Any, None]]", _pause)

    def _check_open(self) -> None:
        if self.ended:
            raise StoreUnavailable("the session was ended")

    def commit(self) -> None:
        self._check_open()
        rows = self.tables.rows
        for (table, key), row in self.written.items():
            rows[table][key] = row
        self.tables.committed.add(self.xid)

    def end(self) -> None:
        """Release all locks, as the server does however a session ends."""
        holders, waiting = self.tables.holders, self.tables.waiting
        for name in self.held:
            del holders[name]
            for free in waiting.pop(name, ()) if waiting else ():
                if not free.done():
                    free.set_result(None)
        self.held.clear()
        self.ended = True
        self.tables.running.discard(self.xid)
        if self.waits is not None and not self.waits.done():
            self.waits.set_result(None)
