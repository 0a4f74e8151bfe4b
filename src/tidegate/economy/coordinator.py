"""The coordinator: an engine in the caller's own program, which makes the pool's transfers."""

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Self

from psycopg_pool import AsyncConnectionPool

from tidegate.app import Setup, open_gate
from tidegate.economy.listener import TelemetryListener
from tidegate.economy.places import setup_of
from tidegate.engine.gate import LEDGER
from tidegate.systems.guild import CHECKS

DUE = "tidegate_due"  # The channel on which a new row says that there is something to do.


class TransferEventPoolCoordinator:
    """`async with TransferEventPoolCoordinator(pool)`, or `start` and `stop`.

    Any number may run, in any number of programs, beside a Tidegate that serves the same database:
    they share the work, and whoever dies leaves nothing undone. Hints make it fast; without any,
    what is due is found by looking every `scan_s`.
    """

    def __init__(self, pool: AsyncConnectionPool[Any], scan_s: float = 1.0) -> None:
        self.pool = pool
        self.scan_s = scan_s
        self.listener = TelemetryListener(DUE)
        self._running: AsyncExitStack | None = None

    async def start(self) -> None:
        assert self._running is None, "the coordinator is running already"
        setup: Setup = replace(await setup_of(self.pool), scan_s=self.scan_s)
        async with AsyncExitStack() as stack:
            gate = await stack.enter_async_context(open_gate(setup))

            def look(_: object = None) -> None:
                gate.engine.hint([CHECKS, LEDGER])

            self.listener.heard, self.listener.begun = look, look
            await stack.enter_async_context(self.listener.on(self.pool))
            self._running = stack.pop_all()

    async def stop(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await running.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
