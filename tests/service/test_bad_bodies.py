"""Every bad body gets the right 4xx and code, never a 5xx, and no money moves."""

import json
from collections.abc import Mapping

from tests.service.bad_input import IN, MAKE, OPERATOR, USER, raw, refused
from tests.service.rig import ALICE, BOB, ApiClient, Run

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


def test_a_malformed_body_is_refused_by_every_route_with_a_body(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "10")
        before = await api.balances()
        routes = ("account_status", "deposit", "external_withdrawal", "halt", "resume")
        paths = [(f"/api/v1/operator/{name}", OPERATOR) for name in routes]
        paths += [(MAKE, USER), ("/api/v1/internal_transfers", USER), ("/api/v1/transfer", USER)]
        for path, bearer in paths:
            for name, body in MALFORMED.items():
                reply = await raw(api, body, path=path, bearer=bearer)
                assert (reply.status, reply.body["code"]) == (400, "INVALID_REQUEST"), (path, name)
        assert await api.balances() == before
        assert not await api.gate.store.halted()

    run(scenario)


WRONG_FIELDS: list[tuple[dict[str, object], str]] = [
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


def test_a_field_that_does_not_fit_is_refused(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        for change, code in WRONG_FIELDS:
            refused(await api.transfer(IN | change), code=code)

    run(scenario)


def test_a_user_id_of_another_is_forbidden_whatever_number_it_is(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        for other in (BOB, 0, -1, 2**63, 2**64 - 1, -(2**63)):
            refused(await api.transfer(IN | {"user_id": other}), 403, "FORBIDDEN")

    run(scenario)


def test_a_body_over_its_bound_is_a_413(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        too_long = json.dumps(IN | {"cid": "x" * 17 * 1024}).encode()
        refused(await raw(api, too_long), 413, "PAYLOAD_TOO_LARGE")
        exact = GOOD + b" " * (16 * 1024 - len(GOOD))
        assert (
            await raw(api, exact)
        ).status == 422  # Not 413: it is read, and the balance is too low.
        refused(await raw(api, exact + b" "), 413, "PAYLOAD_TOO_LARGE")
        batch = json.dumps({"transfers": [IN] * 20_000}).encode()
        reply = await raw(api, batch, path="/api/v1/internal_transfers")
        refused(reply, 413, "PAYLOAD_TOO_LARGE")
        too_many = json.dumps({"transfers": [IN] * 1001}).encode()
        refused(await raw(api, too_many, path="/api/v1/internal_transfers"))
        none = json.dumps({"transfers": []}).encode()
        refused(await raw(api, none, path="/api/v1/internal_transfers"))

    run(scenario)


CONTENT_TYPES = [
    *("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
    *("application/jsonp", "application/json/x", "json", "application/xml", "*/*"),
]


def test_another_content_type_is_refused(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        for content_type in CONTENT_TYPES:
            refused(await raw(api, GOOD, headers={"Content-Type": content_type}))

    run(scenario)


IMPOSSIBLE_OWNERS = [0, -1, 2**63, 2**64 - 1, -(2**63)]


def test_an_operators_request_with_an_impossible_owner_is_refused(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        for owner in IMPOSSIBLE_OWNERS:
            transfer = {"user_id": owner, "account": "FUNDING", "asset": "USDT", "amount": "1"}
            for path in ("deposit", "external_withdrawal"):
                refused(await api.operator("POST", f"/{path}", transfer | {"cid": "c"}))
            for account in ("FUNDING", "SPOT"):
                body = {"user_id": owner, "account": account, "asset": "USDT", "status": "FROZEN"}
                reply = await api.operator("POST", "/account_status", body)
                assert reply.status in (400, 404), (owner, account, reply)

    run(scenario)


def test_bad_asset_settings_are_refused_and_change_nothing(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        before = await api.call("GET", "/api/v1/assets", bearer=OPERATOR)
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
            reply = await api.operator("PATCH", "/assets/USDT", change)
            assert reply.status == 400, (change, reply)
        assert (await api.operator("PATCH", "/assets/DOGE", {})).status == 404
        assert (await api.operator("PATCH", "/assets/%00", {})).status == 404
        after = await api.call("GET", "/api/v1/assets", bearer=OPERATOR)
        assert after.body == before.body

    run(scenario)


def test_a_maximum_below_the_current_minimum_is_refused(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        assert (
            await api.operator("PATCH", "/assets/USDT", {"min_transfer_amount": "5"})
        ).status == 200
        refused(await api.operator("PATCH", "/assets/USDT", {"max_transfer_amount": "1"}))
        refused(await api.operator("PATCH", "/assets/USDT", {"reason": "x"}))

    run(scenario)


def test_halt_and_resume_require_a_reason(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        for path in ("/halt", "/resume"):
            for reason in ("", " ", "\t", "x" * 501, None, 1, ["x"]):
                refused(await api.operator("POST", path, {"reason": reason}))
        assert not await api.gate.store.halted()

    run(scenario)
