"""What every system with money promises, put to each of them and to their twins."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from tests.contracts.desks import DESKS, OWNER, Desk, Place, fund, question
from tidegate.core.answers import Alarm, Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.refusals import Reason
from tidegate.core.transfer import Question

Scene: TypeAlias = Callable[[Desk], Awaitable[None]]
Play: TypeAlias = Callable[[Scene], None]

# A service that we do not write keeps only the accounts it has; these are ours to open and close.
OURS = [name for name in DESKS if name != "http"]


@pytest.fixture(params=DESKS)
def play(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Play:
    return _play(request.param, database, tmp_path)


@pytest.fixture(params=OURS)
def play_ours(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Play:
    return _play(request.param, database, tmp_path)


def _play(name: str, database: str, directory: Path) -> Play:
    async def whole(scene: Scene) -> None:
        async with DESKS[name](Place(database, directory)) as desk:
            await fund(desk, 100)
            await scene(desk)

    return lambda scene: asyncio.run(whole(scene))


def undo(original: Question, version: int = 1, *, expect_done: bool = True) -> Question:
    return replace(original, version=version, verb=Verb.REFUND, undoes=0, expect_done=expect_done)


def test_a_duplicate_gets_the_same_answer_and_no_second_effect(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        for verb, after in ((Verb.DEBIT, 60), (Verb.CREDIT, 100)):
            asked = question(desk, verb, 40)
            first = await desk.ask([asked])
            assert isinstance(first[0], Done)
            assert await desk.ask([asked]) == first
            assert await desk.balance(OWNER) == after

    play(scene)


def test_the_same_key_twice_in_one_batch_has_one_effect(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = question(desk, Verb.DEBIT, 40)
        assert all(isinstance(a, Done) for a in await desk.ask([asked, asked]))
        assert await desk.balance(OWNER) == 60

    play(scene)


def test_a_late_duplicate_after_the_end_changes_nothing(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = question(desk, Verb.DEBIT, 40)
        await desk.ask([asked])
        assert isinstance((await desk.ask([undo(asked)]))[0], Done)
        for late in (asked, undo(asked), asked):
            await desk.ask([late])
            assert await desk.balance(OWNER) == 100

    play(scene)


def test_the_same_key_with_another_amount_is_unknown_and_pages(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = question(desk, Verb.DEBIT, 40)
        await desk.ask([asked])
        [answer] = await desk.ask([replace(asked, amount=41)])
        assert isinstance(answer, Unknown)
        assert answer.alarm is Alarm.PAGE
        assert await desk.balance(OWNER) == 60

    play(scene)


def test_a_refusal_stays_a_refusal_after_a_top_up(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = question(desk, Verb.DEBIT, 101)
        [refused] = await desk.ask([asked])
        assert isinstance(refused, Rejected)
        assert refused.reason == Reason.INSUFFICIENT_BALANCE
        await fund(desk, 1000)
        assert await desk.ask([asked]) == [refused]
        assert await desk.balance(OWNER) == 1100

    play(scene)


def test_an_undo_before_its_original_leaves_a_tombstone(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = question(desk, Verb.DEBIT, 40)
        assert isinstance((await desk.ask([undo(asked, expect_done=False)]))[0], Done)
        [late] = await desk.ask([asked])
        assert isinstance(late, Rejected)
        assert late.reason == Reason.UNDONE
        assert await desk.balance(OWNER) == 100

    play(scene)


def test_a_second_undo_under_another_key_is_done_and_moves_nothing(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = question(desk, Verb.DEBIT, 40)
        await desk.ask([asked])
        for version in (1, 2, 3):
            assert isinstance((await desk.ask([undo(asked, version)]))[0], Done)
        assert await desk.balance(OWNER) == 100

    play(scene)


def test_an_undo_of_what_was_never_done_halts_and_stores_nothing(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        unseen, refused = question(desk, Verb.DEBIT, 40), question(desk, Verb.DEBIT, 999)
        await desk.ask([refused])
        for asked in (unseen, refused):
            [answer] = await desk.ask([undo(asked)])
            assert isinstance(answer, Unknown)
            assert answer.alarm is Alarm.HALT
        assert isinstance((await desk.ask([unseen]))[0], Done)
        assert await desk.balance(OWNER) == 60

    play(scene)


def test_a_refusal_of_one_never_refuses_another(play_ours: Play) -> None:
    async def scene(desk: Desk) -> None:
        amounts = (60, 60, 30, 11, 10)
        answers = await desk.ask([question(desk, Verb.DEBIT, amount) for amount in amounts])
        assert [isinstance(a, Done) for a in answers] == [True, False, True, False, True]
        assert await desk.balance(OWNER) == 0

    play_ours(scene)


def test_money_that_comes_in_a_batch_can_leave_in_it(play_ours: Play) -> None:
    async def scene(desk: Desk) -> None:
        batch = [
            question(desk, verb, amount)
            for verb, amount in ((Verb.DEBIT, 100), (Verb.CREDIT, 50), (Verb.DEBIT, 50))
        ]
        assert all(isinstance(answer, Done) for answer in await desk.ask(batch))
        assert await desk.balance(OWNER) == 0

    play_ours(scene)


def test_two_sessions_racing_one_key_make_one_effect(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = question(desk, Verb.DEBIT, 10)
        answers = await asyncio.gather(*(desk.ask([asked]) for _ in range(8)))
        assert all(isinstance(answer, Done) for [answer] in answers)
        assert await desk.balance(OWNER) == 90

    play(scene)


def test_racing_debits_never_overdraw(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = [question(desk, Verb.DEBIT, 15) for _ in range(12)]
        answers = await asyncio.gather(*(desk.ask([each]) for each in asked))
        assert sum(isinstance(answer, Done) for [answer] in answers) == 6
        assert await desk.balance(OWNER) == 10

    play(scene)


def test_a_frozen_account_refuses_debits_and_takes_refunds(play_ours: Play) -> None:
    async def scene(desk: Desk) -> None:
        before = question(desk, Verb.DEBIT, 40)
        await desk.ask([before])
        await desk.set_status(OWNER, "FROZEN")
        [refused] = await desk.ask([question(desk, Verb.DEBIT, 1)])
        assert isinstance(refused, Rejected)
        assert refused.reason == Reason.ACCOUNT_FROZEN
        assert isinstance((await desk.ask([undo(before)]))[0], Done)
        assert await desk.balance(OWNER) == 100

    play_ours(scene)


def test_a_disabled_account_refuses_all_but_refunds(play_ours: Play) -> None:
    async def scene(desk: Desk) -> None:
        before = question(desk, Verb.DEBIT, 40)
        await desk.ask([before])
        await desk.set_status(OWNER, "DISABLED")
        for verb in (Verb.DEBIT, Verb.CREDIT):
            [refused] = await desk.ask([question(desk, verb, 1)])
            assert isinstance(refused, Rejected)
            assert refused.reason == Reason.ACCOUNT_DISABLED
        assert isinstance((await desk.ask([undo(before)]))[0], Done)
        assert await desk.balance(OWNER) == 100

    play_ours(scene)


def test_a_frozen_account_takes_credits(play_ours: Play) -> None:
    async def scene(desk: Desk) -> None:
        await desk.set_status(OWNER, "FROZEN")
        assert isinstance((await desk.ask([question(desk, Verb.CREDIT, 5)]))[0], Done)
        assert await desk.balance(OWNER) == 105

    play_ours(scene)


def test_there_is_nothing_to_take_from_an_account_that_is_not_there(play_ours: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = question(desk, Verb.DEBIT, 1, owner=99)
        [refused] = await desk.ask([asked])
        assert isinstance(refused, Rejected)
        assert refused.reason == Reason.SOURCE_ACCOUNT_NOT_FOUND
        await fund(desk, 50, owner=99)
        assert await desk.ask([asked]) == [refused]

    play_ours(scene)


@pytest.mark.parametrize("amount", [0, 2**127])
def test_an_amount_out_of_range_moves_nothing(play_ours: Play, amount: int) -> None:
    async def scene(desk: Desk) -> None:
        for verb in (Verb.DEBIT, Verb.CREDIT):
            [answer] = await desk.ask([question(desk, verb, amount)])
            assert not isinstance(answer, Done)
        assert await desk.balance(OWNER) == 100

    play_ours(scene)


def test_a_void_refuses_what_is_undecided_and_leaves_what_is_decided(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        for verb in (Verb.DEBIT, Verb.CREDIT):
            open_, done = question(desk, verb, 10), question(desk, verb, 10)
            await desk.ask([done])
            before = await desk.balance(OWNER)
            [voided] = await desk.ask([replace(open_, void=True)])
            assert isinstance(voided, Rejected)
            [late] = await desk.ask([open_])
            assert isinstance(late, Rejected), "the late original finds the refusal"
            [kept] = await desk.ask([replace(done, void=True)])
            assert isinstance(kept, Done)
            assert await desk.balance(OWNER) == before

    play(scene)


def test_a_question_can_be_looked_up_by_its_key(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        done, refused = question(desk, Verb.DEBIT, 40), question(desk, Verb.DEBIT, 400)
        assert await desk.query(done) is None
        await desk.ask([done, refused])
        assert isinstance(await desk.query(done), Done)
        assert isinstance(await desk.query(refused), Rejected)
        assert await desk.balance(OWNER) == 60

    play(scene)
