"""A chat bot without a platform: it turns messages into payments and prints their events."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from psycopg_pool import AsyncConnectionPool

import tidegate as tg
from tidegate.economy import (
    TelemetryListener,
    TransferError,
    TransferEventPoolCoordinator,
    TransferService,
)

GUILD = 1
MEMBERS = {"anna": 11, "ben": 22, "cara": 33}
NAMES = {number: name for name, number in MEMBERS.items()}
MESSAGES = [
    "anna pays ben 100 for lunch",
    "ben pays cara 30 for stamps",
    "cara pays anna -5 for fun",
]
RENT = "anna pays ben 450 for rent"  # Above the daily limit: it waits in the pool until tomorrow.


class Bot:
    """The methods that a chat platform would call."""

    def __init__(self, service: TransferService) -> None:
        self.service = service
        self.news = asyncio.Queue[str]()

    async def message(self, number: int, text: str) -> str:
        payer, _, payee, amount, _, *reason = text.split()
        try:
            await self.service.transfer_currency(
                guild_id=GUILD,
                initiator_id=MEMBERS[payer],
                target_id=MEMBERS[payee],
                amount=int(amount),
                reason=" ".join(reason),
                cid=f"message-{number}",  # A platform may deliver a message twice.
            )
        except TransferError as refused:
            return f"{payer}: {refused}"
        return f"{payer}: noted"

    def on_event(self, event: Mapping[str, object]) -> None:
        """An event may be lost: a program that must not miss any reads the table."""
        if event["event_type"] == "transaction_success":
            payer, payee = (NAMES[int(str(event[k]))] for k in ("initiator_id", "target_id"))
            self.news.put_nowait(f"{payer} paid {payee} {event['amount']}")


async def run(address: str) -> None:
    async with AsyncConnectionPool(address, min_size=1) as pool, TransferService(pool) as bank:
        for name, member in MEMBERS.items():
            await bank.issue_currency(GUILD, member, 1_000, cid=f"welcome-{name}")
        bot = Bot(TransferService(pool, event_pool_enabled=True))
        listening = asyncio.Event()
        listener = TelemetryListener(heard=bot.on_event, begun=listening.set)
        async with listener.on(pool), TransferEventPoolCoordinator(pool):
            await listening.wait()
            for number, text in enumerate(MESSAGES):
                print(await send_twice(bot, number, text))
            for line in sorted([await bot.news.get() for _ in range(2)]):
                print(line)
            # Only now: a later payment may be made before an earlier one that is still pending.
            print(await send_twice(bot, len(MESSAGES), RENT))


async def send_twice(bot: Bot, number: int, text: str) -> str:
    await bot.message(number, text)
    return await bot.message(number, text)


if __name__ == "__main__":
    with tg.EmbeddedPostgres(Path(sys.argv[1]) / "postgres") as server:
        tg.migrate(server.url(), "tidegate_store", tg.all_flows(), economy=True)
        asyncio.run(run(server.url()))
