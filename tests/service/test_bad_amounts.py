"""Every wrong amount gets the right code on every route, and no money moves."""

from collections.abc import Mapping

from tests.service.bad_input import IN, MAKE, OPERATOR, USER, refused
from tests.service.rig import ALICE, ApiClient, Run
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
# A body with a control character is refused before the amount is read.
CONTROLLED = ["1\n", "1\t", "\r1", "1\x00", "\x001", "1\x7f", "1\x85"]


def test_every_wrong_amount_is_refused_by_every_route_with_an_amount(run: Run) -> None:
    assert len(AMOUNTS) >= 60

    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "1000")
        before = await api.balances()
        wrong = []
        for amount, code in AMOUNTS.items():
            for path, body, bearer in bodies():
                reply = await api.call("POST", path, {**body, "amount": amount}, bearer)
                if (reply.status, reply.body["code"]) != (400, code):
                    wrong.append((path, amount[:70], reply.status, reply.body["code"]))
        assert wrong == []
        assert await api.balances() == before

    run(scenario)


def bodies() -> list[tuple[str, Mapping[str, object], Bearer]]:
    deposit = {"user_id": ALICE, "account": "FUNDING", "asset": "USDT", "cid": "c"}
    old_format = {**IN, "from": "funding", "to": "trading"}
    return [
        (MAKE, IN, USER),
        ("/api/v1/transfer", old_format, USER),
        ("/api/v1/operator/deposit", deposit, OPERATOR),
        ("/api/v1/operator/external_withdrawal", deposit, OPERATOR),
    ]


def test_a_batch_gives_every_wrong_amount_its_code(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "1000")
        before = await api.balances()
        items = [IN | {"amount": amount} for amount in AMOUNTS]
        path = "/api/v1/internal_transfers"
        reply = await api.call("POST", path, {"transfers": items}, USER)
        assert reply.status == 200
        assert [item["code"] for item in reply.body["results"]] == list(AMOUNTS.values())
        assert await api.balances() == before

    run(scenario)


def test_an_amount_with_a_control_character_is_a_malformed_body(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        for amount in CONTROLLED:
            refused(await api.transfer(IN | {"amount": amount}))

    run(scenario)


def test_the_smallest_and_the_largest_amounts_are_valid_input(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        largest = str((2**64 - 1) // 10)
        await api.fund("FUNDING", largest)
        for amount in ("0.000001", "1.0", "0.1", largest):
            reply = await api.transfer(IN | {"amount": amount})
            assert reply.status in (201, 422), reply

    run(scenario)
