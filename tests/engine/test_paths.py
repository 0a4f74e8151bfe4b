"""Every way through the internal transfer, in both directions."""

from collections.abc import Sequence

import pytest

from tests.engine.rig import OWNER, SPOT, Execute, Play, Rig, made, request
from tidegate.core.answers import Alarm, Answer, Rejected, Unknown
from tidegate.core.refusals import Refusal
from tidegate.core.transfer import Question
from tidegate.engine.pending_request import Receipt
from tidegate.systems.ledger import FUNDING, SUSPENSE, LedgerStatus

WAYS = ("in", "out")


async def total(rig: Rig) -> int:
    return await rig.funding() + rig.venue_account(OWNER).available


@pytest.mark.parametrize("way", WAYS)
def test_money_arrives(play: Play, way: str) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            said = await engine.transfer(request(way, 300), wait_s=10)
        assert isinstance(said, Receipt)
        assert (said.transfer.state, said.transfer.version) == ("COMMITTED", 2)
        assert await rig.funding() == (700 if way == "in" else 1_300)
        assert await total(rig) == 2_000
        assert rig.alerts == []

    play(scene)


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_debit_ends_in_failed_and_moves_nothing(play: Play, way: str) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            said = await engine.transfer(request(way, 1_001), wait_s=10)
        assert isinstance(said, Receipt)
        assert (said.transfer.state, said.transfer.error) == ("FAILED", "INSUFFICIENT_BALANCE")
        assert (await rig.funding(), rig.venue_account(OWNER).available) == (1_000, 1_000)

    play(scene)


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_credit_brings_the_money_home(play: Play, way: str) -> None:
    async def scene(rig: Rig) -> None:
        await rig.set_status(LedgerStatus.DISABLED, book=SPOT if way == "in" else FUNDING)
        async with rig.engine() as engine:
            said = await engine.transfer(request(way, 300), wait_s=10)
        assert isinstance(said, Receipt)
        assert (said.transfer.state, said.transfer.error) == ("ROLLED_BACK", "ACCOUNT_DISABLED")
        assert (await rig.funding(), rig.venue_account(OWNER).available) == (1_000, 1_000)

    play(scene)


@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_answer_stays_and_is_asked_again_until_it_is_known(play: Play, way: str) -> None:
    async def scene(rig: Rig) -> None:
        doubts = 1

        async def twist(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            nonlocal doubts
            answers = execute()
            doubts -= 1
            return [Unknown("timeout")] * len(answers) if doubts >= 0 else answers

        rig.outside.twist = twist
        async with rig.engine() as engine:
            transfer = await made(engine, request(way, 300))
            [ended] = await rig.ended([transfer])
        assert (ended.state, ended.retries) == ("COMMITTED", 1)
        assert len({(q.transfer_id, q.version) for c in rig.outside.calls for q in c}) == 1
        assert await total(rig) == 2_000

    play(scene)


def test_a_refused_refund_is_asked_again_later_and_pages(play: Play) -> None:
    """No loop inside the transaction: each refusal is a question of its own, after a wait."""

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
        refused = [a for a in rig.alerts if a.cause == "ACCOUNT_CLOSED"]
        assert len(refused) == 1
        assert all(a.alarm >= Alarm.PAGE and a.transfer_id == ended.id for a in refused)
        assert await total(rig) == 2_000

    play(scene)


def test_a_source_that_cannot_undo_keeps_its_transfer_asking_the_target(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.outside.reversible = False
        await rig.set_status(LedgerStatus.DISABLED)
        async with rig.engine() as engine:
            said = await engine.transfer(request("out", 300), wait_s=0.5)
            assert isinstance(said, Receipt)
            assert said.transfer.state == "TARGET_PENDING"
            assert any(a.alarm >= Alarm.PAGE for a in rig.alerts)
            await rig.set_status(LedgerStatus.ACTIVE)
            [ended] = await rig.ended([said.transfer])
        assert ended.state == "COMMITTED"
        assert await total(rig) == 2_000

    play(scene)


def test_a_deposit_for_a_disabled_account_waits_in_suspense(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        await rig.set_status(LedgerStatus.DISABLED)
        assert (await rig.deposit(50)).state == "SUSPENDED"
        books = await rig.books()
        assert books[SUSPENSE].available == 50
        assert sum(balance.available for balance in books.values()) == 0

    play(scene)


def test_the_books_of_an_owner_sum_to_zero_with_what_came_in(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        books = await rig.books()
        assert {book: b.available for book, b in books.items()} == {
            FUNDING: 1_000,
            "OUTSIDE": -1_000,
        }

    play(scene)


def test_what_no_engine_knows_is_refused(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine() as engine:
            assert await engine.submit(request("in", 0)) is Refusal.INVALID_AMOUNT
            stranger = request("in", 1)
            lost = {**stranger.parties, "target": stranger.parties["source"]}
            twice = type(stranger)(OWNER, "internal_transfer", lost, 3, 1)
            assert await engine.submit(twice) is Refusal.SAME_ACCOUNT
            unknown = type(stranger)(OWNER, "no_such_flow", stranger.parties, 3, 1)
            assert await engine.submit(unknown) is Refusal.INVALID_REQUEST

    play(scene)
