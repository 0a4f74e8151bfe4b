"""The coordinator: an engine in the caller's own program, which makes the pool's transfers."""

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

DUE = "tidegate_due"  # The channel on which a new row says that there is something to do.


class TransferEventPoolCoordinator:
    """`async with TransferEventPoolCoordinator(pool)`, or `start` and `stop`.

    Any number may run, in any number of programs, beside a Tidegate that serves the same database:
    they share the work, and whoever dies leaves nothing undone. Hints make it fast; without any,
    what is due is found by looking every `scan_s`. A program that has nothing else to do awaits
    `wait`, and so learns at once when the coordinator has died.
    """

    def __init__(self, pool: AsyncConnectionPool[Any], scan_s: float = 1.0) -> None:
        self.pool = pool
        self.scan_s = scan_s
        self.listener = TelemetryListener(DUE)
        self._running: AsyncExitStack | None = None
        self._died: asyncio.Future[BaseException] | None = None

    async def start(self) -> None:
        assert self._running is None, "the coordinator is running already"
        setup: Setup = replace(await setup_of(self.pool), scan_s=self.scan_s)
        async with AsyncExitStack() as stack:
            gate = await stack.enter_async_context(open_gate(setup))

            def look(_: object = None) -> None:
                gate.engine.hint([INBOX])

            self._died = gate.engine.died
            self.listener.heard, self.listener.begun = look, look
            await stack.enter_async_context(self.listener.on(self.pool))
            self._running = stack.pop_all()

    async def wait(self) -> None:
        """Wait as long as it works; raise EngineStopped as soon as it has died of a bug.

        `start` it again after `stop`, or end the program and let its supervisor do so.
        """
        assert self._died is not None, "the coordinator was not started"
        fault = await asyncio.shield(self._died)
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
