"""The features of the ledger alone: holds, books with special rules, and stored balances."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.contracts.bench_setup import BenchSetup
from tests.contracts.ledger_systems import LedgerBench, MemoryLedgerBench
from tests.contracts.systems import BENCHES, OWNER, fund, question
from tidegate.core.account import Account
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.refusals import Doubt, Reason
from tidegate.core.transfer import Question
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE
from tidegate.systems.ledger.judge import (
    LedgerBalance,
    LedgerJudge,
    LedgerOperation,
    LedgerStatus,
    account_of,
)

Bench: TypeAlias = LedgerBench | MemoryLedgerBench
Scene: TypeAlias = Callable[[Bench], Awaitable[None]]
Play: TypeAlias = Callable[[Scene], None]


@asynccontextmanager
async def funded_bench(name: str, setup: BenchSetup) -> AsyncIterator[Bench]:
    async with BENCHES[name](setup) as bench:
        assert isinstance(bench, LedgerBench | MemoryLedgerBench)
        await fund(bench, 100)
        yield bench


@pytest.fixture(params=["ledger", "ledger twin"])
def play(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Play:
    async def run(scene: Scene) -> None:
        async with funded_bench(request.param, BenchSetup(database, tmp_path)) as bench:
            await scene(bench)

    return lambda scene: asyncio.run(run(scene))


async def ask(bench: Bench, question: Question) -> Answer:
    return (await bench.ask([question]))[0]


async def balance(bench: Bench, owner: int = OWNER) -> LedgerBalance:
    account = Account(owner, FUNDING, 3)
    if isinstance(bench, LedgerBench):
        return (await bench.ledger.balances(bench.store, owner))[account]
    row: LedgerBalance = bench.store.tables.rows["ledger_accounts"][account]
    return row


def closing(verb: Verb, hold: Question, version: int = 1, *, expected: bool = True) -> Question:
    return replace(hold, verb=verb, version=version, undoes=0, expect_done=expected)


def test_a_hold_is_captured_once(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        hold = question(bench, Verb.HOLD, 30)
        assert isinstance(await ask(bench, hold), Done)
        assert (await balance(bench))[:2] == (70, 30)
        for version in (1, 1, 2):
            assert isinstance(await ask(bench, closing(Verb.CAPTURE, hold, version)), Done)
            assert (await balance(bench))[:2] == (70, 0)

    play(scene)


def test_a_hold_is_released_once(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        hold = question(bench, Verb.HOLD, 30)
        await ask(bench, hold)
        for version in (1, 1, 2):
            assert isinstance(await ask(bench, closing(Verb.RELEASE, hold, version)), Done)
            assert (await balance(bench))[:2] == (100, 0)

    play(scene)


@pytest.mark.parametrize(
    ("first", "second"), [(Verb.CAPTURE, Verb.RELEASE), (Verb.RELEASE, Verb.CAPTURE)]
)
def test_a_captured_hold_cannot_be_released_nor_a_released_hold_captured(
    play: Play, first: Verb, second: Verb
) -> None:
    async def scene(bench: Bench) -> None:
        hold = question(bench, Verb.HOLD, 30)
        await ask(bench, hold)
        await ask(bench, closing(first, hold))
        after = await balance(bench)
        answer = await ask(bench, closing(second, hold, 2))
        assert answer == Unknown(Doubt.ALREADY_CLOSED, Alarm.HALT)
        assert await balance(bench) == after

    play(scene)


def test_held_money_cannot_be_spent(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        await ask(bench, question(bench, Verb.HOLD, 80))
        for verb in (Verb.DEBIT, Verb.HOLD):
            refused = await ask(bench, question(bench, verb, 21))
            assert refused == Rejected(Reason.INSUFFICIENT_BALANCE)
        assert isinstance(await ask(bench, question(bench, Verb.DEBIT, 20)), Done)

    play(scene)


def test_a_release_before_its_hold_leaves_a_tombstone(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        hold = question(bench, Verb.HOLD, 30)
        assert isinstance(await ask(bench, closing(Verb.RELEASE, hold, expected=False)), Done)
        assert await ask(bench, hold) == Rejected(Reason.UNDONE)
        assert (await balance(bench))[:2] == (100, 0)

    play(scene)


@pytest.mark.parametrize("status", ["FROZEN", "DISABLED"])
def test_the_account_status_refuses_holds_but_not_their_captures_and_releases(
    play: Play, status: str
) -> None:
    async def scene(bench: Bench) -> None:
        captured, released = question(bench, Verb.HOLD, 10), question(bench, Verb.HOLD, 20)
        await bench.ask([captured, released])
        await bench.set_status(OWNER, status)
        assert isinstance(await ask(bench, question(bench, Verb.HOLD, 1)), Rejected)
        assert isinstance(await ask(bench, closing(Verb.CAPTURE, captured)), Done)
        assert isinstance(await ask(bench, closing(Verb.RELEASE, released)), Done)
        assert (await balance(bench))[:2] == (90, 0)

    play(scene)


def test_a_credit_opens_an_account_in_every_book_except_funding(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        to_funding = question(bench, Verb.CREDIT, 5, owner=99)
        assert await ask(bench, to_funding) == Rejected(Reason.TARGET_ACCOUNT_NOT_FOUND)
        for book in ("GUILD", SUSPENSE):
            to_book = replace(question(bench, Verb.CREDIT, 5), party=Party("bench", book, 99))
            assert isinstance(await ask(bench, to_book), Done)

    play(scene)


def test_only_the_outside_book_may_be_negative(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        outside = replace(
            question(bench, Verb.DEBIT, 500), party=Party("bench", OUTSIDE, 5), opens=True
        )
        assert isinstance(await ask(bench, outside), Done)
        guild = replace(
            question(bench, Verb.DEBIT, 1), party=Party("bench", "GUILD", 5), opens=True
        )
        assert await ask(bench, guild) == Rejected(Reason.INSUFFICIENT_BALANCE)

    play(scene)


def test_every_operation_stores_the_balance_after_it(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        if isinstance(bench, MemoryLedgerBench):
            return
        batch = [question(bench, Verb.DEBIT, 10), question(bench, Verb.DEBIT, 999)]
        batch += [question(bench, Verb.HOLD, 20), question(bench, Verb.CREDIT, 5)]
        await bench.ask(batch)
        rows = await bench.store.run(
            "SELECT delta, held_delta, balance_after, result FROM ledger_operations"
            " ORDER BY transfer_id",
            {},
        )
        available = 0
        for delta, _, after, _ in rows:
            available += delta
            assert after == available
        assert [row[3] for row in rows] == ["done", "done", "rejected", "done", "done"]
        entries = await bench.store.run("SELECT sum(change) FROM ledger_entries", {})
        assert entries == [(0,)], "both sides of every entry sum to zero"

    play(scene)


ID = UUID(int=77)


def judge_after(debit: Question) -> LedgerJudge:
    """A judge that has already answered Done to one debit."""
    known: list[LedgerOperation] = []
    accounts = {
        account_of(debit): LedgerBalance(100, 0, LedgerStatus.ACTIVE),
        Account(8, FUNDING, 3): LedgerBalance(100, 0, LedgerStatus.ACTIVE),
    }
    judgement = LedgerJudge(accounts, known)
    assert isinstance(judgement.judge(debit, account_of(debit)), Done)
    return judgement


def test_an_undo_of_another_amount_or_account_pages() -> None:
    debit = Question(ID, 0, Verb.DEBIT, Party("ledger", FUNDING, OWNER), asset_id=3, amount=10)
    changes: list[dict[str, Any]] = [{"amount": 11}, {"asset_id": 4}]
    for change in (*changes, {"party": Party("ledger", FUNDING, 8)}):
        judgement = judge_after(debit)
        undo = replace(debit, verb=Verb.REFUND, version=1, undoes=0, expect_done=True, **change)
        assert judgement.judge(undo, account_of(undo)) == Unknown(Doubt.KEY_REUSED, Alarm.PAGE)
        assert len(judgement.written) == 1


def test_a_verb_that_the_ledger_does_not_support_is_unknown_and_pages() -> None:
    debit = Question(ID, 0, Verb.DEBIT, Party("ledger", FUNDING, OWNER), 3, 10)
    check = replace(debit, verb=Verb.CHECK, version=1)
    answer = judge_after(debit).judge(check, account_of(check))
    assert isinstance(answer, Unknown)
    assert answer.alarm is Alarm.PAGE
