"""A flow that holds and then pays, with a fee: on PostgreSQL and on the in-memory store."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import count

import pytest
from msgspec.structs import replace

from tests.engine.rig import ASSET, OWNER, SPOT, Execute, Play, Rig
from tidegate.core.answers import Answer, Done, Rejected
from tidegate.core.flow import Ask, End, Flow, Place, Verb
from tidegate.core.kind import Party, Transfer
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.core.transfer import Question
from tidegate.engine.pending_request import Receipt
from tidegate.systems.ledger import FUNDING, OUTSIDE, LedgerStatus


class Sale(StrEnum):
    HOLDING = "HOLDING"
    CHECKING = "CHECKING"
    CAPTURING = "CAPTURING"
    PAYING = "PAYING"
    RELEASING = "RELEASING"
    REFUNDING = "REFUNDING"
    PAID = "PAID"
    REFUSED = "REFUSED"


SALE = Flow(
    "sale",
    first=Sale.HOLDING,
    rows={
        Sale.HOLDING: Ask(Place.SOURCE, "source", Verb.HOLD, Sale.CHECKING, Sale.REFUSED),
        Sale.CHECKING: Ask(Place.HELD, "goods", Verb.CHECK, Sale.CAPTURING, Sale.RELEASING),
        Sale.CAPTURING: Ask(Place.HELD, "source", Verb.CAPTURE, Sale.PAYING),
        Sale.PAYING: Ask(
            Place.IN_FLIGHT, "target", Verb.CREDIT, Sale.PAID, Sale.REFUNDING, opens=True
        ),
        Sale.RELEASING: Ask(Place.HELD, "source", Verb.RELEASE, Sale.REFUSED),
        Sale.REFUNDING: Ask(Place.IN_FLIGHT, "source", Verb.REFUND, Sale.REFUSED),
        Sale.PAID: End(Place.TARGET),
        Sale.REFUSED: End(Place.SOURCE),
    },
    roles=frozenset({"goods", "fees"}),
)
SHOP, FEES = "SHOP", "FEES"
SEEDS = count(1)
PARTIES: Mapping[str, Party] = {
    "source": Party("ledger", FUNDING, OWNER),
    "target": Party("ledger", SHOP, OWNER),
    "goods": Party("venue", SPOT, OWNER),
    "fees": Party("ledger", FEES, OWNER),
}


def sale(fee: int, cid: str | None = None, amount: int = 40) -> Request:
    return Request(OWNER, "sale", PARTIES, ASSET, amount, cid, fee=fee)


async def sold(rig: Rig, request: Request, database: str) -> Transfer:
    rig.install(database, SALE)
    # A seed of its own: two engines with the same seed create equal ids in one millisecond.
    async with rig.engine(next(SEEDS)) as engine:
        result = await engine.transfer(request)
        assert isinstance(result, Receipt), result
        [ended] = await rig.ended([result.transfer])
        return ended


def set_answer(rig: Rig, answer: Answer) -> None:
    """Set the venue's answer to the question whether the goods exist."""

    async def twist(questions: Sequence[Question], _: Execute) -> Sequence[Answer]:
        return [answer] * len(questions)

    rig.outside.twist = twist


async def holdings(rig: Rig) -> dict[str, tuple[int, int]]:
    books = await rig.books()
    return {book: (b.available, b.held) for book, b in books.items() if book != OUTSIDE}


@pytest.mark.parametrize("fee", [0, 3])
def test_a_target_paid_out_of_a_hold_gets_the_amount_less_the_fee(
    play: Play, database: str, fee: int
) -> None:
    async def scene(rig: Rig) -> None:
        set_answer(rig, Done())
        ended = await sold(rig, sale(fee), database)
        assert (ended.state, ended.fee) == ("PAID", fee)
        expected = {FUNDING: (960, 0), SHOP: (40 - fee, 0)} | ({FEES: (fee, 0)} if fee else {})
        assert await holdings(rig) == expected

    play(scene)


def test_a_captured_payment_that_is_refused_is_refunded_in_full(play: Play, database: str) -> None:
    async def scene(rig: Rig) -> None:
        set_answer(rig, Done())
        await sold(rig, sale(0), database)
        await rig.set_status(LedgerStatus.DISABLED, book=SHOP)
        ended = await sold(rig, sale(3), database)
        assert (ended.state, ended.error) == ("REFUSED", "ACCOUNT_DISABLED")
        assert await holdings(rig) == {FUNDING: (960, 0), SHOP: (40, 0), FEES: (0, 0)}

    play(scene)


def test_if_the_fee_cannot_be_credited_the_target_gets_nothing(play: Play, database: str) -> None:
    async def scene(rig: Rig) -> None:
        set_answer(rig, Done())
        await sold(rig, sale(3), database)
        await rig.set_status(LedgerStatus.DISABLED, book=FEES)
        ended = await sold(rig, sale(3), database)
        assert (ended.state, ended.error) == ("REFUSED", "ACCOUNT_DISABLED")
        assert await holdings(rig) == {FUNDING: (960, 0), SHOP: (37, 0), FEES: (3, 0)}

    play(scene)


def test_a_release_returns_the_full_amount(play: Play, database: str) -> None:
    async def scene(rig: Rig) -> None:
        set_answer(rig, Rejected("SOLD_OUT"))
        assert (await sold(rig, sale(3), database)).state == "REFUSED"
        assert await holdings(rig) == {FUNDING: (1_000, 0)}

    play(scene)


def test_a_replay_under_another_fee_schedule_is_the_same_transfer(
    play: Play, database: str
) -> None:
    async def scene(rig: Rig) -> None:
        set_answer(rig, Done())
        first = await sold(rig, sale(3, "c-1"), database)
        for fee in (3, 0, 7, 40, -1):
            replay = await sold(rig, sale(fee, "c-1"), database)
            assert (replay.id, replay.fee) == (first.id, 3)
        assert (await holdings(rig))[FEES] == (3, 0)

    play(scene)


@pytest.mark.parametrize("cid", [None, "new"])
def test_a_fee_as_large_as_the_amount_is_refused(
    play: Play, database: str, cid: str | None
) -> None:
    async def scene(rig: Rig) -> None:
        rig.install(database, SALE)
        async with rig.engine() as engine:
            assert await engine.transfer(sale(40, cid)) is Refusal.INVALID_FEE
            assert await engine.transfer(sale(-1, cid)) is Refusal.INVALID_FEE
        assert await holdings(rig) == {FUNDING: (1_000, 0)}

    play(scene)


@pytest.mark.parametrize("role", sorted(PARTIES))
def test_a_request_without_a_role_is_refused_before_money_moves(
    play: Play, database: str, role: str
) -> None:
    async def scene(rig: Rig) -> None:
        rig.install(database, SALE)
        parties = {other: party for other, party in PARTIES.items() if other != role}
        async with rig.engine() as engine:
            refused = await engine.transfer(replace(sale(0), parties=parties))
        assert refused is Refusal.INVALID_PARTIES
        assert await holdings(rig) == {FUNDING: (1_000, 0)}

    play(scene)
