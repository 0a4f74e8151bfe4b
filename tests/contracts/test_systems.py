"""What we ask of our own systems beyond the certificate: which words, which alarms, how exactly.

That they keep every promise of the certificate is tried in tests/certify.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from tests.contracts.surroundings import Place
from tests.contracts.systems import DESKS, OWNER, Desk, fund, question
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.refusals import Doubt, Reason
from tidegate.core.transfer import Question

Scene: TypeAlias = Callable[[Desk], Awaitable[None]]
Play: TypeAlias = Callable[[Scene], None]

# What keeps its own refusals; the other proves each by a void, and says so in other words.
KEEPING = [name for name in DESKS if name != "forgetful http"]
# A service that we do not write keeps only the accounts it has; these are ours to open and close.
OURS = [name for name in KEEPING if name != "http"]


@pytest.fixture(params=KEEPING)
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


async def ask(desk: Desk, asked: Question) -> Answer:
    return (await desk.ask([asked]))[0]


async def refused(desk: Desk, asked: Question, reason: Reason) -> None:
    answer = await ask(desk, asked)
    assert isinstance(answer, Rejected)
    assert answer.reason == reason
    assert await ask(desk, asked) == answer


def undo(original: Question, version: int = 1, *, expect_done: bool = True) -> Question:
    return replace(original, version=version, verb=Verb.REFUND, undoes=0, expect_done=expect_done)


def test_a_duplicate_gets_the_very_same_answer(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        for verb in (Verb.DEBIT, Verb.CREDIT):
            asked = question(desk, verb, 40)
            first = await desk.ask([asked])
            assert isinstance(first[0], Done)
            assert await desk.ask([asked]) == first

    play(scene)


def test_all_who_race_with_one_key_hear_that_it_is_done(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked, twice = question(desk, Verb.DEBIT, 10), question(desk, Verb.DEBIT, 10)
        answers = await asyncio.gather(*(desk.ask([asked]) for _ in range(8)))
        assert all(isinstance(answer, Done) for [answer] in answers)
        assert all(isinstance(answer, Done) for answer in await desk.ask([twice, twice]))
        assert await desk.balance(OWNER) == 80

    play(scene)


def test_racing_debits_are_answered_at_once(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = [question(desk, Verb.DEBIT, 15) for _ in range(12)]
        answers = await asyncio.gather(*(desk.ask([each]) for each in asked))
        assert sum(isinstance(answer, Done) for [answer] in answers) == 6
        assert sum(isinstance(answer, Rejected) for [answer] in answers) == 6

    play(scene)


def test_a_refusal_says_why_and_says_it_again_after_a_top_up(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked, undone = question(desk, Verb.DEBIT, 101), question(desk, Verb.DEBIT, 40)
        await refused(desk, asked, Reason.INSUFFICIENT_BALANCE)
        assert isinstance(await ask(desk, undo(undone, expect_done=False)), Done)
        await fund(desk, 1000)
        await refused(desk, asked, Reason.INSUFFICIENT_BALANCE)
        await refused(desk, undone, Reason.UNDONE)

    play(scene)


def test_a_doubt_calls_as_loudly_as_it_should(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = question(desk, Verb.DEBIT, 40)
        unfounded = await ask(desk, undo(asked))
        assert isinstance(unfounded, Unknown)
        assert unfounded.alarm is Alarm.HALT
        assert Doubt.UNDO_UNFOUNDED in unfounded.reason
        await ask(desk, asked)
        reused = await ask(desk, replace(asked, amount=41))
        assert isinstance(reused, Unknown)
        assert reused.alarm is Alarm.PAGE
        assert Doubt.KEY_REUSED in reused.reason

    play(scene)


def test_a_refusal_can_be_looked_up_by_its_key(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        done, no = question(desk, Verb.DEBIT, 40), question(desk, Verb.DEBIT, 400)
        await desk.ask([done, no])
        assert isinstance(await desk.query(done), Done)
        assert isinstance(await desk.query(no), Rejected)

    play(scene)


def test_a_frozen_account_takes_credits(play_ours: Play) -> None:
    async def scene(desk: Desk) -> None:
        await desk.set_status(OWNER, "FROZEN")
        await refused(desk, question(desk, Verb.DEBIT, 1), Reason.ACCOUNT_FROZEN)
        assert isinstance(await ask(desk, question(desk, Verb.CREDIT, 5)), Done)
        assert await desk.balance(OWNER) == 105

    play_ours(scene)


def test_a_disabled_account_says_so(play_ours: Play) -> None:
    async def scene(desk: Desk) -> None:
        await desk.set_status(OWNER, "DISABLED")
        for verb in (Verb.DEBIT, Verb.CREDIT):
            await refused(desk, question(desk, verb, 1), Reason.ACCOUNT_DISABLED)

    play_ours(scene)


def test_an_account_that_is_not_there_is_not_found(play_ours: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = question(desk, Verb.DEBIT, 1, owner=99)
        await refused(desk, asked, Reason.SOURCE_ACCOUNT_NOT_FOUND)
        await fund(desk, 50, owner=99)
        await refused(desk, asked, Reason.SOURCE_ACCOUNT_NOT_FOUND)

    play_ours(scene)


@pytest.mark.parametrize("verb", [Verb.DEBIT, Verb.CREDIT])
def test_an_owner_who_is_none_is_refused_for_ever_by_every_system(play: Play, verb: Verb) -> None:
    async def scene(desk: Desk) -> None:
        nobody = replace(question(desk, verb, 5, owner=0), opens=verb is Verb.CREDIT)
        await refused(desk, nobody, Reason.INVALID_OWNER)
        # An undo is never refused for its account.
        if verb is Verb.DEBIT:
            assert isinstance(await ask(desk, undo(nobody, expect_done=False)), Done)

    play(scene)


def test_an_asset_that_does_not_exist_is_refused_for_ever(play_ours: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = replace(question(desk, Verb.CREDIT, 5), asset_id=777, opens=True)
        await refused(desk, asked, Reason.INVALID_ASSET)
        taken = replace(question(desk, Verb.DEBIT, 5), asset_id=777)
        answer = await ask(desk, taken)
        # Where accounts are looked up first, nobody has one of it.
        assert isinstance(answer, Rejected)
        assert answer.reason in (Reason.INVALID_ASSET, Reason.SOURCE_ACCOUNT_NOT_FOUND)
        assert await ask(desk, taken) == answer
        assert isinstance(await ask(desk, undo(taken, expect_done=False)), Done)
        assert await desk.balance(OWNER) == 100

    play_ours(scene)
