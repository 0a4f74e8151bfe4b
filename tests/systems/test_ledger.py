"""What only the ledger does: holds, books with rules of their own, balances after each."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.contracts.ledger_systems import LedgerDesk, MemoryDesk
from tests.contracts.surroundings import Place
from tests.contracts.systems import DESKS, OWNER, fund, question
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

Desk: TypeAlias = LedgerDesk | MemoryDesk
Scene: TypeAlias = Callable[[Desk], Awaitable[None]]
Play: TypeAlias = Callable[[Scene], None]


@asynccontextmanager
async def opened(name: str, place: Place) -> AsyncIterator[Desk]:
    async with DESKS[name](place) as desk:
        assert isinstance(desk, LedgerDesk | MemoryDesk)
        await fund(desk, 100)
        yield desk


@pytest.fixture(params=["ledger", "ledger twin"])
def play(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Play:
    async def whole(scene: Scene) -> None:
        async with opened(request.param, Place(database, tmp_path)) as desk:
            await scene(desk)

    return lambda scene: asyncio.run(whole(scene))


async def ask(desk: Desk, asked: Question) -> Answer:
    return (await desk.ask([asked]))[0]


async def balance(desk: Desk, owner: int = OWNER) -> LedgerBalance:
    account = Account(owner, FUNDING, 3)
    if isinstance(desk, LedgerDesk):
        return (await desk.ledger.balances(desk.store, owner))[account]
    found: LedgerBalance = desk.store.tables.rows["ledger_accounts"][account]
    return found


def closing(verb: Verb, hold: Question, version: int = 1, *, expected: bool = True) -> Question:
    return replace(hold, verb=verb, version=version, undoes=0, expect_done=expected)


def test_a_hold_is_captured_once(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        hold = question(desk, Verb.HOLD, 30)
        assert isinstance(await ask(desk, hold), Done)
        assert (await balance(desk))[:2] == (70, 30)
        for version in (1, 1, 2):
            assert isinstance(await ask(desk, closing(Verb.CAPTURE, hold, version)), Done)
            assert (await balance(desk))[:2] == (70, 0)

    play(scene)


def test_a_hold_is_released_once(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        hold = question(desk, Verb.HOLD, 30)
        await ask(desk, hold)
        for version in (1, 1, 2):
            assert isinstance(await ask(desk, closing(Verb.RELEASE, hold, version)), Done)
            assert (await balance(desk))[:2] == (100, 0)

    play(scene)


@pytest.mark.parametrize(
    ("first", "second"), [(Verb.CAPTURE, Verb.RELEASE), (Verb.RELEASE, Verb.CAPTURE)]
)
def test_a_hold_that_was_closed_one_way_cannot_be_closed_the_other(
    play: Play, first: Verb, second: Verb
) -> None:
    async def scene(desk: Desk) -> None:
        hold = question(desk, Verb.HOLD, 30)
        await ask(desk, hold)
        await ask(desk, closing(first, hold))
        after = await balance(desk)
        answer = await ask(desk, closing(second, hold, 2))
        assert answer == Unknown(Doubt.ALREADY_CLOSED, Alarm.HALT)
        assert await balance(desk) == after

    play(scene)


def test_held_money_cannot_be_spent(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        await ask(desk, question(desk, Verb.HOLD, 80))
        for verb in (Verb.DEBIT, Verb.HOLD):
            refused = await ask(desk, question(desk, verb, 21))
            assert refused == Rejected(Reason.INSUFFICIENT_BALANCE)
        assert isinstance(await ask(desk, question(desk, Verb.DEBIT, 20)), Done)

    play(scene)


def test_a_release_before_its_hold_leaves_a_tombstone(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        hold = question(desk, Verb.HOLD, 30)
        assert isinstance(await ask(desk, closing(Verb.RELEASE, hold, expected=False)), Done)
        assert await ask(desk, hold) == Rejected(Reason.UNDONE)
        assert (await balance(desk))[:2] == (100, 0)

    play(scene)


@pytest.mark.parametrize("status", ["FROZEN", "DISABLED"])
def test_a_hold_is_refused_by_status_but_its_closing_is_not(play: Play, status: str) -> None:
    async def scene(desk: Desk) -> None:
        captured, released = question(desk, Verb.HOLD, 10), question(desk, Verb.HOLD, 20)
        await desk.ask([captured, released])
        await desk.set_status(OWNER, status)
        assert isinstance(await ask(desk, question(desk, Verb.HOLD, 1)), Rejected)
        assert isinstance(await ask(desk, closing(Verb.CAPTURE, captured)), Done)
        assert isinstance(await ask(desk, closing(Verb.RELEASE, released)), Done)
        assert (await balance(desk))[:2] == (90, 0)

    play(scene)


def test_funding_must_exist_to_be_credited_and_other_books_open_themselves(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        stranger = question(desk, Verb.CREDIT, 5, owner=99)
        assert await ask(desk, stranger) == Rejected(Reason.TARGET_ACCOUNT_NOT_FOUND)
        for book in ("GUILD", SUSPENSE):
            elsewhere = replace(question(desk, Verb.CREDIT, 5), party=Party("desk", book, 99))
            assert isinstance(await ask(desk, elsewhere), Done)

    play(scene)


def test_only_the_outside_book_goes_below_zero(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        outside = replace(
            question(desk, Verb.DEBIT, 500), party=Party("desk", OUTSIDE, 5), opens=True
        )
        assert isinstance(await ask(desk, outside), Done)
        guild = replace(question(desk, Verb.DEBIT, 1), party=Party("desk", "GUILD", 5), opens=True)
        assert await ask(desk, guild) == Rejected(Reason.INSUFFICIENT_BALANCE)

    play(scene)


def test_every_operation_shows_the_balance_after_it(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        if isinstance(desk, MemoryDesk):
            return
        batch = [question(desk, Verb.DEBIT, 10), question(desk, Verb.DEBIT, 999)]
        batch += [question(desk, Verb.HOLD, 20), question(desk, Verb.CREDIT, 5)]
        await desk.ask(batch)
        rows = await desk.store.run(
            "SELECT delta, held_delta, balance_after, result FROM ledger_operations"
            " ORDER BY transfer_id",
            {},
        )
        available = 0
        for delta, _, after, _ in rows:
            available += delta
            assert after == available
        assert [row[3] for row in rows] == ["done", "done", "rejected", "done", "done"]
        entries = await desk.store.run("SELECT sum(change) FROM ledger_entries", {})
        assert entries == [(0,)], "both sides of every entry sum to nothing"

    play(scene)


class Judged:
    """A judgement that has already said yes to one debit."""

    ID = UUID(int=77)

    def __init__(self, asked: Question) -> None:
        known: list[LedgerOperation] = []
        accounts = {
            account_of(asked): LedgerBalance(100, 0, LedgerStatus.ACTIVE),
            Account(8, FUNDING, 3): LedgerBalance(100, 0, LedgerStatus.ACTIVE),
        }
        self.judgement = LedgerJudge(accounts, known)
        assert isinstance(self.judgement.judge(asked, account_of(asked)), Done)


def test_an_undo_of_another_amount_or_account_pages() -> None:
    asked = Question(
        Judged.ID, 0, Verb.DEBIT, Party("ledger", FUNDING, OWNER), asset_id=3, amount=10
    )
    changes: list[dict[str, Any]] = [{"amount": 11}, {"asset_id": 4}]
    for change in (*changes, {"party": Party("ledger", FUNDING, 8)}):
        judged = Judged(asked)
        undo = replace(asked, verb=Verb.REFUND, version=1, undoes=0, expect_done=True, **change)
        assert judged.judgement.judge(undo, account_of(undo)) == Unknown(
            Doubt.KEY_REUSED, Alarm.PAGE
        )
        assert len(judged.judgement.written) == 1


def test_a_verb_that_the_ledger_has_no_word_for_is_unknown_and_pages() -> None:
    asked = Question(Judged.ID, 0, Verb.DEBIT, Party("ledger", FUNDING, OWNER), 3, 10)
    check = replace(asked, verb=Verb.CHECK, version=1)
    answer = Judged(asked).judgement.judge(check, account_of(check))
    assert isinstance(answer, Unknown)
    assert answer.alarm is Alarm.PAGE
