"""Tests of our own systems beyond the certificate: their reasons, alarms and exact answers.

tests/certify runs the certificate itself on them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from tests.contracts.bench_setup import BenchSetup
from tests.contracts.systems import BENCHES, OWNER, SystemBench, fund, question
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.refusals import Doubt, Reason
from tidegate.core.transfer import Question

Scenario: TypeAlias = Callable[[SystemBench], Awaitable[None]]
RunScenario: TypeAlias = Callable[[Scenario], None]

# Systems that store their refusals. The other one proves a refusal by a void, with other reasons.
KEEPING = [name for name in BENCHES if name != "forgetful http"]
# Systems whose accounts the tests can open and close. A remote service has a fixed set of them.
OURS = [name for name in KEEPING if name != "http"]


@pytest.fixture(params=KEEPING)
def run(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> RunScenario:
    return _runner(request.param, database, tmp_path)


@pytest.fixture(params=OURS)
def run_ours(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> RunScenario:
    return _runner(request.param, database, tmp_path)


def _runner(name: str, database: str, directory: Path) -> RunScenario:
    async def opened_and_run(scenario: Scenario) -> None:
        async with BENCHES[name](BenchSetup(database, directory)) as bench:
            await fund(bench, 100)
            await scenario(bench)

    return lambda scenario: asyncio.run(opened_and_run(scenario))


async def ask(bench: SystemBench, asked: Question) -> Answer:
    return (await bench.ask([asked]))[0]


async def check_refused(bench: SystemBench, asked: Question, reason: Reason) -> None:
    """The refusal must be the same when the question is asked again."""
    answer = await ask(bench, asked)
    assert isinstance(answer, Rejected)
    assert answer.reason == reason
    assert await ask(bench, asked) == answer


def undo(original: Question, version: int = 1, *, expect_done: bool = True) -> Question:
    return replace(original, version=version, verb=Verb.REFUND, undoes=0, expect_done=expect_done)


def test_a_duplicate_gets_the_same_answer(run: RunScenario) -> None:
    async def scenario(bench: SystemBench) -> None:
        for verb in (Verb.DEBIT, Verb.CREDIT):
            asked = question(bench, verb, 40)
            first = await bench.ask([asked])
            assert isinstance(first[0], Done)
            assert await bench.ask([asked]) == first

    run(scenario)


def test_concurrent_duplicates_all_get_done(run: RunScenario) -> None:
    async def scenario(bench: SystemBench) -> None:
        asked, twice = question(bench, Verb.DEBIT, 10), question(bench, Verb.DEBIT, 10)
        answers = await asyncio.gather(*(bench.ask([asked]) for _ in range(8)))
        assert all(isinstance(answer, Done) for [answer] in answers)
        assert all(isinstance(answer, Done) for answer in await bench.ask([twice, twice]))
        assert await bench.balance(OWNER) == 80

    run(scenario)


def test_concurrent_debits_are_answered_without_retries(run: RunScenario) -> None:
    async def scenario(bench: SystemBench) -> None:
        asked = [question(bench, Verb.DEBIT, 15) for _ in range(12)]
        answers = await asyncio.gather(*(bench.ask([each]) for each in asked))
        assert sum(isinstance(answer, Done) for [answer] in answers) == 6
        assert sum(isinstance(answer, Rejected) for [answer] in answers) == 6

    run(scenario)


def test_a_refusal_keeps_its_reason_after_a_deposit(run: RunScenario) -> None:
    async def scenario(bench: SystemBench) -> None:
        asked, undone = question(bench, Verb.DEBIT, 101), question(bench, Verb.DEBIT, 40)
        await check_refused(bench, asked, Reason.INSUFFICIENT_BALANCE)
        assert isinstance(await ask(bench, undo(undone, expect_done=False)), Done)
        await fund(bench, 1000)
        await check_refused(bench, asked, Reason.INSUFFICIENT_BALANCE)
        await check_refused(bench, undone, Reason.UNDONE)

    run(scenario)


def test_each_doubt_has_its_alarm(run: RunScenario) -> None:
    async def scenario(bench: SystemBench) -> None:
        asked = question(bench, Verb.DEBIT, 40)
        unfounded = await ask(bench, undo(asked))
        assert isinstance(unfounded, Unknown)
        assert unfounded.alarm is Alarm.HALT
        assert Doubt.UNDO_UNFOUNDED in unfounded.reason
        await ask(bench, asked)
        reused = await ask(bench, replace(asked, amount=41))
        assert isinstance(reused, Unknown)
        assert reused.alarm is Alarm.PAGE
        assert Doubt.KEY_REUSED in reused.reason

    run(scenario)


def test_a_refusal_can_be_looked_up_by_its_key(run: RunScenario) -> None:
    async def scenario(bench: SystemBench) -> None:
        small, large = question(bench, Verb.DEBIT, 40), question(bench, Verb.DEBIT, 400)
        await bench.ask([small, large])
        assert isinstance(await bench.query(small), Done)
        assert isinstance(await bench.query(large), Rejected)

    run(scenario)


def test_a_frozen_account_takes_credits(run_ours: RunScenario) -> None:
    async def scenario(bench: SystemBench) -> None:
        await bench.set_status(OWNER, "FROZEN")
        await check_refused(bench, question(bench, Verb.DEBIT, 1), Reason.ACCOUNT_FROZEN)
        assert isinstance(await ask(bench, question(bench, Verb.CREDIT, 5)), Done)
        assert await bench.balance(OWNER) == 105

    run_ours(scenario)


def test_a_disabled_account_refuses_with_its_reason(run_ours: RunScenario) -> None:
    async def scenario(bench: SystemBench) -> None:
        await bench.set_status(OWNER, "DISABLED")
        for verb in (Verb.DEBIT, Verb.CREDIT):
            await check_refused(bench, question(bench, verb, 1), Reason.ACCOUNT_DISABLED)

    run_ours(scenario)


def test_an_account_that_does_not_exist_is_refused(run_ours: RunScenario) -> None:
    async def scenario(bench: SystemBench) -> None:
        asked = question(bench, Verb.DEBIT, 1, owner=99)
        await check_refused(bench, asked, Reason.SOURCE_ACCOUNT_NOT_FOUND)
        await fund(bench, 50, owner=99)
        await check_refused(bench, asked, Reason.SOURCE_ACCOUNT_NOT_FOUND)

    run_ours(scenario)


@pytest.mark.parametrize("verb", [Verb.DEBIT, Verb.CREDIT])
def test_an_invalid_owner_is_refused_for_ever_by_every_system(run: RunScenario, verb: Verb) -> None:
    async def scenario(bench: SystemBench) -> None:
        ownerless = replace(question(bench, verb, 5, owner=0), opens=verb is Verb.CREDIT)
        await check_refused(bench, ownerless, Reason.INVALID_OWNER)
        # An undo is never check_refused for its account.
        if verb is Verb.DEBIT:
            assert isinstance(await ask(bench, undo(ownerless, expect_done=False)), Done)

    run(scenario)


def test_an_asset_that_does_not_exist_is_refused_for_ever(run_ours: RunScenario) -> None:
    async def scenario(bench: SystemBench) -> None:
        asked = replace(question(bench, Verb.CREDIT, 5), asset_id=777, opens=True)
        await check_refused(bench, asked, Reason.INVALID_ASSET)
        debit = replace(question(bench, Verb.DEBIT, 5), asset_id=777)
        answer = await ask(bench, debit)
        # A system that looks up the account first finds no account of this asset.
        assert isinstance(answer, Rejected)
        assert answer.reason in (Reason.INVALID_ASSET, Reason.SOURCE_ACCOUNT_NOT_FOUND)
        assert await ask(bench, debit) == answer
        assert isinstance(await ask(bench, undo(debit, expect_done=False)), Done)
        assert await bench.balance(OWNER) == 100

    run_ours(scenario)
