"""The HTTP service: every route with its rule, and nothing without one."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tidegate.core.refusals import Refusal
from tidegate.service import health_routes, openapi, operator_routes, pool_routes, user_routes
from tidegate.service.http import CLOSE, HttpReply, HttpRequest
from tidegate.service.problem import METHOD_NOT_ALLOWED, NOT_FOUND, SYSTEM_ERROR, problem
from tidegate.service.routing import (
    ANYBODY,
    APPROVER,
    MAX_BATCH_BODY,
    OPERATOR,
    STAFF,
    USER,
    Call,
    Route,
    ServiceContext,
    guarded,
)

LISTS = ("limit", "cursor", "state")
V1 = "/api/v1"
OPERATOR_PATH = f"{V1}/operator"


async def document(_: Call) -> HttpReply:
    return openapi.serve(ROUTES)


async def docs(_: Call) -> HttpReply:
    return openapi.serve_page(ROUTES)


async def home(_: Call) -> HttpReply:
    return openapi.lead_to("/docs")


ROUTES: Sequence[Route] = (
    Route("POST", f"{V1}/internal_transfer", user_routes.create, USER, "Make a transfer"),
    Route(
        "GET", f"{V1}/internal_transfer", user_routes.list_own, USER, "List own transfers", LISTS
    ),
    Route("GET", f"{V1}/internal_transfer/{{id}}", user_routes.show, USER, "Show a transfer"),
    Route(
        "POST",
        f"{V1}/internal_transfers",
        user_routes.create_batch,
        USER,
        "Make many transfers",
        max_body=MAX_BATCH_BODY,
    ),
    Route(
        "POST", f"{V1}/transfer", user_routes.create_legacy, USER, "Make a transfer (older shape)"
    ),
    Route("GET", f"{V1}/transfer/{{id}}", user_routes.show_legacy, USER, "Show it (older shape)"),
    Route("POST", f"{V1}/pool_transfers", pool_routes.create, USER, "Pay through the pool"),
    Route(
        "GET",
        f"{V1}/pool_transfers",
        pool_routes.list_own,
        USER,
        "List own pool transfers",
        ("limit", "offset", "guild_id", "status"),
    ),
    Route("GET", f"{V1}/pool_transfers/{{id}}", pool_routes.show, USER, "Show a pool transfer"),
    Route("GET", f"{V1}/balances", user_routes.balances, USER, "Own balances"),
    Route("GET", f"{V1}/assets", user_routes.assets, USER | STAFF, "Assets and their limits"),
    Route("POST", f"{OPERATOR_PATH}/deposit", operator_routes.deposit, OPERATOR, "Money comes in"),
    Route(
        "POST",
        f"{OPERATOR_PATH}/external_withdrawal",
        operator_routes.withdraw,
        OPERATOR,
        "Money leaves",
    ),
    Route(
        "POST",
        f"{OPERATOR_PATH}/account_status",
        operator_routes.account_status,
        OPERATOR,
        "Freeze or thaw",
    ),
    Route(
        "PATCH",
        f"{OPERATOR_PATH}/assets/{{code}}",
        operator_routes.set_asset,
        OPERATOR,
        "Change an asset",
    ),
    Route(
        "GET",
        f"{OPERATOR_PATH}/transfers",
        operator_routes.search,
        STAFF,
        "Search transfers",
        (*LISTS, "owner", "flow", "stuck_s"),
    ),
    Route(
        "GET",
        f"{OPERATOR_PATH}/transfers/{{id}}",
        operator_routes.history,
        STAFF,
        "A transfer's history",
    ),
    Route(
        "POST",
        f"{OPERATOR_PATH}/transfers/{{id}}/retry",
        operator_routes.retry_now,
        OPERATOR,
        "Retry now",
    ),
    Route(
        "POST",
        f"{OPERATOR_PATH}/transfers/{{id}}/resolve",
        operator_routes.propose,
        OPERATOR,
        "Propose",
    ),
    Route(
        "POST",
        f"{OPERATOR_PATH}/resolutions/{{id}}/confirm",
        operator_routes.confirm,
        APPROVER,
        "Confirm",
    ),
    Route("POST", f"{OPERATOR_PATH}/halt", operator_routes.halt, OPERATOR, "Stop everything"),
    Route(
        "POST", f"{OPERATOR_PATH}/resume", operator_routes.resume, OPERATOR, "Resume after a halt"
    ),
    Route("GET", f"{OPERATOR_PATH}/halts", operator_routes.halts, STAFF, "Who halted, and why"),
    Route(
        "GET",
        f"{OPERATOR_PATH}/audit",
        operator_routes.audit,
        STAFF,
        "Do the books agree?",
        ("full",),
    ),
    Route(
        "GET",
        f"{OPERATOR_PATH}/audit/progress",
        operator_routes.audit_progress,
        STAFF,
        "How far an audit is",
    ),
    Route("GET", "/healthz", health_routes.alive, ANYBODY, "Alive"),
    Route("GET", "/readyz", health_routes.ready, ANYBODY, "Ready"),
    Route("GET", "/metrics", health_routes.metrics, ANYBODY, "Metrics"),
    Route("GET", "/openapi.json", document, ANYBODY, "This API, for programs"),
    Route("GET", "/docs", docs, ANYBODY, "This API, for people"),
    Route("GET", "/", home, ANYBODY, "Leads to /docs"),
)


# What a worker serves, and each of several API processes at an address of its own.
HEALTH_ROUTES = [rule for rule in ROUTES if rule.path in ("/healthz", "/readyz", "/metrics")]
# What several processes serve on one port: whatever does not depend on which of them answers.
SHARED_PORT_ROUTES = [
    rule._replace(endpoint=health_routes.metrics_elsewhere) if rule.path == "/metrics" else rule
    for rule in ROUTES
]

Methods: TypeAlias = Mapping[str, Route]


class Api:
    """Finds the rule for a request, and has it answered behind that rule."""

    def __init__(self, service: ServiceContext, rules: Sequence[Route] = ROUTES) -> None:
        self._service = service
        by_path: dict[str, dict[str, Route]] = defaultdict(dict)
        for rule in rules:
            by_path[rule.path][rule.method] = rule
            if rule.method == "GET":
                by_path[rule.path]["HEAD"] = rule
        self.routes: Mapping[str, Methods] = by_path
        self._fixed = {path: methods for path, methods in by_path.items() if "{" not in path}
        self._named = [
            (re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path)), methods)
            for path, methods in by_path.items()
            if "{" in path
        ]

    async def __call__(self, request: HttpRequest) -> HttpReply:
        methods = self._fixed.get(request.path) or self._find(request)
        if methods is None:
            return problem(NOT_FOUND, self._service.new_id())
        rule = methods.get(request.method)
        if rule is None:
            allowed = {"Allow": ", ".join(sorted(methods))}
            return problem(METHOD_NOT_ALLOWED, self._service.new_id(), headers=allowed)
        return await guarded(self._service, rule, request)

    def _find(self, request: HttpRequest) -> Methods | None:
        for pattern, methods in self._named:
            if found := pattern.fullmatch(request.path):
                request.named = found.groupdict()
                return methods
        return None

    def turned_away(self) -> HttpReply:
        """For whoever came over a connection too many."""
        return problem(Refusal.OVERLOADED, self._service.new_id(), headers=CLOSE)

    def failed(self) -> HttpReply:
        """For whoever met a bug of ours."""
        return problem(SYSTEM_ERROR, self._service.new_id(), headers=CLOSE)
