"""A credit with a fee: two entries under one key, both or neither, and a repeat compares both."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contracts.ledger_systems import LedgerDesk
from tests.contracts.surroundings import Place
from tests.contracts.systems import OWNER, question
from tests.systems.test_ledger import Desk, Play, Scene, ask, opened
from tidegate.core.account import Account
from tidegate.core.answers import Alarm, Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.refusals import Doubt, Reason
from tidegate.core.transfer import Question
from tidegate.systems.ledger import FUNDING
from tidegate.systems.ledger.judge import LedgerBalance

FEES = Party("desk", "FEES", OWNER)
REUSED = Unknown(Doubt.KEY_REUSED, Alarm.PAGE)


@pytest.fixture(params=["ledger", "ledger twin"])
def play(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Play:
    async def whole(scene: Scene) -> None:
        async with opened(request.param, Place(database, tmp_path)) as desk:
            await scene(desk)

    return lambda scene: asyncio.run(whole(scene))


def charged(desk: Desk, amount: int = 40, fee: int = 3) -> Question:
    return replace(question(desk, Verb.CREDIT, amount), fee=fee, fees=FEES)


async def balances(desk: Desk) -> dict[str, int]:
    found: Mapping[Account, LedgerBalance]
    if isinstance(desk, LedgerDesk):
        found = await desk.ledger.balances(desk.store, OWNER)
    else:
        found = desk.store.tables.rows["ledger_accounts"]  # type: ignore[assignment]
    return {a.book: b.available for a, b in found.items() if a.owner == OWNER and b.available}


def test_target_and_fees_are_credited_under_one_key_once(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = charged(desk)
        for _ in range(3):
            assert await ask(desk, asked) == Done({"fee": "3"})
            assert await balances(desk) == {FUNDING: 137, "FEES": 3}
        assert await desk.query(asked) == Done({"fee": "3"})

    play(scene)


def test_a_batch_of_charged_and_plain_credits_is_each_its_own(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        batch = [charged(desk), question(desk, Verb.CREDIT, 1), charged(desk, 10, 9)]
        assert await desk.ask(batch) == [Done({"fee": "3"}), Done(), Done({"fee": "9"})]
        assert await balances(desk) == {FUNDING: 100 + 37 + 1 + 1, "FEES": 12}
        assert await desk.ask(batch) == [Done({"fee": "3"}), Done(), Done({"fee": "9"})]
        assert await balances(desk) == {FUNDING: 100 + 37 + 1 + 1, "FEES": 12}

    play(scene)


@pytest.mark.parametrize(
    "change",
    [
        {"fee": 4},
        {"amount": 41},
        {"amount": 41, "fee": 4},  # The same for the target, another fee.
        {"fee": 0, "fees": None},
        {"amount": 37, "fee": 0, "fees": None},  # The target's entry alone.
        {"fees": Party("desk", "OTHER", OWNER)},
        {"party": FEES},
    ],
)
@pytest.mark.parametrize("refused", [False, True])
def test_the_same_key_with_another_fee_is_no_repeat(
    play: Play, change: dict[str, Any], refused: bool
) -> None:
    async def scene(desk: Desk) -> None:
        asked = charged(desk)
        if refused:
            await desk.set_status(OWNER, "DISABLED")
        first = await ask(desk, asked)
        assert isinstance(first, Rejected if refused else Done)
        before = await balances(desk)
        assert await ask(desk, replace(asked, **change)) == REUSED
        assert await balances(desk) == before
        assert await ask(desk, asked) == first

    play(scene)


def test_a_plain_credit_is_not_repeated_with_a_fee(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        plain = question(desk, Verb.CREDIT, 37)
        await ask(desk, plain)
        assert await ask(desk, replace(plain, amount=40, fee=3, fees=FEES)) == REUSED

    play(scene)


def test_a_refused_credit_credits_no_fee_and_stays_refused(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = charged(desk)
        await desk.set_status(OWNER, "DISABLED")
        for _ in range(2):
            assert await ask(desk, asked) == Rejected(Reason.ACCOUNT_DISABLED)
            await desk.set_status(OWNER, "ACTIVE")
        assert (await balances(desk)).get("FEES", 0) == 0
        assert (await balances(desk))[FUNDING] == 100

    play(scene)


def test_a_voided_credit_with_a_fee_is_refused_for_ever(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        asked = charged(desk)
        assert await ask(desk, replace(asked, void=True)) == Rejected(Reason.UNDONE)
        assert await ask(desk, asked) == Rejected(Reason.UNDONE)
        assert (await balances(desk))[FUNDING] == 100

    play(scene)


def test_both_entries_have_the_balance_after_them(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        if not isinstance(desk, LedgerDesk):
            return
        asked = charged(desk)
        await desk.ask([asked])
        rows = await desk.store.run(
            "SELECT entry, book, amount, delta, balance_after, result FROM ledger_operations"
            " WHERE transfer_id = %(id)s ORDER BY entry",
            {"id": asked.transfer_id},
        )
        assert [tuple(row) for row in rows] == [
            (0, FUNDING, 37, 37, 137, "done"),
            (1, "FEES", 3, 3, 3, "done"),
        ]
        assert await desk.store.run("SELECT sum(change) FROM ledger_entries", {}) == [(0,)]

    play(scene)


def test_a_captured_hold_is_refunded_once(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        hold = question(desk, Verb.HOLD, 30)
        capture = replace(hold, verb=Verb.CAPTURE, version=1, undoes=0, expect_done=True)
        refund = replace(hold, verb=Verb.REFUND, version=3, undoes=1, expect_done=True)
        assert await desk.ask([hold, capture]) == [Done(), Done()]
        for version in (3, 3, 4):
            assert await ask(desk, replace(refund, version=version)) == Done()
            assert (await balances(desk))[FUNDING] == 100

    play(scene)


def test_a_hold_that_was_not_captured_is_not_refunded(play: Play) -> None:
    async def scene(desk: Desk) -> None:
        hold = question(desk, Verb.HOLD, 30)
        await ask(desk, hold)
        refund = replace(hold, verb=Verb.REFUND, version=1, undoes=0, expect_done=True)
        assert await ask(desk, refund) == REUSED
        assert (await balances(desk))[FUNDING] == 70

    play(scene)
