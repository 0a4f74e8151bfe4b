"""Limits on requests per second, transfers per day and amounts per day; replays do not count."""

import asyncio
import random
import time
from typing import Any

from tests.conftest import SCHEMA
from tests.engine.rig import OWNER, Outside, request
from tests.engine.venue import Venue
from tidegate.core.refusals import Refusal
from tidegate.engine.engine import Engine, EngineParts
from tidegate.engine.pending_request import Receipt
from tidegate.flows import FLOWS
from tidegate.service.rate_limits import MAX_OWNERS, OwnerRateLimit
from tidegate.store.daily_limits import DailyLimits
from tidegate.store.postgres import PostgresStore
from tidegate.systems.ledger import Ledger


def test_a_bucket_holds_one_second_and_refills() -> None:
    now = 100.0
    rate = OwnerRateLimit(10, lambda: now)
    assert [rate.admits(1) for _ in range(12)] == [True] * 10 + [False] * 2
    assert rate.admits(2), "another owner has another bucket"
    now += 0.35
    assert [rate.admits(1) for _ in range(5)] == [True] * 3 + [False] * 2
    now += 60
    assert sum(rate.admits(1) for _ in range(50)) == 10


def test_buckets_are_bounded_and_a_limit_can_be_off() -> None:
    rate = OwnerRateLimit(1, lambda: 0.0)
    for owner in range(MAX_OWNERS + 10):
        rate.admits(owner)
    assert len(rate._buckets) == MAX_OWNERS
    free = OwnerRateLimit(None, lambda: 0.0)
    assert all(free.admits(1) for _ in range(1000))


def limited(store: PostgresStore, limits: DailyLimits, seed: int) -> Engine[Any]:
    parts: EngineParts[Any] = EngineParts(
        store=store,
        flows=FLOWS,
        outside=[Outside(Venue())],
        local=[Ledger()],
        clock=time.monotonic,
        dice=random.Random(seed),
        alert=lambda _: None,
        admission=limits,
    )
    return Engine(parts)


def test_daily_limits_hold_over_concurrent_batches_and_engines(database: str) -> None:
    async def main() -> None:
        async with PostgresStore(database, SCHEMA) as store:
            limits = DailyLimits(10, {})
            async with limited(store, limits, 1) as first, limited(store, limits, 2) as second:
                wanted = [request("in", 1, f"c{n}") for n in range(40)]
                futures = [(first, second)[n % 2].submit(r) for n, r in enumerate(wanted)]
                replies = await asyncio.gather(*futures)
                receipts = [s for s in replies if isinstance(s, Receipt)]
                assert len(receipts) == 10, "one that is refused later counts, too"
                assert replies.count(Refusal.DAILY_LIMIT_EXCEEDED) == 30
                cid = receipts[0].transfer.cid
                again = await first.submit(request("in", 1, cid))
                assert isinstance(again, Receipt)
                assert again.duplicate, "a replay does not count"
                other = await first.submit(request("in", 1, owner=OWNER + 1))
                assert isinstance(other, Receipt)

    asyncio.run(main())


def test_daily_amounts_are_per_asset(database: str) -> None:
    async def main() -> None:
        async with (
            PostgresStore(database, SCHEMA) as store,
            limited(store, DailyLimits(None, {3: 100}), 1) as engine,
        ):
            replies = [await engine.submit(request("in", amount)) for amount in (60, 50, 40, 1)]
        assert [isinstance(s, Receipt) for s in replies] == [True, False, True, False]
        assert replies[1] is replies[3] is Refusal.DAILY_AMOUNT_EXCEEDED

    asyncio.run(main())
