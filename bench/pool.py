"""The transfer pool as a bot uses it: with service, coordinator and listener in this process."""

import asyncio
from collections.abc import Mapping
from uuid import UUID

from psycopg_pool import AsyncConnectionPool

from bench.driving import DONE, Outcome, drive
from bench.spec import GUILD, Result, Spec
from bench.traffic import Traffic
from tidegate.economy import TelemetryListener, TransferEventPoolCoordinator, TransferService

SESSIONS = 8


class Ends:
    """Futures of the ends of transfers. The event of an end may arrive before the transfer's id."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Future[None]] = {}

    def of(self, id_: str) -> "asyncio.Future[None]":
        if id_ not in self._ends:
            self._ends[id_] = asyncio.get_running_loop().create_future()
        return self._ends[id_]

    def on_event(self, event: Mapping[str, object]) -> None:
        assert event["event_type"] != "transaction_denied", event
        if event["event_type"] == "transaction_success":
            self.of(str(event["transfer_id"])).set_result(None)

    async def wait(self, id_: str) -> None:
        await self.of(id_)
        del self._ends[id_]


async def run(spec: Spec) -> Result:
    traffic, ends, listening = Traffic(spec), Ends(), asyncio.Event()
    listener = TelemetryListener(heard=ends.on_event, begun=listening.set)
    async with (
        AsyncConnectionPool(spec.database, min_size=SESSIONS, max_size=SESSIONS) as pool,
        listener.on(pool),
        TransferEventPoolCoordinator(pool),
    ):
        await listening.wait()
        service = TransferService(pool, event_pool_enabled=True)

        async def transfer(number: int) -> Outcome:
            order = traffic.order(number)
            id_ = await service.transfer_currency(
                guild_id=(order.owner - 1) // GUILD + 1,
                initiator_id=order.owner,
                target_id=order.payee,
                amount=order.amount,
                cid=order.cid,
            )
            assert isinstance(id_, UUID)
            await ends.wait(str(id_))
            return DONE

        return await drive(spec, transfer)
