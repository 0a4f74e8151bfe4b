"""What the engine needs from a store, tested on PostgreSQL and on the twin."""

import asyncio
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.contracts.stores import (
    FLOW,
    OURS,
    AnyStore,
    RunScenario,
    answer,
    created,
    find_one,
    insert,
    key_of,
    new_transfer,
    reserve,
)
from tests.moves import moves_of
from tidegate.core.answers import Alarm, Done, Rejected, Unknown
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.kind import Transfer
from tidegate.core.ports import KeyTaken, StoreFault
from tidegate.core.transfer import Expiry, Move


def test_find_returns_what_was_inserted(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        first = new_transfer().replace(
            detail={"memo": "«½»"}, trace="t-1", cid="c", parent=UUID(int=5)
        )
        await insert(store, first)
        found = await find_one(store, first.id)
        times = {"created_us": found.created_us, "updated_us": found.updated_us}
        assert found.replace(waited_s=0.0) == first.replace(**times)
        assert found.created_us == found.updated_us > 1_700_000_000_000_000
        assert await store.find([UUID(int=1)]) == []

    run(scenario)


def test_a_claim_leases_each_row_once_and_counts_the_attempt(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, *(new_transfer() for _ in range(10)), new_transfer("elsewhere"))
        batches = await asyncio.gather(*(store.claim("venue", 4, OURS) for _ in range(4)))
        claimed = [t.id for batch in batches for t in batch]
        assert len(claimed) == len(set(claimed)) == 10
        assert all(t.attempts == 1 for batch in batches for t in batch)
        assert await store.claim("venue", 10, OURS) == []

    run(scenario)


def test_a_transfer_is_due_again_when_its_lease_expires(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [first] = await store.claim("venue", 1, OURS)
        await asyncio.sleep(store.lease_s + 0.1)
        [again] = await store.claim("venue", 1, OURS)
        assert (again.id, again.attempts) == (first.id, 2)
        assert again.waited_s > store.lease_s

    run(scenario)


def test_the_longest_due_is_claimed_first(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        order = []
        for _ in range(3):
            order.append(new_transfer())
            await insert(store, order[-1])
            await asyncio.sleep(0.01)
        claimed = [(await store.claim("venue", 1, OURS))[0].id for _ in order]
        assert claimed == [t.id for t in order]

    run(scenario)


def test_a_released_lease_is_due_now_unless_the_row_has_moved(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer(), new_transfer())
        kept, moved = await store.claim("venue", 2, OURS)
        await answer(store, [moved], Done())
        await store.release([kept, moved])
        assert [t.id for t in await store.claim("venue", 2, OURS)] == [kept.id]

    run(scenario)


def test_a_move_is_recorded_only_for_a_row_at_the_version_asked_about(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [claimed] = await store.claim("venue", 1, OURS)
        assert await answer(store, [claimed], Done()) == 1
        assert await answer(store, [claimed], Rejected("late")) == 0
        found = await find_one(store, claimed.id)
        assert (found.state, found.version, found.lane) == ("TARGET_PENDING", 1, "other")

    run(scenario)


def test_only_one_of_several_workers_moves_a_row(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [claimed] = await store.claim("venue", 1, OURS)
        moved = await asyncio.gather(*(answer(store, [claimed], Done()) for _ in range(6)))
        assert sum(moved) == 1
        assert (await find_one(store, claimed.id)).version == 1

    run(scenario)


def test_a_write_moves_all_rows_or_none(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer(), new_transfer())
        first, second = await store.claim("venue", 2, OURS)
        await answer(store, [second], Done())
        moves = [decide(FLOW, t, Done(), DecisionContext()) for t in (first, second)]
        with pytest.raises(StoreFault):
            async with store.transaction() as tx:
                await store.write(tx, moves_of(moves), [False] * len(moves))
        assert (await find_one(store, first.id)).version == 0

    run(scenario)


def test_a_failed_transaction_has_no_effect(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [claimed] = await store.claim("venue", 1, OURS)

        async def failing() -> None:
            async with store.transaction() as tx:
                fresh = await store.lock(tx, [claimed])
                await store.write(
                    tx,
                    moves_of([decide(FLOW, t, Done(), DecisionContext()) for t in fresh]),
                    [False],
                )
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        assert (await find_one(store, claimed.id)).version == 0
        assert await answer(store, [claimed], Done()) == 1

    run(scenario)


def test_an_end_has_no_lane_and_is_never_claimed_again(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [claimed] = await store.claim("venue", 1, OURS)
        await answer(store, [claimed], Rejected("INSUFFICIENT_BALANCE"))
        found = await find_one(store, claimed.id)
        assert (found.state, found.lane, found.error) == ("FAILED", None, "INSUFFICIENT_BALANCE")
        await asyncio.sleep(store.lease_s + 0.1)
        assert await store.claim("venue", 1, OURS) == []

    run(scenario)


def test_an_unknown_waits_its_delay_and_changes_nothing_else(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [claimed] = await store.claim("venue", 1, OURS)
        before = await find_one(store, claimed.id)
        await answer(store, [claimed], Unknown("timeout"))
        after = await find_one(store, claimed.id)
        assert after == before.replace(retries=1, waited_s=after.waited_s)
        await asyncio.sleep(store.lease_s + 0.1)
        assert await store.claim("venue", 1, OURS) == [], "the delay is longer than the lease"

    run(scenario)


def test_a_row_written_as_leased_is_not_claimed_by_others(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        kept, left = new_transfer(), new_transfer()
        async with store.transaction() as tx:
            rows = await store.write(tx, moves_of([created(kept), created(left)]), [True, False])
        assert [t.attempts for t in rows] == [1, 0]
        assert [t.id for t in await store.claim("venue", 5, OURS)] == [left.id]
        assert await answer(store, [rows[0]], Done()) == 1

    run(scenario)


def test_a_known_cid_refuses_its_batch(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
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

    run(scenario)


def test_concurrent_creations_with_one_cid_create_one_transfer(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        async def create(transfer: Transfer) -> bool:
            try:
                await insert(store, transfer, cid="same")
            except KeyTaken:
                return False
            return True

        racers = [new_transfer() for _ in range(6)]
        assert sum(await asyncio.gather(*map(create, racers))) == 1
        assert len(await store.find([t.id for t in racers])) == 1

    run(scenario)


def test_nothing_is_claimed_while_halted(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        await store.halt("the books differ", "auditor")
        assert await store.halted()
        assert await store.claim("venue", 1, OURS) == []
        async with store.transaction() as tx:
            assert (await tx.begun()).halted
        await store.resume("it was a drill", "operator")
        assert not await store.halted()
        assert len(await store.claim("venue", 1, OURS)) == 1

    run(scenario)


def test_a_row_with_a_deadline_is_due_and_expired_at_the_deadline(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        transfer = new_transfer()
        async with store.transaction() as tx:
            await store.write(
                tx, moves_of([Move(None, transfer, delay_s=60.0, deadline_s=0.3)]), [False]
            )
        assert await store.claim("venue", 1, OURS) == []
        await asyncio.sleep(0.4)
        [late] = await store.claim("venue", 1, OURS)
        assert late.expired

    run(scenario)


def test_the_expiry_of_a_transfer_replaces_its_deadlines(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        transfer = new_transfer()
        async with store.transaction() as tx:
            move = Move(None, transfer, deadline_s=60.0, expiry=Expiry(after_s=0.5))
            await store.write(tx, moves_of([move]), [False])
        [claimed] = await store.claim("venue", 1, OURS)
        assert not claimed.expired
        onward = decide(FLOW, claimed, Done(), DecisionContext())
        onward = replace(onward, delay_s=60.0, deadline_s=3600.0)
        async with store.transaction() as tx:
            await store.lock(tx, [claimed])
            await store.write(tx, moves_of([onward]), [False])
        assert await store.claim("other", 1, OURS) == []
        await asyncio.sleep(0.6)
        [late] = await store.claim("other", 1, OURS)
        assert (late.version, late.expired) == (1, True)
        free = replace(decide(FLOW, late, Rejected("no"), DecisionContext()), deadline_s=None)
        async with store.transaction() as tx:
            await store.lock(tx, [late])
            await store.write(tx, moves_of([free]), [False])
        assert not (await find_one(store, claimed.id)).expired

    run(scenario)


def test_each_halt_keeps_its_reason_and_actor(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
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

    run(scenario)


def test_a_resume_without_ids_ends_and_returns_all_halts(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        for reason in ("one", "two", "two"):
            await store.halt(reason, "olga")
        assert await store.resume("none of these", "anna", []) == []
        ended = await store.resume("all is well", "anna")
        assert [halt.reason for halt in ended] == ["one", "two", "two"]
        assert await store.halts() == []
        assert await store.resume("again", "anna") == []

    run(scenario)


def test_a_refused_refund_is_a_new_question_that_waits(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [claimed] = await store.claim("venue", 1, OURS)
        await answer(store, [claimed], Done())
        await answer(store, [await find_one(store, claimed.id)], Rejected("no"))
        await answer(store, [await find_one(store, claimed.id)], Rejected("closed"))
        found = await find_one(store, claimed.id)
        assert (found.state, found.version, found.paged) == ("COMPENSATING", 3, True)
        assert (found.undoes, found.retries, found.error) == (0, 1, "closed")
        assert await store.claim("venue", 1, OURS) == []

    run(scenario)


def test_an_unknown_with_a_page_alarm_marks_the_transfer_as_paged(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        [claimed] = await store.claim("venue", 1, OURS)
        await answer(store, [claimed], Unknown("KEY_REUSED", Alarm.PAGE))
        assert (await find_one(store, claimed.id)).paged

    run(scenario)


def test_an_outage_is_one_row_for_all_transfers_of_a_lane(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        await insert(store, new_transfer())
        assert await store.outages() == []
        for attempts in (1, 2, 3):
            await store.note_outage("venue", "one", attempts, f"refused {attempts}")
        await store.note_outage("venue", "two", 1, "no route")
        [outage] = await store.outages()
        assert (outage.lane, outage.attempts, outage.reason) == ("venue", 3, "refused 3")
        assert list(outage.probed_us) == sorted(outage.probed_us)
        assert outage.since_us == outage.probed_us[0]
        assert outage.probes_since(outage.since_us) == 3, "all probes count from the start"
        assert outage.probes_since(outage.probed_us[1]) == 1, "only later probes count"
        [waiting] = await store.claim("venue", 1, OURS)
        assert (waiting.retries, waiting.error) == (0, None), "the outage is not in the row"
        await store.end_outage("venue", "one")
        [left] = await store.outages()
        assert (left.attempts, left.reason) == (1, "no route")
        await store.end_outage("venue", "two")
        assert await store.outages() == []

    run(scenario)


def test_a_first_attempt_starts_a_new_outage_and_the_newest_times_are_kept(
    run: RunScenario,
) -> None:
    async def scenario(store: AnyStore) -> None:
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

    run(scenario)
