"""Workers that race for one row, and requests that race for one cid."""

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
from tidegate.engine.step import conclude
from tidegate.engine.write_batch import WriteBatch
from tidegate.systems.ledger import FUNDING

pytestmark = pytest.mark.slow


def test_a_stale_answer_that_leads_to_a_local_system_moves_nothing(play: Play) -> None:
    """Two workers asked the same question; the slower one's Done must not credit again."""

    async def scene(rig: Rig) -> None:
        engine = rig.engine()
        running = [asyncio.create_task(engine.request_queue.run())]
        transfer = await made(engine, request("out", 300))
        engine.request_queue.stop()
        await asyncio.gather(*running)
        answers = rig.outside.venue.execute(
            [Question(transfer.id, 0, Verb.DEBIT, transfer.parties["source"], ASSET, 300)]
        )
        for _ in range(2):
            await conclude(engine.context, WriteBatch([transfer], answers, "venue"))
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
        made_by = [made(engines[n % 3], each) for n, each in enumerate(wanted)]
        transfers = await asyncio.gather(*made_by)
        ended = await rig.ended(transfers)
        for engine in engines:
            await engine.stop()
        assert {t.state for t in ended} == {"COMMITTED"}
        flow = sum((1 if n % 2 else -1) * (1 + n % 7) for n in range(120))
        assert await rig.funding() == 1_000 + flow
        assert rig.venue_account(OWNER).available == 1_000 - flow

    play(scene)


def test_a_batch_with_one_cid_twice_makes_one_transfer(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            same = [engine.submit(request("in", 10, "same")) for _ in range(20)]
            other = [engine.submit(request("in", 11, "same")) for _ in range(3)]
            said = await asyncio.gather(*same, *other)
            receipts = [s for s in said[:20] if isinstance(s, Receipt)]
            assert len(receipts) == 20
            assert len({r.transfer.id for r in receipts}) == 1
            assert sum(not r.duplicate for r in receipts) == 1
            assert set(said[20:]) == {Refusal.IDEMPOTENCY_MISMATCH}
            await rig.ended([receipts[0].transfer])
            again = await engine.submit(request("in", 10, "same"))
        assert isinstance(again, Receipt)
        assert (again.duplicate, again.transfer.id) == (True, receipts[0].transfer.id)
        assert await rig.funding() == 990

    play(scene)


def test_a_stranger_before_it_in_the_batch_does_not_refuse_a_replay(play: Play) -> None:
    """Found by simulation: the first of a batch decided before the store was looked at."""

    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            first = await made(engine, request("in", 10, "same"))
            said = await asyncio.gather(
                engine.submit(request("in", 11, "same")), engine.submit(request("in", 10, "same"))
            )
            assert said[0] is Refusal.IDEMPOTENCY_MISMATCH
            assert isinstance(said[1], Receipt)
            assert (said[1].transfer.id, said[1].duplicate) == (first.id, True)

    play(scene)


def test_a_veto_is_for_what_is_new_and_not_for_a_replay(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        veto = Refusal.ASSET_SUSPENDED
        async with rig.engine() as engine:
            first = await made(engine, request("in", 10, "same"))
            replay = await engine.submit(request("in", 10, "same"), veto)
            assert isinstance(replay, Receipt)
            assert (replay.transfer.id, replay.duplicate) == (first.id, True)
            assert await engine.submit(request("in", 10, "new"), veto) is veto
            assert await engine.submit(request("in", 10), veto) is veto
            said = await asyncio.gather(
                engine.submit(request("in", 99, "both"), veto),
                engine.submit(request("in", 10, "both")),
            )
            assert said[0] is Refusal.IDEMPOTENCY_MISMATCH
            assert isinstance(said[1], Receipt)
        assert await rig.funding() == 1_000 - 20

    play(scene)


def test_two_engines_asked_with_one_cid_make_one_transfer(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine(1) as one, rig.engine(2) as two:
            asked = [e.submit(request("in", 10, "same")) for e in (one, two) * 10]
            said = await asyncio.gather(*asked)
            receipts = [s for s in said if isinstance(s, Receipt)]
            assert len(receipts) == 20
            assert len({r.transfer.id for r in receipts}) == 1
            await rig.ended([receipts[0].transfer])
        assert await rig.funding() == 990

    play(scene)


def test_opposite_transfers_do_not_deadlock(play: Play) -> None:
    """A → B against B → A, between books of one ledger, from two engines at once."""

    async def scene(rig: Rig) -> None:
        await rig.endow(1_000, owner=8)

        def between(n: int) -> Request:
            a, b = Party("ledger", FUNDING, 7), Party("ledger", FUNDING, 8)
            source, target = (a, b) if n % 2 else (b, a)
            parties = {"source": source, "target": target}
            return Request(source.owner, "internal_transfer", parties, ASSET, 5)

        async with rig.engine(1) as one, rig.engine(2) as two:
            both = [made((one, two)[n % 3 % 2], between(n)) for n in range(200)]
            ended = await rig.ended(await asyncio.gather(*both))
        assert {t.state for t in ended} == {"COMMITTED"}
        assert (await rig.funding(7), await rig.funding(8)) == (1_000, 1_000)
        assert not [a for a in rig.alerts if a.alarm > Alarm.NONE]

    play(scene)
