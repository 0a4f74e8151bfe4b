"""Whatever is sent: the right 4xx with its code, never a 5xx, and nothing moves."""

import json
from collections.abc import Mapping
from typing import Any

from tests.service.rig import ALICE, BOB, Answer, Front, Play, token

IN = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1"}
MAKE = "/api/v1/internal_transfer"
LIST = "/api/v1/internal_transfer?"
SEARCH = "/api/v1/operator/transfers?"
WHO = token(str(ALICE), "user")
DESK = token("olga", "operator")
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


def bodies() -> list[tuple[str, Mapping[str, object], str]]:
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


def refused(said: Answer, status: int = 400, code: str = "INVALID_REQUEST") -> None:
    assert (said.status, said.body["code"]) == (status, code), said
    assert said.headers["content-type"] == "application/problem+json"
    assert set(said.body) >= {"type", "title", "status", "detail", "retryable", "request_id"}


GOOD = json.dumps(IN).encode()
MALFORMED: Mapping[str, bytes] = {
    "nothing": b"",
    "a space": b" ",
    "no JSON": b"amount=1",
    "half of it": GOOD[:-1],
    "twice": GOOD + GOOD,
    "an array": b"[" + GOOD + b"]",
    "a string": b'"x"',
    "a number": b"1",
    "null": b"null",
    "true": b"true",
    "NaN": b'{"amount": NaN}',
    "Infinity": b'{"amount": -Infinity}',
    "1e400": b'{"amount": 1e400}',
    "a long number": b'{"amount": ' + b"1" * 5000 + b"}",
    "the same key twice": GOOD[:-1] + b', "amount": "2"}',
    "the same key escaped": GOOD[:-1] + b', "am\\u006funt": "2"}',
    "deep": b'{"from": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "deep and open": b'{"from": ' + b"[" * 15000,
    "nine levels": b'{"from": ' + b"[" * 9 + b"]" * 9 + b"}",
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": json.dumps(IN).encode("utf-16"),
    "Latin-1": b'{"from": "\xe9"}',
    "an overlong NUL": b'{"from": "\xc0\x80"}',
    "a lone surrogate": b'{"from": "\\ud800", "to": "SPOT", "asset": "USDT", "amount": "1"}',
    "a surrogate in UTF-8": b'{"from": "\xed\xa0\x80"}',
    "NUL": b'{"from": "\\u0000", "to": "SPOT", "asset": "USDT", "amount": "1"}',
    "a raw NUL": b'{"from": "\x00"}',
    "a comment": b"/* */" + GOOD,
    "a trailing comma": GOOD[:-1] + b",}",
    "single quotes": b"{'from': 'FUNDING'}",
    "a form": b"from=FUNDING&to=SPOT",
    "XML": b"<transfer/>",
    "pickle": b"\x80\x04K\x01.",
}


def test_a_malformed_body_is_refused_by_every_route_that_takes_one(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "10")
        before = await front.balances()
        desk = ("account_status", "deposit", "external_withdrawal", "halt", "resume")
        paths = [(f"/api/v1/operator/{name}", DESK) for name in desk]
        paths += [(MAKE, WHO), ("/api/v1/internal_transfers", WHO), ("/api/v1/transfer", WHO)]
        for path, who in paths:
            for name, body in MALFORMED.items():
                said = await raw(front, body, path=path, who=who)
                assert (said.status, said.body["code"]) == (400, "INVALID_REQUEST"), (path, name)
        assert await front.balances() == before
        assert not await front.gate.store.halted()

    play(scene)


async def raw(front: Front, body: bytes, **more: Any) -> Answer:
    headers = {"Content-Type": "application/json"} | more.get("headers", {})
    path, who = more.get("path", MAKE), more.get("who", WHO)
    return await front.call("POST", path, who=who, content=body, headers=headers)


MISFITS: list[tuple[dict[str, object], str]] = [
    ({"surprise": 1}, "INVALID_REQUEST"),
    ({"__proto__": {}}, "INVALID_REQUEST"),
    ({"From": "FUNDING"}, "INVALID_REQUEST"),
    ({"source": "FUNDING"}, "INVALID_REQUEST"),
    ({"from": None}, "INVALID_REQUEST"),
    ({"from": ["FUNDING"]}, "INVALID_REQUEST"),
    ({"from": {"a": "b"}}, "INVALID_REQUEST"),
    ({"from": ""}, "INVALID_ACCOUNT_TYPE"),
    ({"from": "funding"}, "INVALID_ACCOUNT_TYPE"),
    ({"from": "FUNDING "}, "INVALID_ACCOUNT_TYPE"),
    ({"to": "\u0405POT"}, "INVALID_ACCOUNT_TYPE"),
    ({"to": "outside"}, "INVALID_ACCOUNT_TYPE"),
    ({"to": "suspense"}, "INVALID_ACCOUNT_TYPE"),
    ({"asset": "usdt"}, "INVALID_ASSET"),
    ({"asset": "USDT;"}, "INVALID_ASSET"),
    ({"asset": 1}, "INVALID_REQUEST"),
    ({"amount": 1}, "INVALID_REQUEST"),
    ({"amount": 1.5}, "INVALID_REQUEST"),
    ({"amount": True}, "INVALID_REQUEST"),
    ({"amount": None}, "INVALID_REQUEST"),
    ({"amount": ["1"]}, "INVALID_REQUEST"),
    ({"cid": ""}, "INVALID_REQUEST"),
    ({"cid": "x" * 65}, "INVALID_REQUEST"),
    ({"cid": "\u00e9"}, "INVALID_REQUEST"),
    ({"cid": "a\tb"}, "INVALID_REQUEST"),
    ({"cid": 7}, "INVALID_REQUEST"),
    ({"user_id": str(ALICE)}, "INVALID_REQUEST"),
    ({"user_id": 1.5}, "INVALID_REQUEST"),
    ({"user_id": True}, "INVALID_REQUEST"),
    ({"user_id": 2**64}, "INVALID_REQUEST"),
]


def test_a_field_that_does_not_fit_is_refused(play: Play) -> None:
    async def scene(front: Front) -> None:
        for change, code in MISFITS:
            refused(await front.transfer(IN | change), code=code)

    play(scene)


def test_a_user_id_of_another_is_forbidden_whatever_number_it_is(play: Play) -> None:
    async def scene(front: Front) -> None:
        for other in (BOB, 0, -1, 2**63, 2**64 - 1, -(2**63)):
            refused(await front.transfer(IN | {"user_id": other}), 403, "FORBIDDEN")

    play(scene)


def test_a_body_over_its_bound_is_a_413(play: Play) -> None:
    async def scene(front: Front) -> None:
        long_ = json.dumps(IN | {"cid": "x" * 17 * 1024}).encode()
        refused(await raw(front, long_), 413, "PAYLOAD_TOO_LARGE")
        exact = GOOD + b" " * (16 * 1024 - len(GOOD))
        assert (await raw(front, exact)).status == 422  # It is read: there is no money.
        refused(await raw(front, exact + b" "), 413, "PAYLOAD_TOO_LARGE")
        batch = json.dumps({"transfers": [IN] * 20_000}).encode()
        said = await raw(front, batch, path="/api/v1/internal_transfers")
        refused(said, 413, "PAYLOAD_TOO_LARGE")
        many = json.dumps({"transfers": [IN] * 1001}).encode()
        refused(await raw(front, many, path="/api/v1/internal_transfers"))
        none = json.dumps({"transfers": []}).encode()
        refused(await raw(front, none, path="/api/v1/internal_transfers"))

    play(scene)


KINDS = [
    *("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
    *("application/jsonp", "application/json/x", "json", "application/xml", "*/*"),
]


def test_another_content_type_is_refused(play: Play) -> None:
    async def scene(front: Front) -> None:
        for kind in KINDS:
            refused(await raw(front, GOOD, headers={"Content-Type": kind}))

    play(scene)


BAD_LIMITS = [
    "0",
    "-1",
    "1e3",
    "%D9%A1",
    "101",
    "999999999999",
    "",
    "1.0",
    "+1",
    "%201",
    "x",
    "%00",
]
CURSORS = ["", "x", "%00", "%FF", "%27", "-1", "0" * 25, "Z" * 26, "..", "%F0%9F%92%B0"]


def test_an_odd_query_is_refused_and_never_fails(play: Play) -> None:
    async def scene(front: Front) -> None:
        for base, who in ((LIST, WHO), (SEARCH, DESK)):
            for limit in BAD_LIMITS:
                refused(await front.call("GET", f"{base}limit={limit}", who=who))
            for cursor in CURSORS:
                refused(await front.call("GET", f"{base}cursor={cursor}", who=who))
            for state in ("", "x", "committed", "%27%20OR%201=1", "%F0%9F%92%B0", "x" * 2000):
                said = await front.call("GET", f"{base}state={state}", who=who)
                assert (said.status, said.body["transfers"]) == (200, []), (base, state)
            nul = await front.call("GET", f"{base}state=%00", who=who)
            assert nul.status in (200, 400)
            assert (await front.call("GET", f"{base}unknown=1", who=who)).status == 200

    play(scene)


def test_an_odd_search_is_refused_and_never_fails(play: Play) -> None:
    async def scene(front: Front) -> None:
        for name in ("owner", "stuck_s"):
            for value in ("", "-1", "1.5", "%D9%A1", "x", "1" * 19, "%00", "1e3"):
                refused(await front.call("GET", f"{SEARCH}{name}={value}", who=DESK))
            for value in ("0", "9" * 10, "9" * 18):
                said = await front.call("GET", f"{SEARCH}{name}={value}", who=DESK)
                assert said.status in (200, 400), (name, value, said)
        for flow in ("%00", "x", "%27", "%FF"):
            said = await front.call("GET", f"{SEARCH}flow={flow}", who=DESK)
            assert said.status in (200, 400), (flow, said)

    play(scene)


def test_two_authorizations_are_none(play: Play) -> None:
    async def scene(front: Front) -> None:
        for first, second in ((WHO, "x"), ("x", WHO), (WHO, token(str(BOB), "user"))):
            pairs = [("Authorization", f"Bearer {first}"), ("Authorization", f"Bearer {second}")]
            said = await front.client.request("GET", "/api/v1/balances", headers=pairs)
            assert said.status_code == 401, (first[:5], second[:5])

    play(scene)


AUTHORIZATIONS = [
    *("", "Bearer", "Basic YTpi", "bearer  x", "Bearer a b", f"Token {WHO}", WHO),
    *(f"Bearer  {WHO}", f"Bearer {WHO},Bearer {WHO}", "Bearer \u00e9"),
    *(f"Bearer {WHO}.{WHO}", "Bearer " + "x" * 20_000, "Bearer ..", "Bearer null"),
]


def test_an_odd_authorization_lets_nobody_in(play: Play) -> None:
    async def scene(front: Front) -> None:
        for value in AUTHORIZATIONS:
            headers = {b"Authorization": value.encode("latin-1")}
            said = await front.client.request("GET", "/api/v1/balances", headers=headers)
            assert said.status_code == 401, value

    play(scene)


PREFERENCES = [
    *("wait=99999999999", "wait=-1", "wait=", "wait=1e3", "wait=\u00b2", "wait", "=", ",,,"),
    *("wait=0", "respond-async", "wait=NaN", "wait=1, wait=2", "wait=99999", "w" * 5000, "x=y"),
]


def test_an_odd_preference_is_no_error(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "100")
        for value in PREFERENCES:
            headers = {"Prefer": value.encode("latin-1")}
            said = await front.transfer(IN, headers=headers)
            assert said.status in (201, 202), (value, said)

    play(scene)


KEYS = ["", '""', "x" * 65, "\u00e9", "a\tb", '"' + "x" * 65 + '"']


def test_an_odd_idempotency_key_is_refused(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "10")
        before = await front.balances()
        for key in KEYS:
            headers = {"Idempotency-Key": key.encode("latin-1")}
            refused(await front.transfer(IN, headers=headers))
        assert await front.balances() == before

    play(scene)


def test_a_quoted_idempotency_key_is_the_same_key(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "10")
        plain = await front.transfer(IN, headers={"Idempotency-Key": "k" * 64})
        quoted = await front.transfer(IN, headers={"Idempotency-Key": f'"{"k" * 64}"'})
        assert (plain.status, quoted.status) == (201, 200)
        assert quoted.body["req_id"] == plain.body["req_id"]

    play(scene)


IDS = ["x", "0", "-1", "%00", "%FF", "1" * 5000, "Z" * 26, "0" * 32, "{}", "%27", "%F0%9F%92%B0"]


def test_an_id_that_is_none_and_one_of_a_stranger_get_the_same_404(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "10")
        made = await front.transfer(IN)
        bob, own = token(str(BOB), "user"), made.body["req_id"]
        for path in (MAKE, "/api/v1/transfer"):
            expected = await front.call("GET", f"{path}/{'0' * 26}", who=bob)
            refused(expected, 404, "NOT_FOUND")
            for id_ in [*IDS, own, own.lower()]:
                said = await front.call("GET", f"{path}/{id_}", who=bob)
                assert said.status == 404, (path, id_)
                assert said.body | {"request_id": ""} == expected.body | {"request_id": ""}
        for id_ in IDS:
            said = await front.call("GET", f"/api/v1/operator/transfers/{id_}", who=DESK)
            refused(said, 404, "NOT_FOUND")
            retry = await front.call("POST", f"/api/v1/operator/transfers/{id_}/retry", who=DESK)
            refused(retry, 404, "NOT_FOUND")

    play(scene)


ODD_OWNERS = [0, -1, 2**63, 2**64 - 1, -(2**63)]


def test_a_desk_that_names_no_possible_owner_is_refused(play: Play) -> None:
    async def scene(front: Front) -> None:
        for owner in ODD_OWNERS:
            crossing = {"user_id": owner, "account": "FUNDING", "asset": "USDT", "amount": "1"}
            for path in ("deposit", "external_withdrawal"):
                refused(await front.desk("POST", f"/{path}", crossing | {"cid": "c"}))
            for account in ("FUNDING", "SPOT"):
                body = {"user_id": owner, "account": account, "asset": "USDT", "status": "FROZEN"}
                said = await front.desk("POST", "/account_status", body)
                assert said.status in (400, 404), (owner, account, said)

    play(scene)


def test_odd_asset_settings_are_refused_and_change_nothing(play: Play) -> None:
    async def scene(front: Front) -> None:
        before = await front.call("GET", "/api/v1/assets", who=DESK)
        for change in (
            {"status": "active"},
            {"status": ""},
            {"min_transfer_amount": "0"},
            {"min_transfer_amount": "-1"},
            {"min_transfer_amount": ""},
            {"max_transfer_amount": "1e9"},
            {"min_transfer_amount": "2", "max_transfer_amount": "1"},
            {"max_transfer_amount": "0.0000001"},
            {"internal_transfer_enabled": "yes"},
            {"decimals": 2},
        ):
            said = await front.desk("PATCH", "/assets/USDT", change)
            assert said.status == 400, (change, said)
        assert (await front.desk("PATCH", "/assets/DOGE", {})).status == 404
        assert (await front.desk("PATCH", "/assets/%00", {})).status == 404
        after = await front.call("GET", "/api/v1/assets", who=DESK)
        assert after.body == before.body

    play(scene)


def test_a_maximum_below_the_minimum_of_before_is_refused(play: Play) -> None:
    async def scene(front: Front) -> None:
        assert (
            await front.desk("PATCH", "/assets/USDT", {"min_transfer_amount": "5"})
        ).status == 200
        refused(await front.desk("PATCH", "/assets/USDT", {"max_transfer_amount": "1"}))
        refused(await front.desk("PATCH", "/assets/USDT", {"reason": "x"}))

    play(scene)


def test_the_brake_wants_a_reason(play: Play) -> None:
    async def scene(front: Front) -> None:
        for path in ("/halt", "/resume"):
            for reason in ("", " ", "\t", "x" * 501, None, 1, ["x"]):
                refused(await front.desk("POST", path, {"reason": reason}))
        assert not await front.gate.store.halted()

    play(scene)
