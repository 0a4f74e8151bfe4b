"""Every path through the internal transfer, in both directions."""

from collections.abc import Sequence

import pytest

from tests.engine.rig import OWNER, SPOT, Execute, Play, Rig, made, request
from tidegate.core.answers import Alarm, Answer, Rejected, Unknown
from tidegate.core.refusals import Refusal
from tidegate.core.transfer import Question
from tidegate.engine.pending_request import Receipt
from tidegate.systems.ledger import FUNDING, SUSPENSE, LedgerStatus

DIRECTIONS = ("in", "out")


async def total(rig: Rig) -> int:
    return await rig.funding() + rig.venue_account(OWNER).available


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_money_arrives(play: Play, direction: str) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            receipt = await engine.transfer(request(direction, 300), wait_s=10)
        assert isinstance(receipt, Receipt)
        assert (receipt.transfer.state, receipt.transfer.version) == ("COMMITTED", 2)
        assert await rig.funding() == (700 if direction == "in" else 1_300)
        assert await total(rig) == 2_000
        assert rig.alerts == []

    play(scene)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_refused_debit_ends_in_failed_and_moves_nothing(play: Play, direction: str) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            receipt = await engine.transfer(request(direction, 1_001), wait_s=10)
        assert isinstance(receipt, Receipt)
        assert (receipt.transfer.state, receipt.transfer.error) == (
            "FAILED",
            "INSUFFICIENT_BALANCE",
        )
        assert (await rig.funding(), rig.venue_account(OWNER).available) == (1_000, 1_000)

    play(scene)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_refused_credit_returns_the_money_to_the_source(play: Play, direction: str) -> None:
    async def scene(rig: Rig) -> None:
        await rig.set_status(LedgerStatus.DISABLED, book=SPOT if direction == "in" else FUNDING)
        async with rig.engine() as engine:
            receipt = await engine.transfer(request(direction, 300), wait_s=10)
        assert isinstance(receipt, Receipt)
        assert (receipt.transfer.state, receipt.transfer.error) == (
            "ROLLED_BACK",
            "ACCOUNT_DISABLED",
        )
        assert (await rig.funding(), rig.venue_account(OWNER).available) == (1_000, 1_000)

    play(scene)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_after_an_unknown_answer_the_same_question_is_asked_again(
    play: Play, direction: str
) -> None:
    async def scene(rig: Rig) -> None:
        unknown_answers = 1

        async def twist(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            nonlocal unknown_answers
            answers = execute()
            unknown_answers -= 1
            return [Unknown("timeout")] * len(answers) if unknown_answers >= 0 else answers

        rig.outside.twist = twist
        async with rig.engine() as engine:
            transfer = await made(engine, request(direction, 300))
            [ended] = await rig.ended([transfer])
        assert (ended.state, ended.retries) == ("COMMITTED", 1)
        assert len({(q.transfer_id, q.version) for c in rig.outside.calls for q in c}) == 1
        assert await total(rig) == 2_000

    play(scene)


def test_a_refused_refund_is_tried_again_later_and_pages(play: Play) -> None:
    """Not in a loop inside the transaction: each try is a new question after a delay."""

    async def scene(rig: Rig) -> None:
        refusals = 2

        async def twist(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            nonlocal refusals
            [question] = questions
            if question.verb == "refund" and refusals:
                refusals -= 1
                return [Rejected("ACCOUNT_CLOSED")]
            return execute()

        rig.outside.twist = twist
        await rig.set_status(LedgerStatus.DISABLED)
        async with rig.engine() as engine:
            transfer = await made(engine, request("out", 300))
            [ended] = await rig.ended([transfer])
        assert (ended.state, ended.version, ended.retries) == ("ROLLED_BACK", 5, 2)
        refused = [a for a in rig.alerts if a.cause.endswith("last result: ACCOUNT_CLOSED")]
        assert len(refused) == 1
        assert all(a.alarm >= Alarm.PAGE and a.transfer_id == ended.id for a in refused)
        assert await total(rig) == 2_000

    play(scene)


def test_if_the_source_cannot_undo_the_target_is_asked_again(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.outside.reversible = False
        await rig.set_status(LedgerStatus.DISABLED)
        async with rig.engine() as engine:
            receipt = await engine.transfer(request("out", 300), wait_s=0.5)
            assert isinstance(receipt, Receipt)
            assert receipt.transfer.state == "TARGET_PENDING"
            assert any(a.alarm >= Alarm.PAGE for a in rig.alerts)
            await rig.set_status(LedgerStatus.ACTIVE)
            [ended] = await rig.ended([receipt.transfer])
        assert ended.state == "COMMITTED"
        assert await total(rig) == 2_000

    play(scene)


def test_a_deposit_to_a_disabled_account_goes_to_suspense(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        await rig.set_status(LedgerStatus.DISABLED)
        assert (await rig.deposit(50)).state == "SUSPENDED"
        books = await rig.books()
        assert books[SUSPENSE].available == 50
        assert sum(balance.available for balance in books.values()) == 0

    play(scene)


def test_the_books_of_an_owner_with_outside_sum_to_zero(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        books = await rig.books()
        assert {book: b.available for book, b in books.items()} == {
            FUNDING: 1_000,
            "OUTSIDE": -1_000,
        }

    play(scene)


def test_an_invalid_request_is_refused(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            assert await engine.submit(request("in", 0)) is Refusal.INVALID_AMOUNT
            valid = request("in", 1)
            parties = {**valid.parties, "target": valid.parties["source"]}
            same_account = type(valid)(OWNER, "internal_transfer", parties, 3, 1)
            assert await engine.submit(same_account) is Refusal.SAME_ACCOUNT
            unknown = type(valid)(OWNER, "no_such_flow", valid.parties, 3, 1)
            assert await engine.submit(unknown) is Refusal.INVALID_REQUEST

    play(scene)
