"""One bad row stays in its state and pages; the other rows of its batch go on."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.engine.rig import OWNER, Execute, Play, Refusing, Rig, made, request
from tidegate.core.answers import Alarm, Answer
from tidegate.core.ports import StoreFault
from tidegate.core.transfer import Question
from tidegate.engine.pending_request import Receipt

pytestmark = pytest.mark.slow


def test_one_question_that_raises_does_not_hold_back_the_others(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async def twist(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            if any(question.amount == 13 for question in questions):
                raise KeyError("no such account")
            return execute()

        rig.outside.twist = twist
        async with rig.engine() as engine:
            await rig.ended([await made(engine, request("in", 1))])
            amounts = [13 if n == 70 else 1 for n in range(200)]
            transfers = await asyncio.gather(*(made(engine, request("in", a)) for a in amounts))
            ended = await rig.ended([t for t in transfers if t.amount == 1])
            assert {t.state for t in ended} == {"COMMITTED"}
            [stuck] = await rig.store.find([t.id for t in transfers if t.amount == 13])
            assert stuck.state == "TARGET_PENDING"
            rig.outside.twist = None
            await rig.ended([stuck])
        assert await rig.funding() == 1_000 - 213

    play(scene)


def test_one_row_that_cannot_be_recorded_does_not_hold_back_999(play: Play, database: str) -> None:
    async def scene(rig: Rig) -> None:
        released = asyncio.Event()

        async def twist(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            await released.wait()
            return execute()

        rig.outside.twist = twist
        async with rig.engine() as engine:
            calls = [made(engine, request("in", 1)) for _ in range(1_000)]
            transfers = await asyncio.gather(*calls)
            poison = transfers[500].id
            refuse(rig, database, poison)
            released.set()
            ended = await rig.ended([t for t in transfers if t.id != poison])
            assert len(ended) == 999
            assert {t.state for t in ended} == {"COMMITTED"}
            [stuck] = await rig.store.find([poison])
            assert stuck.state == "TARGET_PENDING"
            paged = [a for a in rig.alerts if a.alarm is Alarm.PAGE]
            assert {a.transfer_id for a in paged} == {poison}
            refuse(rig, database, None)
            [last] = await rig.ended([stuck])
        assert last.state == "COMMITTED"
        assert (await rig.funding(), rig.venue_account(OWNER).available) == (0, 2_000)

    play(scene)


def refuse(rig: Rig, database: str, poison: UUID | None) -> None:
    """Make the store refuse the answers of one transfer. With None, stop refusing."""
    if isinstance(rig.store, Refusing):
        rig.store.refused = poison
        return
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"SET search_path TO {SCHEMA}")  # type: ignore[arg-type, unused-ignore]
        owner.execute("ALTER TABLE history DROP CONSTRAINT IF EXISTS poison")
        if poison is not None:
            check = f"CHECK (transfer_id <> '{poison}' OR version = 0)"
            change = f"ALTER TABLE history ADD CONSTRAINT poison {check}"
            owner.execute(change)  # type: ignore[arg-type, unused-ignore]


def test_when_a_local_system_raises_only_the_request_that_caused_it_fails(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.raise_on_thirteen()
        async with rig.engine() as engine:
            calls = [engine.submit(request("in", 13 if n == 5 else 1)) for n in range(20)]
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert [n for n, r in enumerate(results) if not isinstance(r, Receipt)] == [5]
        assert isinstance(results[5], StoreFault)
        assert await rig.funding() == 1_000 - 19

    play(scene)
