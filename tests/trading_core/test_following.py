"""What an auditor reads of a core: balances at one position, and everything done up to one."""

import asyncio
from contextlib import aclosing
from pathlib import Path

from tests.trading_core.questions import SPOT, credit, debit, served
from tidegate.core.account import Account
from tidegate.core.wire import AccountStatus, CoreEvent
from tidegate.systems.trading import TradingCoreClient

ANN, BOB = Account(1, "SPOT", 7), Account(2, "SPOT", 7)


async def followed(trading: TradingCoreClient, after: int, upto: int) -> list[CoreEvent]:
    found: list[CoreEvent] = []
    async with asyncio.timeout(5), aclosing(trading.follow(after)) as pieces:
        async for reached, piece in pieces:
            found += piece
            if reached >= upto:
                break
    return found


def test_balances_are_of_one_position(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (core, trading):
            await trading.ask([credit(1, 100), debit(2, 40)])
            position, amounts = await trading.balances([ANN, BOB, ANN])
            assert (position, amounts) == (core.place.position, [60, 0, 60])
            assert await trading.balances([]) == (core.place.position, [])

    asyncio.run(scene())


def test_a_follower_learns_when_it_has_everything_whatever_the_last_record_is(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (core, trading):
            start = (await trading.totals()).position
            assert await followed(trading, start, start) == []
            await trading.ask([credit(1, 100), debit(2, 40)])
            # Neither of these is an operation, and nobody would hear of them.
            await trading.set_status(SPOT.owner, "SPOT", 7, AccountStatus.FROZEN)
            here = core.place.position
            assert [e.delta for e in await followed(trading, start, here)] == [100, -40]
            assert await followed(trading, here, here) == []

    asyncio.run(scene())


def test_a_follower_that_waits_hears_what_comes_while_it_is_told_that_nothing_is_there(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (core, trading):
            start = core.place.position
            async with asyncio.timeout(5), aclosing(trading.follow(start)) as pieces:
                seen: list[int] = []
                for number in range(1, 20):
                    await trading.ask([credit(number, number)])
                    while not seen or seen[-1] != number:
                        _, piece = await anext(pieces)
                        seen += [event.delta for event in piece]
            assert seen == list(range(1, 20))

    asyncio.run(scene())
