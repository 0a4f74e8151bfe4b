"""Whatever is written for an amount: the right code, on every route, and nothing moves."""

from collections.abc import Mapping

from tests.service.bad_input import DESK, IN, MAKE, WHO, refused
from tests.service.rig import ALICE, Front, Play
from tests.token_clients import Bearer

FULL_WIDTH, ARABIC, DEVANAGARI = "\uff11\uff12", "\u0661\u0662\u0663", "\u0967\u0968"
MINUS, SUPERSCRIPT, HALF = "\u2212" + "1", "\u00b2", "\u00bd"
NO_BREAK, ZERO_WIDTH, THIN = "1\u00a0000", "1\u200b", "1\u2009000"

INVALID = [
    *("", " ", "0", "0.0", "0.000000", "00", "00.1", "0001", "01", "-0", "-1", "+1", "+0", "--1"),
    *("1e400", "1e3", "1E3", "1e-3", "1e", "e1", "1E+2", "NaN", "nan", "sNaN", "Infinity", "-inf"),
    *(
        "1_000",
        "1,000",
        "1.000,00",
        "1'000",
        "1 000",
        NO_BREAK,
        THIN,
        "1.",
        ".5",
        ".",
        "..",
        "1..2",
    ),
    *("1.2.3", "0x10", "0b1", "0o7", "1f", "1L", "1d", "10%", "$1", "1USDT", "one", "null", "true"),
    *(" 1 ", " 1", "1 ", ARABIC, FULL_WIDTH, DEVANAGARI, SUPERSCRIPT, HALF, MINUS, ZERO_WIDTH),
    *("\u2167", "1/2", "1:2", "1;DROP TABLE transfers", "1' OR '1'='1", "${1}", "{{1}}", "%31"),
    *("1" * 65, "1" * 5000, "0." + "0" * 5000 + "1", "-18446744073709551616", "1-1", "(1)", "[1]"),
]
TOO_PRECISE = ["0.0000001", "1.0000000", "1.1234567", "0.9999999", "1." + "0" * 60]
TOO_LARGE = [
    str(2**63 * 10),
    str(2**64),
    str((2**64 - 1) // 10 + 1),
    str(2**127),
    str(2**128),
    str(10**40),
    "9" * 64,
    f"{(2**64 - 1) // 10}.000001",
]
AMOUNTS = {
    **dict.fromkeys(INVALID, "INVALID_AMOUNT"),
    **dict.fromkeys(TOO_PRECISE, "PRECISION_OVERFLOW"),
    **dict.fromkeys(TOO_LARGE, "OVERFLOW"),
}
# A control character is refused before anybody looks at the amount.
CONTROLLED = ["1\n", "1\t", "\r1", "1\x00", "\x001", "1\x7f", "1\x85"]


def test_every_wrong_amount_is_refused_by_every_route_that_takes_one(play: Play) -> None:
    assert len(AMOUNTS) >= 60

    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "1000")
        before = await front.balances()
        wrong = []
        for amount, code in AMOUNTS.items():
            for path, body, who in bodies():
                said = await front.call("POST", path, {**body, "amount": amount}, who)
                if (said.status, said.body["code"]) != (400, code):
                    wrong.append((path, amount[:70], said.status, said.body["code"]))
        assert wrong == []
        assert await front.balances() == before

    play(scene)


def bodies() -> list[tuple[str, Mapping[str, object], Bearer]]:
    crossing = {"user_id": ALICE, "account": "FUNDING", "asset": "USDT", "cid": "c"}
    older = {**IN, "from": "funding", "to": "trading"}
    return [
        (MAKE, IN, WHO),
        ("/api/v1/transfer", older, WHO),
        ("/api/v1/operator/deposit", crossing, DESK),
        ("/api/v1/operator/external_withdrawal", crossing, DESK),
    ]


def test_a_batch_gives_every_wrong_amount_its_code(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "1000")
        before = await front.balances()
        items = [IN | {"amount": amount} for amount in AMOUNTS]
        path = "/api/v1/internal_transfers"
        said = await front.call("POST", path, {"transfers": items}, WHO)
        assert said.status == 200
        assert [item["code"] for item in said.body["results"]] == list(AMOUNTS.values())
        assert await front.balances() == before

    play(scene)


def test_an_amount_with_a_control_character_is_a_malformed_body(play: Play) -> None:
    async def scene(front: Front) -> None:
        for amount in CONTROLLED:
            refused(await front.transfer(IN | {"amount": amount}))

    play(scene)


def test_the_smallest_and_the_largest_amounts_are_no_bad_input(play: Play) -> None:
    async def scene(front: Front) -> None:
        largest = str((2**64 - 1) // 10)
        await front.fund("FUNDING", largest)
        for amount in ("0.000001", "1.0", "0.1", largest):
            said = await front.transfer(IN | {"amount": amount})
            assert said.status in (201, 422), said

    play(scene)
