"""The coordinator: an engine inside the caller's program that runs the transfers of the pool."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Self

from psycopg_pool import AsyncConnectionPool

from tidegate.app import Setup, open_gate
from tidegate.economy.address import setup_of
from tidegate.economy.listener import TelemetryListener
from tidegate.engine.inbox_reader import NAME as INBOX
from tidegate.engine.stopped import EngineStopped

DUE = "tidegate_due"  # The channel on which the database reports new rows.


class TransferEventPoolCoordinator:
    """`async with TransferEventPoolCoordinator(pool)`, or `start` and `stop`.

    Many coordinators may run in many programs, beside other Tidegate processes on one database.
    They share the work, and if one stops, the others finish its transfers. Notifications make it
    fast; without them, a scan finds due transfers every `scan_s`. A program that has nothing else
    to do awaits `wait`, which raises as soon as the coordinator's engine has stopped.
    """

    def __init__(self, pool: AsyncConnectionPool[Any], scan_s: float = 1.0) -> None:
        self.pool = pool
        self.scan_s = scan_s
        self.listener = TelemetryListener(DUE)
        self._running: AsyncExitStack | None = None
        self._fault: asyncio.Future[BaseException] | None = None

    async def start(self) -> None:
        assert self._running is None, "the coordinator is running already"
        setup: Setup = replace(await setup_of(self.pool), scan_s=self.scan_s)
        async with AsyncExitStack() as stack:
            gate = await stack.enter_async_context(open_gate(setup))

            def read_inbox(_: object = None) -> None:
                gate.engine.hint([INBOX])

            self._fault = gate.engine.died
            self.listener.heard, self.listener.begun = read_inbox, read_inbox
            await stack.enter_async_context(self.listener.on(self.pool))
            self._running = stack.pop_all()

    async def wait(self) -> None:
        """Wait while the engine runs; raise EngineStopped as soon as a bug has stopped it.

        Then call `stop` and `start` again, or exit and let a supervisor restart the program.
        """
        assert self._fault is not None, "the coordinator was not started"
        fault = await asyncio.shield(self._fault)
        raise EngineStopped(repr(fault), maybe_accepted=True) from fault

    async def stop(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await running.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
