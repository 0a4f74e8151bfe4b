"""Reads for an auditor: balances at one position, and all operations up to one position."""

import asyncio
from contextlib import aclosing
from pathlib import Path

from tests.trading_core.questions import SPOT, credit, debit, served
from tidegate.core.account import Account
from tidegate.core.wire import AccountStatus, CoreEvent
from tidegate.systems.trading import TradingCoreClient

ANN, BOB = Account(1, "SPOT", 7), Account(2, "SPOT", 7)


async def followed(trading: TradingCoreClient, after: int, upto: int) -> list[CoreEvent]:
    received: list[CoreEvent] = []
    async with asyncio.timeout(5), aclosing(trading.follow(after)) as pieces:
        async for reached, piece in pieces:
            received += piece
            if reached >= upto:
                break
    return received


def test_balances_are_of_one_position(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (core, trading):
            await trading.ask([credit(1, 100), debit(2, 40)])
            position, amounts = await trading.balances([ANN, BOB, ANN])
            assert (position, amounts) == (core.log_position.position, [60, 0, 60])
            assert await trading.balances([]) == (core.log_position.position, [])

    asyncio.run(scene())


def test_a_follower_learns_that_it_has_everything_even_if_the_last_record_is_no_operation(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (core, trading):
            start = (await trading.totals()).position
            assert await followed(trading, start, start) == []
            await trading.ask([credit(1, 100), debit(2, 40)])
            # This record is not an operation, so it is not sent as an event.
            await trading.set_status(SPOT.owner, "SPOT", 7, AccountStatus.FROZEN)
            end = core.log_position.position
            assert [e.delta for e in await followed(trading, start, end)] == [100, -40]
            assert await followed(trading, end, end) == []

    asyncio.run(scene())


def test_a_waiting_follower_gets_events_that_arrive_while_an_empty_message_is_sent(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (core, trading):
            start = core.log_position.position
            async with asyncio.timeout(5), aclosing(trading.follow(start)) as pieces:
                seen: list[int] = []
                for number in range(1, 20):
                    await trading.ask([credit(number, number)])
                    while not seen or seen[-1] != number:
                        _, piece = await anext(pieces)
                        seen += [event.delta for event in piece]
            assert seen == list(range(1, 20))

    asyncio.run(scene())
