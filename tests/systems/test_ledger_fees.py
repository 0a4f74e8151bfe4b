"""A credit with a fee has two entries under one key, both or neither; a repeat compares both."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contracts.bench_setup import BenchSetup
from tests.contracts.ledger_systems import LedgerBench
from tests.contracts.systems import OWNER, question
from tests.systems.test_ledger import Bench, Play, Scene, ask, funded_bench
from tidegate.core.account import Account
from tidegate.core.answers import Alarm, Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.refusals import Doubt, Reason
from tidegate.core.transfer import Question
from tidegate.systems.ledger import FUNDING
from tidegate.systems.ledger.judge import LedgerBalance

FEES = Party("bench", "FEES", OWNER)
REUSED = Unknown(Doubt.KEY_REUSED, Alarm.PAGE)


@pytest.fixture(params=["ledger", "ledger twin"])
def play(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Play:
    async def run(scene: Scene) -> None:
        async with funded_bench(request.param, BenchSetup(database, tmp_path)) as bench:
            await scene(bench)

    return lambda scene: asyncio.run(run(scene))


def charged(bench: Bench, amount: int = 40, fee: int = 3) -> Question:
    return replace(question(bench, Verb.CREDIT, amount), fee=fee, fees=FEES)


async def balances(bench: Bench) -> dict[str, int]:
    rows: Mapping[Account, LedgerBalance]
    if isinstance(bench, LedgerBench):
        rows = await bench.ledger.balances(bench.store, OWNER)
    else:
        rows = bench.store.tables.rows["ledger_accounts"]  # type: ignore[assignment]
    return {a.book: b.available for a, b in rows.items() if a.owner == OWNER and b.available}


def test_target_and_fee_account_are_credited_once_under_one_key(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        credit = charged(bench)
        for _ in range(3):
            assert await ask(bench, credit) == Done({"fee": "3"})
            assert await balances(bench) == {FUNDING: 137, "FEES": 3}
        assert await bench.query(credit) == Done({"fee": "3"})

    play(scene)


def test_each_credit_of_a_batch_has_its_own_fee_or_none(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        batch = [charged(bench), question(bench, Verb.CREDIT, 1), charged(bench, 10, 9)]
        assert await bench.ask(batch) == [Done({"fee": "3"}), Done(), Done({"fee": "9"})]
        assert await balances(bench) == {FUNDING: 100 + 37 + 1 + 1, "FEES": 12}
        assert await bench.ask(batch) == [Done({"fee": "3"}), Done(), Done({"fee": "9"})]
        assert await balances(bench) == {FUNDING: 100 + 37 + 1 + 1, "FEES": 12}

    play(scene)


@pytest.mark.parametrize(
    "change",
    [
        {"fee": 4},
        {"amount": 41},
        {"amount": 41, "fee": 4},  # The same amount for the target, another fee.
        {"fee": 0, "fees": None},
        {"amount": 37, "fee": 0, "fees": None},  # Only the entry of the target.
        {"fees": Party("bench", "OTHER", OWNER)},
        {"party": FEES},
    ],
)
@pytest.mark.parametrize("refused", [False, True])
def test_the_same_key_with_another_fee_is_not_a_repeat(
    play: Play, change: dict[str, Any], refused: bool
) -> None:
    async def scene(bench: Bench) -> None:
        credit = charged(bench)
        if refused:
            await bench.set_status(OWNER, "DISABLED")
        first = await ask(bench, credit)
        assert isinstance(first, Rejected if refused else Done)
        before = await balances(bench)
        assert await ask(bench, replace(credit, **change)) == REUSED
        assert await balances(bench) == before
        assert await ask(bench, credit) == first

    play(scene)


def test_a_plain_credit_is_not_repeated_with_a_fee(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        plain = question(bench, Verb.CREDIT, 37)
        await ask(bench, plain)
        assert await ask(bench, replace(plain, amount=40, fee=3, fees=FEES)) == REUSED

    play(scene)


def test_a_refused_credit_credits_no_fee_and_stays_refused(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        credit = charged(bench)
        await bench.set_status(OWNER, "DISABLED")
        for _ in range(2):
            assert await ask(bench, credit) == Rejected(Reason.ACCOUNT_DISABLED)
            await bench.set_status(OWNER, "ACTIVE")
        assert (await balances(bench)).get("FEES", 0) == 0
        assert (await balances(bench))[FUNDING] == 100

    play(scene)


def test_a_voided_credit_with_a_fee_is_refused_for_ever(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        credit = charged(bench)
        assert await ask(bench, replace(credit, void=True)) == Rejected(Reason.UNDONE)
        assert await ask(bench, credit) == Rejected(Reason.UNDONE)
        assert (await balances(bench))[FUNDING] == 100

    play(scene)


def test_both_entries_store_the_balance_after_them(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        if not isinstance(bench, LedgerBench):
            return
        credit = charged(bench)
        await bench.ask([credit])
        rows = await bench.store.run(
            "SELECT entry, book, amount, delta, balance_after, result FROM ledger_operations"
            " WHERE transfer_id = %(id)s ORDER BY entry",
            {"id": credit.transfer_id},
        )
        assert [tuple(row) for row in rows] == [
            (0, FUNDING, 37, 37, 137, "done"),
            (1, "FEES", 3, 3, 3, "done"),
        ]
        assert await bench.store.run("SELECT sum(change) FROM ledger_entries", {}) == [(0,)]

    play(scene)


def test_a_captured_hold_is_refunded_once(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        hold = question(bench, Verb.HOLD, 30)
        capture = replace(hold, verb=Verb.CAPTURE, version=1, undoes=0, expect_done=True)
        refund = replace(hold, verb=Verb.REFUND, version=3, undoes=1, expect_done=True)
        assert await bench.ask([hold, capture]) == [Done(), Done()]
        for version in (3, 3, 4):
            assert await ask(bench, replace(refund, version=version)) == Done()
            assert (await balances(bench))[FUNDING] == 100

    play(scene)


def test_a_hold_that_was_not_captured_is_not_refunded(play: Play) -> None:
    async def scene(bench: Bench) -> None:
        hold = question(bench, Verb.HOLD, 30)
        await ask(bench, hold)
        refund = replace(hold, verb=Verb.REFUND, version=1, undoes=0, expect_done=True)
        assert await ask(bench, refund) == REUSED
        assert (await balances(bench))[FUNDING] == 70

    play(scene)
