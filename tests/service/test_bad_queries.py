"""Bad input in a query, a header or a path gets the right 4xx, never a 5xx."""

from tests.service.bad_input import IN, MAKE, OPERATOR, USER, refused
from tests.service.rig import BOB, ApiClient, Run, bearer, token
from tidegate.service.routes import ROUTES

UNKNOWN = "unknown_parameter"
APPROVER = bearer("anna", "approver")
LIST = "/api/v1/internal_transfer?"
SEARCH = "/api/v1/operator/transfers?"

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


def test_a_bad_query_is_refused_and_never_fails(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        for base, client_token in ((LIST, USER), (SEARCH, OPERATOR)):
            for limit in BAD_LIMITS:
                refused(await api.call("GET", f"{base}limit={limit}", bearer=client_token))
            for cursor in CURSORS:
                refused(await api.call("GET", f"{base}cursor={cursor}", bearer=client_token))
            for state in ("", "x", "committed", "%27%20OR%201=1", "%F0%9F%92%B0", "x" * 2000):
                reply = await api.call("GET", f"{base}state={state}", bearer=client_token)
                assert (reply.status, reply.body["transfers"]) == (200, []), (base, state)
            nul = await api.call("GET", f"{base}state=%00", bearer=client_token)
            assert nul.status in (200, 400)

    run(scenario)


def test_an_unknown_parameter_is_refused_on_every_route(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        for rule in ROUTES:
            bearer = (
                OPERATOR
                if "operator" in rule.roles
                else APPROVER
                if "approver" in rule.roles
                else USER
            )
            path = rule.path.format(id="x", code="x")
            refused(await api.call(rule.method, f"{path}?{UNKNOWN}=1", {}, bearer))
        for query in ("limit=1&state=x&stat=COMMITTED", "limit=1&limit=2", "Limit=1", "limit=1&="):
            refused(await api.call("GET", f"{LIST}{query}", bearer=USER))

    run(scenario)


def test_the_root_redirects_to_the_documentation(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        answer = await api.call("GET", "/")
        assert (answer.status, answer.headers["location"]) == (307, "/docs")
        assert (await api.call("GET", "/", follow_redirects=True)).status == 200

    run(scenario)


def test_a_bad_search_is_refused_and_never_fails(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        for name in ("owner", "stuck_s"):
            for value in ("", "-1", "1.5", "%D9%A1", "x", "1" * 19, "%00", "1e3"):
                refused(await api.call("GET", f"{SEARCH}{name}={value}", bearer=OPERATOR))
            for value in ("0", "9" * 10, "9" * 18):
                reply = await api.call("GET", f"{SEARCH}{name}={value}", bearer=OPERATOR)
                assert reply.status in (200, 400), (name, value, reply)
        for flow in ("%00", "x", "%27", "%FF"):
            reply = await api.call("GET", f"{SEARCH}flow={flow}", bearer=OPERATOR)
            assert reply.status in (200, 400), (flow, reply)

    run(scenario)


def test_two_authorization_headers_are_refused(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        for first, second in ((USER, "x"), ("x", USER), (USER, token(str(BOB), "user"))):
            pairs = [("Authorization", f"Bearer {first}"), ("Authorization", f"Bearer {second}")]
            reply = await api.client.request("GET", "/api/v1/balances", headers=pairs)
            assert reply.status_code == 401, (str(first)[:5], str(second)[:5])

    run(scenario)


def authorizations() -> list[str]:
    return [
        *("", "Bearer", "Basic YTpi", "bearer  x", "Bearer a b", f"Token {USER}", str(USER)),
        *(f"Bearer  {USER}", f"Bearer {USER},Bearer {USER}", "Bearer \u00e9"),
        *(f"Bearer {USER}.{USER}", "Bearer " + "x" * 20_000, "Bearer ..", "Bearer null"),
    ]


def test_a_malformed_authorization_is_refused(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        for value in authorizations():
            headers = {b"Authorization": value.encode("latin-1")}
            reply = await api.client.request("GET", "/api/v1/balances", headers=headers)
            assert reply.status_code == 401, value

    run(scenario)


PREFERENCES = [
    *("wait=99999999999", "wait=-1", "wait=", "wait=1e3", "wait=\u00b2", "wait", "=", ",,,"),
    *("wait=0", "respond-async", "wait=NaN", "wait=1, wait=2", "wait=99999", "w" * 5000, "x=y"),
]


def test_a_malformed_preference_is_ignored(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        for value in PREFERENCES:
            headers = {"Prefer": value.encode("latin-1")}
            reply = await api.transfer(IN, headers=headers)
            assert reply.status in (201, 202), (value, reply)

    run(scenario)


KEYS = ["", '""', "x" * 65, "\u00e9", "a\tb", '"' + "x" * 65 + '"']


def test_a_malformed_idempotency_key_is_refused(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "10")
        before = await api.balances()
        for key in KEYS:
            headers = {"Idempotency-Key": key.encode("latin-1")}
            refused(await api.transfer(IN, headers=headers))
        assert await api.balances() == before

    run(scenario)


def test_a_quoted_idempotency_key_is_the_same_key(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "10")
        plain = await api.transfer(IN, headers={"Idempotency-Key": "k" * 64})
        quoted = await api.transfer(IN, headers={"Idempotency-Key": f'"{"k" * 64}"'})
        assert (plain.status, quoted.status) == (201, 200)
        assert quoted.body["req_id"] == plain.body["req_id"]

    run(scenario)


IDS = ["x", "0", "-1", "%00", "%FF", "1" * 5000, "Z" * 26, "0" * 32, "{}", "%27", "%F0%9F%92%B0"]


def test_an_invalid_id_and_another_users_id_get_the_same_404(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "10")
        created = await api.transfer(IN)
        bob, own = token(str(BOB), "user"), created.body["req_id"]
        for path in (MAKE, "/api/v1/transfer"):
            expected = await api.call("GET", f"{path}/{'0' * 26}", bearer=bob)
            refused(expected, 404, "NOT_FOUND")
            for id_ in [*IDS, own, own.lower()]:
                reply = await api.call("GET", f"{path}/{id_}", bearer=bob)
                assert reply.status == 404, (path, id_)
                assert reply.body | {"request_id": ""} == expected.body | {"request_id": ""}
        for id_ in IDS:
            reply = await api.call("GET", f"/api/v1/operator/transfers/{id_}", bearer=OPERATOR)
            refused(reply, 404, "NOT_FOUND")
            retry = await api.call(
                "POST", f"/api/v1/operator/transfers/{id_}/retry", bearer=OPERATOR
            )
            refused(retry, 404, "NOT_FOUND")

    run(scenario)


def test_refused_requests_are_counted(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.call("GET", "/api/v1/balances")
        await api.call("GET", "/api/v1/balances", bearer="garbage")
        await api.call("GET", "/api/v1/balances", bearer=OPERATOR)
        page = str((await api.call("GET", "/metrics")).body)
        assert 'internal_transfer_validation_errors_total{code="UNAUTHORIZED"} 2.0' in page
        assert 'internal_transfer_validation_errors_total{code="FORBIDDEN"} 1.0' in page

    run(scenario)
