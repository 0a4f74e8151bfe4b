"""Workers that compete for one row, and requests that compete for one cid."""

import asyncio

import pytest

from tests.engine.rig import (
    ASSET,
    OWNER,
    Play,
    Rig,
    made,
    request,
)
from tidegate.core.answers import Alarm
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.core.transfer import Question
from tidegate.engine.pending_request import Receipt
from tidegate.engine.step import record_answers
from tidegate.engine.write_batch import WriteBatch
from tidegate.systems.ledger import FUNDING

pytestmark = pytest.mark.slow


def test_a_stale_answer_that_leads_to_a_local_system_moves_nothing(play: Play) -> None:
    """Two workers asked the same question; the slower one's Done must not credit again."""

    async def scene(rig: Rig) -> None:
        engine = rig.engine()
        queue_loop = asyncio.create_task(engine.request_queue.run())
        transfer = await made(engine, request("out", 300))
        engine.request_queue.stop()
        await queue_loop
        answers = rig.outside.venue.execute(
            [Question(transfer.id, 0, Verb.DEBIT, transfer.parties["source"], ASSET, 300)]
        )
        for _ in range(2):
            await record_answers(engine.context, WriteBatch([transfer], answers, "venue"))
        assert await rig.funding() == 1_300
        [ended] = await rig.store.find([transfer.id])
        assert (ended.state, ended.version) == ("COMMITTED", 2)

    play(scene)


def test_many_engines_on_one_store_end_every_transfer_once(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        engines = [rig.engine(seed) for seed in range(3)]
        for engine in engines:
            await engine.__aenter__()
        wanted = [request(("in", "out")[n % 2], 1 + n % 7, f"c{n}") for n in range(120)]
        calls = [made(engines[n % 3], request_) for n, request_ in enumerate(wanted)]
        transfers = await asyncio.gather(*calls)
        ended = await rig.ended(transfers)
        for engine in engines:
            await engine.stop()
        assert {t.state for t in ended} == {"COMMITTED"}
        net = sum((1 if n % 2 else -1) * (1 + n % 7) for n in range(120))
        assert await rig.funding() == 1_000 + net
        assert rig.venue_account(OWNER).available == 1_000 - net

    play(scene)


def test_requests_with_one_cid_in_a_batch_create_one_transfer(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            same = [engine.submit(request("in", 10, "same")) for _ in range(20)]
            other = [engine.submit(request("in", 11, "same")) for _ in range(3)]
            results = await asyncio.gather(*same, *other)
            receipts = [r for r in results[:20] if isinstance(r, Receipt)]
            assert len(receipts) == 20
            assert len({r.transfer.id for r in receipts}) == 1
            assert sum(not r.duplicate for r in receipts) == 1
            assert set(results[20:]) == {Refusal.IDEMPOTENCY_MISMATCH}
            await rig.ended([receipts[0].transfer])
            replay = await engine.submit(request("in", 10, "same"))
        assert isinstance(replay, Receipt)
        assert (replay.duplicate, replay.transfer.id) == (True, receipts[0].transfer.id)
        assert await rig.funding() == 990

    play(scene)


def test_a_different_request_with_the_cid_earlier_in_the_batch_does_not_refuse_a_replay(
    play: Play,
) -> None:
    """Found by simulation: the first of a batch was decided before the store was read."""

    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            first = await made(engine, request("in", 10, "same"))
            results = await asyncio.gather(
                engine.submit(request("in", 11, "same")), engine.submit(request("in", 10, "same"))
            )
            assert results[0] is Refusal.IDEMPOTENCY_MISMATCH
            assert isinstance(results[1], Receipt)
            assert (results[1].transfer.id, results[1].duplicate) == (first.id, True)

    play(scene)


def test_a_veto_refuses_a_new_request_but_not_a_replay(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        veto = Refusal.ASSET_SUSPENDED
        async with rig.engine() as engine:
            first = await made(engine, request("in", 10, "same"))
            replay = await engine.submit(request("in", 10, "same"), veto)
            assert isinstance(replay, Receipt)
            assert (replay.transfer.id, replay.duplicate) == (first.id, True)
            assert await engine.submit(request("in", 10, "new"), veto) is veto
            assert await engine.submit(request("in", 10), veto) is veto
            results = await asyncio.gather(
                engine.submit(request("in", 99, "both"), veto),
                engine.submit(request("in", 10, "both")),
            )
            assert results[0] is Refusal.IDEMPOTENCY_MISMATCH
            assert isinstance(results[1], Receipt)
        assert await rig.funding() == 1_000 - 20

    play(scene)


def test_requests_with_one_cid_to_two_engines_create_one_transfer(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine(1) as first, rig.engine(2) as second:
            calls = [engine.submit(request("in", 10, "same")) for engine in (first, second) * 10]
            results = await asyncio.gather(*calls)
            receipts = [r for r in results if isinstance(r, Receipt)]
            assert len(receipts) == 20
            assert len({r.transfer.id for r in receipts}) == 1
            await rig.ended([receipts[0].transfer])
        assert await rig.funding() == 990

    play(scene)


def test_opposite_transfers_do_not_deadlock(play: Play) -> None:
    """A → B and B → A at once, between books of one ledger, from two engines."""

    async def scene(rig: Rig) -> None:
        await rig.endow(1_000, owner=8)

        def between(n: int) -> Request:
            a, b = Party("ledger", FUNDING, 7), Party("ledger", FUNDING, 8)
            source, target = (a, b) if n % 2 else (b, a)
            parties = {"source": source, "target": target}
            return Request(source.owner, "internal_transfer", parties, ASSET, 5)

        async with rig.engine(1) as first, rig.engine(2) as second:
            calls = [made((first, second)[n % 3 % 2], between(n)) for n in range(200)]
            ended = await rig.ended(await asyncio.gather(*calls))
        assert {t.state for t in ended} == {"COMMITTED"}
        assert (await rig.funding(7), await rig.funding(8)) == (1_000, 1_000)
        assert not [a for a in rig.alerts if a.alarm > Alarm.NONE]

    play(scene)
