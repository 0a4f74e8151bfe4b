"""What the engine relies on in a store, put to PostgreSQL and to the twin."""

import asyncio
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.contracts.stores import (
    FLOW,
    OURS,
    AnyStore,
    Play,
    answer,
    created,
    insert,
    key_of,
    new_transfer,
    one,
    reserve,
)
from tidegate.core.answers import Alarm, Done, Rejected, Unknown
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.kind import Transfer
from tidegate.core.moves import moves_of
from tidegate.core.ports import KeyTaken, StoreFault
from tidegate.core.transfer import Expiry, Move


def test_what_was_inserted_is_found_as_it_was(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        first = new_transfer().but(detail={"memo": "«½»"}, trace="t-1", cid="c", parent=UUID(int=5))
        await insert(store, first)
        found = await one(store, first.id)
        times = {"created_us": found.created_us, "updated_us": found.updated_us}
        assert found.but(waited_s=0.0) == first.but(**times)
        assert found.created_us == found.updated_us > 1_700_000_000_000_000
        assert await store.find([UUID(int=1)]) == []

    play(scene)


def test_a_claim_leases_counts_the_attempt_and_gives_each_row_once(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, *(new_transfer() for _ in range(10)), new_transfer("elsewhere"))
        batches = await asyncio.gather(*(store.claim("venue", 4, OURS) for _ in range(4)))
        claimed = [t.id for batch in batches for t in batch]
        assert len(claimed) == len(set(claimed)) == 10
        assert all(t.attempts == 1 for batch in batches for t in batch)
        assert await store.claim("venue", 10, OURS) == []

    play(scene)


def test_an_expired_lease_is_simply_a_due_transfer(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [first] = await store.claim("venue", 1, OURS)
        await asyncio.sleep(store.lease_s + 0.1)
        [again] = await store.claim("venue", 1, OURS)
        assert (again.id, again.attempts) == (first.id, 2)
        assert again.waited_s > store.lease_s

    play(scene)


def test_the_longest_due_is_claimed_first(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        order = []
        for _ in range(3):
            order.append(new_transfer())
            await insert(store, order[-1])
            await asyncio.sleep(0.01)
        claimed = [(await store.claim("venue", 1, OURS))[0].id for _ in order]
        assert claimed == [t.id for t in order]

    play(scene)


def test_a_released_lease_is_due_now_unless_the_row_has_moved(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer(), new_transfer())
        kept, moved = await store.claim("venue", 2, OURS)
        await answer(store, [moved], Done())
        await store.release([kept, moved])
        assert [t.id for t in await store.claim("venue", 2, OURS)] == [kept.id]

    play(scene)


def test_a_move_is_recorded_only_for_a_row_at_the_version_asked_about(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [asked] = await store.claim("venue", 1, OURS)
        assert await answer(store, [asked], Done()) == 1
        assert await answer(store, [asked], Rejected("late")) == 0
        found = await one(store, asked.id)
        assert (found.state, found.version, found.lane) == ("TARGET_PENDING", 1, "other")

    play(scene)


def test_of_two_workers_on_one_row_one_moves_it(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [asked] = await store.claim("venue", 1, OURS)
        moved = await asyncio.gather(*(answer(store, [asked], Done()) for _ in range(6)))
        assert sum(moved) == 1
        assert (await one(store, asked.id)).version == 1

    play(scene)


def test_record_moves_all_that_were_meant_or_none(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer(), new_transfer())
        first, second = await store.claim("venue", 2, OURS)
        await answer(store, [second], Done())
        moves = [decide(FLOW, t, Done(), DecisionContext()) for t in (first, second)]
        with pytest.raises(StoreFault):
            async with store.transaction() as tx:
                await store.write(tx, moves_of(moves), [False] * len(moves))
        assert (await one(store, first.id)).version == 0

    play(scene)


def test_what_a_transaction_did_is_gone_if_it_fails(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [asked] = await store.claim("venue", 1, OURS)

        async def failing() -> None:
            async with store.transaction() as tx:
                fresh = await store.lock(tx, [asked])
                await store.write(
                    tx,
                    moves_of([decide(FLOW, t, Done(), DecisionContext()) for t in fresh]),
                    [False],
                )
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        assert (await one(store, asked.id)).version == 0
        assert await answer(store, [asked], Done()) == 1

    play(scene)


def test_an_end_has_no_lane_and_is_never_claimed_again(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [asked] = await store.claim("venue", 1, OURS)
        await answer(store, [asked], Rejected("INSUFFICIENT_BALANCE"))
        found = await one(store, asked.id)
        assert (found.state, found.lane, found.error) == ("FAILED", None, "INSUFFICIENT_BALANCE")
        await asyncio.sleep(store.lease_s + 0.1)
        assert await store.claim("venue", 1, OURS) == []

    play(scene)


def test_an_unknown_waits_its_delay_and_changes_nothing_else(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [asked] = await store.claim("venue", 1, OURS)
        before = await one(store, asked.id)
        await answer(store, [asked], Unknown("timeout"))
        after = await one(store, asked.id)
        assert after == before.but(retries=1, waited_s=after.waited_s)
        await asyncio.sleep(store.lease_s + 0.1)
        assert await store.claim("venue", 1, OURS) == [], "the delay is longer than the lease"

    play(scene)


def test_a_leased_row_is_left_to_whoever_was_handed_it(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        kept, left = new_transfer(), new_transfer()
        async with store.transaction() as tx:
            rows = await store.write(tx, moves_of([created(kept), created(left)]), [True, False])
        assert [t.attempts for t in rows] == [1, 0]
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [left.id]
        assert await answer(store, [rows[0]], Done()) == 1

    play(scene)


def test_a_cid_that_is_taken_refuses_the_whole_batch(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        first, second, third = new_transfer(), new_transfer(), new_transfer()
        await insert(store, first, cid="one")
        with pytest.raises(KeyTaken):
            await reserve(store, key_of(third, "two"), key_of(second, "one"))
        assert [t.id for t in await store.find([first.id, second.id, third.id])] == [first.id]
        other = new_transfer(owner=2)
        await insert(store, other, cid="one")
        known = (await store.look([(1, "one"), (2, "one"), (3, "one"), (1, "two")])).known
        found = [k and k.transfer and k.transfer.id for k in known]
        assert found == [first.id, other.id, None, None]
        assert [k and k.id for k in known] == found

    play(scene)


def test_racing_births_of_one_cid_make_one_transfer(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        async def bear(transfer: Transfer) -> bool:
            try:
                await insert(store, transfer, cid="same")
            except KeyTaken:
                return False
            return True

        racers = [new_transfer() for _ in range(6)]
        assert sum(await asyncio.gather(*map(bear, racers))) == 1
        assert len(await store.find([t.id for t in racers])) == 1

    play(scene)


def test_nothing_is_claimed_while_halted(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        await store.halt("the books differ", "auditor")
        assert await store.halted()
        assert await store.claim("venue", 1, OURS) == []
        async with store.transaction() as tx:
            assert (await tx.begun()).halted
        await store.resume("it was a drill", "operator")
        assert not await store.halted()
        assert len(await store.claim("venue", 1, OURS)) == 1

    play(scene)


def test_a_row_under_a_deadline_is_due_at_it_and_then_expired(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        transfer = new_transfer()
        async with store.transaction() as tx:
            await store.write(
                tx, moves_of([Move(None, transfer, delay_s=60.0, deadline_s=0.3)]), [False]
            )
        assert await store.claim("venue", 1, OURS) == []
        await asyncio.sleep(0.4)
        [late] = await store.claim("venue", 1, OURS)
        assert late.expired

    play(scene)


def test_the_life_of_a_transfer_takes_the_place_of_its_deadlines(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        transfer = new_transfer()
        async with store.transaction() as tx:
            move = Move(None, transfer, deadline_s=60.0, expiry=Expiry(after_s=0.5))
            await store.write(tx, moves_of([move]), [False])
        [asked] = await store.claim("venue", 1, OURS)
        assert not asked.expired
        onward = decide(FLOW, asked, Done(), DecisionContext())
        onward = replace(onward, delay_s=60.0, deadline_s=3600.0)
        async with store.transaction() as tx:
            await store.lock(tx, [asked])
            await store.write(tx, moves_of([onward]), [False])
        assert await store.claim("other", 1, OURS) == []
        await asyncio.sleep(0.6)
        [late] = await store.claim("other", 1, OURS)
        assert (late.version, late.expired) == (1, True)
        free = replace(decide(FLOW, late, Rejected("no"), DecisionContext()), deadline_s=None)
        async with store.transaction() as tx:
            await store.lock(tx, [late])
            await store.write(tx, moves_of([free]), [False])
        assert not (await one(store, asked.id)).expired

    play(scene)


def test_a_second_halt_keeps_its_reason_and_its_author(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        first = await store.halt("the books differ", "audit")
        second = await store.halt("the vault is open", "olga")
        shown = [(halt.id, halt.reason, halt.actor) for halt in await store.halts()]
        assert shown == [
            (first, "the books differ", "audit"),
            (second, "the vault is open", "olga"),
        ]
        [ended] = await store.resume("put right", "anna", [first])
        assert (ended.id, ended.actor) == (first, "audit")
        assert await store.halted(), "the second is still in force"
        assert await store.claim("venue", 1, OURS) == []
        assert await store.resume("once more", "anna", [first]) == []
        [ended] = await store.resume("closed", "anna", [second])
        assert ended.reason == "the vault is open"
        assert not await store.halted()
        assert len(await store.claim("venue", 1, OURS)) == 1

    play(scene)


def test_a_resume_without_a_name_ends_all_halts_and_lists_them(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        for reason in ("one", "two", "two"):
            await store.halt(reason, "olga")
        assert await store.resume("none of these", "anna", []) == []
        ended = await store.resume("all is well", "anna")
        assert [halt.reason for halt in ended] == ["one", "two", "two"]
        assert await store.halts() == []
        assert await store.resume("again", "anna") == []

    play(scene)


def test_a_refused_refund_is_a_new_question_that_waits(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [asked] = await store.claim("venue", 1, OURS)
        await answer(store, [asked], Done())
        await answer(store, [await one(store, asked.id)], Rejected("no"))
        await answer(store, [await one(store, asked.id)], Rejected("closed"))
        found = await one(store, asked.id)
        assert (found.state, found.version, found.paged) == ("COMPENSATING", 3, True)
        assert (found.undoes, found.retries, found.error) == (0, 1, "closed")
        assert await store.claim("venue", 1, OURS) == []

    play(scene)


def test_the_alarm_of_an_unknown_is_kept_as_paged(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [asked] = await store.claim("venue", 1, OURS)
        await answer(store, [asked], Unknown("KEY_REUSED", Alarm.PAGE))
        assert (await one(store, asked.id)).paged

    play(scene)


def test_an_unreachable_lane_is_noted_once_for_all_its_transfers(play: Play) -> None:
    async def scene(store: AnyStore) -> None:
        await insert(store, new_transfer())
        assert await store.outages() == []
        for attempts in (1, 2, 3):
            await store.note_outage("venue", "one", attempts, f"refused {attempts}")
        await store.note_outage("venue", "two", 1, "no route")
        [outage] = await store.outages()
        assert (outage.lane, outage.attempts, outage.reason) == ("venue", 3, "refused 3")
        assert list(outage.probed_us) == sorted(outage.probed_us)
        assert outage.since_us == outage.probed_us[0]
        assert outage.probes_since(outage.since_us) == 3, "it waited from the beginning"
        assert outage.probes_since(outage.probed_us[1]) == 1, "it came later"
        [waits] = await store.claim("venue", 1, OURS)
        assert (waits.retries, waits.error) == (0, None), "its own row says nothing of it"
        await store.end_outage("venue", "one")
        [left] = await store.outages()
        assert (left.attempts, left.reason) == (1, "no route")
        await store.end_outage("venue", "two")
        assert await store.outages() == []

    play(scene)


def test_an_outage_begins_anew_with_its_first_attempt_and_keeps_the_newest_times(
    play: Play,
) -> None:
    async def scene(store: AnyStore) -> None:
        for attempts in range(1, 131):
            await store.note_outage("venue", "one", attempts, "refused")
        [outage] = await store.outages()
        assert (outage.attempts, len(outage.probed_us)) == (130, 100)
        assert outage.since_us < outage.probed_us[0]
        assert outage.probes_since(outage.probed_us[-2]) == 1
        await store.note_outage("venue", "one", 1, "refused")
        [anew] = await store.outages()
        assert (anew.attempts, len(anew.probed_us)) == (1, 1)
        assert anew.since_us > outage.since_us

    play(scene)
