"""Whatever stands in a query, a header or a path: the right 4xx, never a 5xx."""

from tests.service.bad_input import DESK, IN, MAKE, WHO, refused
from tests.service.rig import BOB, Front, Play, bearer, token
from tidegate.service.api import ROUTES

NOBODY_KNOWS = "nobody_knows"
APPROVES = bearer("anna", "approver")
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

    play(scene)


def test_a_parameter_that_a_route_does_not_know_is_refused_on_every_route(play: Play) -> None:
    async def scene(front: Front) -> None:
        for rule in ROUTES:
            who = (
                DESK if "operator" in rule.roles else APPROVES if "approver" in rule.roles else WHO
            )
            path = rule.path.format(id="x", code="x")
            refused(await front.call(rule.method, f"{path}?{NOBODY_KNOWS}=1", {}, who))
        for query in ("limit=1&state=x&stat=COMMITTED", "limit=1&limit=2", "Limit=1", "limit=1&="):
            refused(await front.call("GET", f"{LIST}{query}", who=WHO))

    play(scene)


def test_the_root_leads_to_the_documentation(play: Play) -> None:
    async def scene(front: Front) -> None:
        answer = await front.call("GET", "/")
        assert (answer.status, answer.headers["location"]) == (307, "/docs")
        assert (await front.call("GET", "/", follow_redirects=True)).status == 200

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
            assert said.status_code == 401, (str(first)[:5], str(second)[:5])

    play(scene)


def authorizations() -> list[str]:
    return [
        *("", "Bearer", "Basic YTpi", "bearer  x", "Bearer a b", f"Token {WHO}", str(WHO)),
        *(f"Bearer  {WHO}", f"Bearer {WHO},Bearer {WHO}", "Bearer \u00e9"),
        *(f"Bearer {WHO}.{WHO}", "Bearer " + "x" * 20_000, "Bearer ..", "Bearer null"),
    ]


def test_an_odd_authorization_lets_nobody_in(play: Play) -> None:
    async def scene(front: Front) -> None:
        for value in authorizations():
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


def test_who_is_turned_away_is_counted(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.call("GET", "/api/v1/balances")
        await front.call("GET", "/api/v1/balances", who="garbage")
        await front.call("GET", "/api/v1/balances", who=DESK)
        page = str((await front.call("GET", "/metrics")).body)
        assert 'internal_transfer_validation_errors_total{code="UNAUTHORIZED"} 2.0' in page
        assert 'internal_transfer_validation_errors_total{code="FORBIDDEN"} 1.0' in page

    play(scene)
