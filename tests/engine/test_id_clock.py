"""Keys are looked up first only while repeats arrive; a repeated request never moves money."""

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.engine.rig import Play, Rig, made, request
from tidegate.core.ids import first_id, time_ms
from tidegate.core.ports import KeyLookup
from tidegate.core.refusals import Refusal
from tidegate.engine.id_clock import REPEATS_S, TRUST_S, IdClock
from tidegate.engine.pending_request import Receipt
from tidegate.store.floors import PostgresFloors
from tidegate.store.postgres import PostgresStore


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_time_advances_with_our_clock_and_is_trusted_for_a_limited_time() -> None:
    clock = Clock()
    ids = IdClock(clock)
    assert ids.now_us() is None
    ids.set_time(5_000_000)
    clock.now_s += TRUST_S
    assert ids.now_us() == 5_000_000 + int(TRUST_S * 1_000_000)
    clock.now_s += 0.001
    assert ids.now_us() is None
    ids.set_time(6_000_000)
    clock.now_s -= 1  # A clock that is set back is not trusted either.
    assert ids.now_us() is None


def test_after_a_repeat_keys_are_looked_up_for_a_while() -> None:
    clock = Clock()
    ids = IdClock(clock)
    ids.set_time(5_000_000)
    ids.note_repeat()
    assert ids.now_us() is None
    clock.now_s += REPEATS_S
    assert ids.now_us() == 5_000_000 + int(REPEATS_S * 1_000_000)
    ids.forget()
    assert ids.now_us() is None


def lookup_sizes(rig: Rig) -> list[int]:
    """The number of keys of each lookup in the store, filled as lookups are made."""
    sizes: list[int] = []
    look = rig.store.look

    async def counting(keys: Sequence[tuple[int, str]]) -> KeyLookup:
        sizes.append(len(keys))
        return await look(keys)

    rig.store.look = counting  # type: ignore[method-assign]
    return sizes


def test_a_repeat_gets_the_first_transfer_although_its_key_was_not_looked_up(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        sizes = lookup_sizes(rig)
        balance = await rig.funding()
        async with rig.engine() as engine:
            first = await made(engine, request("in", 5, "first"))
            second = await made(engine, request("in", 6, "second"))
            assert sizes == [1], "the second was written without a lookup"
            again = await engine.submit(request("in", 6, "second"))
            assert isinstance(again, Receipt)
            assert (again.transfer.id, again.duplicate) == (second.id, True)
            other = await engine.submit(request("in", 7, "second"))
            assert other is Refusal.IDEMPOTENCY_MISMATCH
            # A repeat in a batch with a new request: the batch is tried again, each moves once.
            third, repeat = await asyncio.gather(
                made(engine, request("in", 8, "third")), engine.submit(request("in", 5, "first"))
            )
            assert isinstance(repeat, Receipt)
            assert repeat.transfer.id == first.id
            await rig.ended([first, second, third])
        assert await rig.funding() == balance - 5 - 6 - 8

    play(scene)


def test_if_the_floor_was_raised_meanwhile_the_requests_get_new_ids(play_postgres: Play) -> None:
    """The ids of the first try are below the floor."""

    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        balance = await rig.funding()
        async with rig.engine() as engine:
            before = await made(engine, request("in", 5, "before"))
            floor = first_id(time_ms(before.id) + 86_400_000)
            await PostgresFloors(rig.store).raise_to(floor)
            requests: list[Any] = [request("in", 1, f"after {n}") for n in range(5)]
            requests += [request("in", 1, "after 0"), request("in", 1)]
            results = await asyncio.gather(*(engine.submit(wanted) for wanted in requests))
            receipts = [r for r in results if isinstance(r, Receipt)]
            assert len(receipts) == len(requests), results
            assert min(receipt.transfer.id for receipt in receipts) > floor
            assert receipts[5].transfer.id == receipts[0].transfer.id
            transfers = {receipt.transfer.id: receipt.transfer for receipt in receipts}
            await rig.ended([before, *transfers.values()])
        assert await rig.funding() == balance - 5 - 6

    play_postgres(scene)


def test_an_engine_that_stops_answers_requests_that_wait_for_new_ids(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        balance = await rig.funding()
        async with rig.engine() as engine:
            before = await made(engine, request("in", 5, "before"))
            await rig.ended([before])
            await PostgresFloors(rig.store).raise_to(first_id(time_ms(before.id) + 86_400_000))
            calls = [
                asyncio.ensure_future(engine.submit(request("in", 1, f"after {n}")))
                for n in range(20)
            ]
            await asyncio.sleep(0)  # They wait in the queue; none is written yet.
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5)
        accepted = [r.transfer for r in results if isinstance(r, Receipt)]
        assert len(accepted) == len(calls), "what was accepted before the stop is still written"
        async with rig.engine(2):
            await rig.ended(accepted)
        assert await rig.funding() == balance - 5 - len(accepted)

    play_postgres(scene)
