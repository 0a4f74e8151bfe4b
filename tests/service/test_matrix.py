"""Who may do what: every role on every route, generated from the rules."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.service.rig import ALICE, BOB, PRIVATE, TERMS, Answer, ApiClient, Run, bearer, token
from tests.token_clients import Bearer
from tidegate.core.refusals import Refusal
from tidegate.service.api import Api
from tidegate.service.auth import ROLES, Verifier
from tidegate.service.keys import FixedKeys, issue, new_keypair
from tidegate.service.metrics import Metrics
from tidegate.service.routes import ROUTES
from tidegate.service.routing import Route, ServiceContext

IN = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1"}
POOLED = {"guild_id": 1, "target_id": 99, "amount": "5"}
OLDER = IN | {"from": "funding", "to": "trading"}
CROSSING = {"user_id": ALICE, "account": "FUNDING", "asset": "USDT", "amount": "1", "cid": "x"}
STATUS = {"user_id": ALICE, "account": "FUNDING", "asset": "USDT", "status": "ACTIVE"}
RESOLUTION = {"version": 0, "answer": "done", "reason": "seen", "evidence": {"slip": "1"}}
NO_SUCH = "01JFVQ2X8Z0Y1M3N4P5R6S7T8V"


class Sample(NamedTuple):
    """A request that is right in all but who asks, and what it gets when they may."""

    body: object = None
    status: int = 200


SAMPLES: Mapping[tuple[str, str], Sample] = {
    ("POST", "/api/v1/internal_transfer"): Sample(IN, 201),
    ("POST", "/api/v1/internal_transfers"): Sample({"transfers": [IN]}),
    ("POST", "/api/v1/transfer"): Sample(OLDER),
    ("POST", "/api/v1/pool_transfers"): Sample(POOLED, 202),
    ("POST", "/api/v1/operator/deposit"): Sample(CROSSING, 201),
    ("POST", "/api/v1/operator/external_withdrawal"): Sample(CROSSING, 201),
    ("POST", "/api/v1/operator/account_status"): Sample(STATUS),
    ("PATCH", "/api/v1/operator/assets/{code}"): Sample({"status": "ACTIVE"}),
    ("POST", "/api/v1/operator/transfers/{id}/retry"): Sample(None, 400),  # It has ended.
    ("POST", "/api/v1/operator/transfers/{id}/resolve"): Sample(RESOLUTION, 400),
    ("POST", "/api/v1/operator/resolutions/{id}/confirm"): Sample(None, 404),
    ("POST", "/api/v1/operator/halt"): Sample({"reason": "a drill"}),
    ("POST", "/api/v1/operator/resume"): Sample({"reason": "it is over"}),
    ("GET", "/api/v1/operator/audit"): Sample(None, 404),  # None runs beside the tests' service.
    ("GET", "/api/v1/operator/audit/progress"): Sample(None, 404),
    ("GET", "/"): Sample(None, 307),
}


def expired() -> str:
    claims = TERMS.claims(str(ALICE), ["user"], time.time() - 3600)
    return issue(PRIVATE, "test", claims)


def forged() -> str:
    stranger, _ = new_keypair()
    return issue(stranger, "test", TERMS.claims(str(ALICE), ["user"], time.time()))


class Caller(NamedTuple):
    token: Bearer | str | None
    roles: frozenset[str] = frozenset()  # Empty: the service must not know who this is.
    owner: int | None = None


CALLERS: Mapping[str, Caller] = {
    "without a token": Caller(None),
    "user": Caller(bearer(str(ALICE), "user"), frozenset({"user"}), ALICE),
    "other user": Caller(bearer(str(BOB), "user"), frozenset({"user"}), BOB),
    "operator": Caller(bearer("olga", "operator"), frozenset({"operator"})),
    "approver": Caller(bearer("anna", "approver"), frozenset({"approver"})),
    "auditor": Caller(bearer("axel", "auditor"), frozenset({"auditor"})),
    "a user by number who is none": Caller(bearer(str(ALICE), "auditor"), frozenset({"auditor"})),
    "expired": Caller(Bearer(expired)),
    "forged": Caller(Bearer(forged)),
    "garbage": Caller("garbage"),
}


def expected(rule: Route, caller: Caller) -> int:
    """The status that the rule and the owner of the transfer call for."""
    if rule.roles and not caller.roles:
        return 401
    if rule.roles and not rule.roles & caller.roles:
        return 403
    if "{id}" in rule.path and "user" in rule.roles and caller.owner != ALICE:
        return 404
    if rule.method == "POST" and "user" in rule.roles and caller.owner == BOB:
        # Bob has no money and no account: what he makes is his own, and is refused.
        others = {"/api/v1/internal_transfer": 422, "/api/v1/pool_transfers": 202}
        return others.get(rule.path, 200)
    return SAMPLES.get((rule.method, rule.path), Sample()).status


async def ask(api: ApiClient, rule: Route, caller: Caller, id_: str) -> Answer:
    named = "1" if "resolutions" in rule.path else id_
    path = rule.path.replace("{id}", named).replace("{code}", "USDT")
    sample = SAMPLES.get((rule.method, rule.path), Sample())
    body: Any = sample.body
    if isinstance(body, dict) and "cid" in body:
        body = body | {"cid": f"matrix-{next(api.numbers)}"}
    return await api.call(rule.method, path, body, caller.token)


def test_every_role_on_every_route_gets_what_its_rule_says(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "1000")
        made = await api.transfer(IN)
        alice = token(str(ALICE), "user")
        pooled = await api.call("POST", "/api/v1/pool_transfers", POOLED, alice)
        wrong = []
        for rule in ROUTES:
            kind = ("transfer_id", pooled) if "pool" in rule.path else ("req_id", made)
            for name, caller in CALLERS.items():
                reply = await ask(api, rule, caller, kind[1].body[kind[0]])
                if rule.path.endswith("/halt"):
                    await api.operator("POST", "/resume", {"reason": "the next one's turn"})
                if reply.status != expected(rule, caller):
                    wrong.append((rule.method, rule.path, name, reply.status, reply.body))
        assert wrong == []

    run(scenario)


def test_a_refusal_by_role_says_nothing_about_what_is_there(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "1000")
        made = await api.transfer(IN)
        for rule in ROUTES:
            if "{id}" not in rule.path:
                continue
            for caller in CALLERS.values():
                seen = await ask(api, rule, caller, made.body["req_id"])
                if seen.status in (401, 403, 404):
                    unseen = await ask(api, rule, caller, NO_SUCH)
                    for reply in (seen, unseen):
                        reply.body.pop("request_id")
                    assert (seen.status, seen.body) == (unseen.status, unseen.body)

    run(scenario)


def test_what_was_refused_by_role_changed_nothing(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "1000")
        before = await api.balances()
        for rule in ROUTES:
            for caller in CALLERS.values():
                if rule.method != "GET" and not rule.roles & caller.roles:
                    reply = await ask(api, rule, caller, NO_SUCH)
                    assert reply.status in (401, 403)
                    assert reply.headers["content-type"] == "application/problem+json"
        assert await api.balances() == before
        assert not await api.gate.store.halted()
        listed = await api.operator("GET", "/transfers")
        assert len(listed.body["transfers"]) == 1  # The deposit.

    run(scenario)


def test_a_refusal_does_not_show_what_was_wrong_with_a_token(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        answers = []
        for name in ("without a token", "expired", "forged", "garbage"):
            reply = await api.call("GET", "/api/v1/balances", bearer=CALLERS[name].token)
            assert reply.headers["www-authenticate"] == "Bearer"
            reply.body.pop("request_id")
            answers.append((reply.status, reply.body))
        assert answers == [answers[0]] * 4
        assert answers[0][1]["code"] == Refusal.UNAUTHORIZED

    run(scenario)


def bare_service(api: ApiClient) -> ServiceContext:
    verifier = Verifier(FixedKeys(()), TERMS, time.time)
    return ServiceContext(
        gate=api.gate,
        authenticate=verifier.authenticate,
        metrics=Metrics(),
        clock=time.monotonic,
        new_id=str,
    )


def test_a_route_without_a_rule_cannot_exist(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        routes = Api(bare_service(api)).routes
        found = [(method, path) for path, methods in routes.items() for method in methods]
        assert sorted(found) == sorted(
            (method, rule.path)
            for rule in ROUTES
            for method in ([rule.method, "HEAD"] if rule.method == "GET" else [rule.method])
        )
        for path, methods in routes.items():
            for method, rule in methods.items():
                assert rule in ROUTES
                assert (rule.method, rule.path) == ("GET" if method == "HEAD" else method, path)

    run(scenario)


def test_a_rule_names_known_roles_and_only_health_and_papers_are_for_anybody() -> None:
    assert all(rule.roles <= ROLES for rule in ROUTES)
    assert len({(rule.method, rule.path) for rule in ROUTES}) == len(ROUTES)
    open_ = {rule.path for rule in ROUTES if not rule.roles}
    assert open_ == {"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/"}
    assert all(rule.method == "GET" for rule in ROUTES if not rule.roles)


def test_no_user_gets_to_the_desk_and_no_auditor_changes_anything() -> None:
    desk = [rule for rule in ROUTES if rule.path.startswith("/api/v1/operator/")]
    assert desk
    assert all("user" not in rule.roles for rule in desk)
    assert all("auditor" not in rule.roles for rule in ROUTES if rule.method != "GET")
    # Only the user moves the user's own money.
    own = [rule for rule in ROUTES if rule not in desk and rule.method != "GET"]
    assert all(rule.roles == {"user"} for rule in own)


STRAY = [
    ("GET", "/api/v1/nothing", 404, "NOT_FOUND"),
    ("GET", "/api/v2/internal_transfer", 404, "NOT_FOUND"),
    ("GET", "/api/v1/internal_transfer/a/b", 404, "NOT_FOUND"),
    ("GET", "/..%2f..%2fetc/passwd", 404, "NOT_FOUND"),
    ("POST", "/healthz", 405, "METHOD_NOT_ALLOWED"),
    *(
        (method, "/api/v1/internal_transfer", 405, "METHOD_NOT_ALLOWED")
        for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
    ),
]


def test_unknown_paths_and_methods_are_problems(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        for method, path, status, code in STRAY:
            reply = await api.call(method, path, bearer=token(str(ALICE), "user"))
            assert (reply.status, reply.body["code"]) == (status, code), (method, path)
            assert reply.headers["content-type"] == "application/problem+json"
            assert reply.body["request_id"]

    run(scenario)
