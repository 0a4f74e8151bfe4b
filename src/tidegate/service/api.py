"""The HTTP service: every route with its rule, and nothing without one."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tidegate.core.refusals import Refusal
from tidegate.service import health, openapi, operator, pool, transfers
from tidegate.service.front import (
    ANYBODY,
    APPROVER,
    MAX_BATCH_BODY,
    OPERATOR,
    STAFF,
    USER,
    Call,
    Rule,
    Service,
    guarded,
)
from tidegate.service.http import CLOSE, Reply, Request
from tidegate.service.problem import METHOD_NOT_ALLOWED, NOT_FOUND, SYSTEM_ERROR, problem

LISTS = ("limit", "cursor", "state")
V1 = "/api/v1"
DESK = f"{V1}/operator"


async def document(_: Call) -> Reply:
    return openapi.serve(RULES)


async def docs(_: Call) -> Reply:
    return openapi.serve_page(RULES)


async def home(_: Call) -> Reply:
    return openapi.lead_to("/docs")


RULES: Sequence[Rule] = (
    Rule("POST", f"{V1}/internal_transfer", transfers.create, USER, "Make a transfer"),
    Rule("GET", f"{V1}/internal_transfer", transfers.list_own, USER, "List own transfers", LISTS),
    Rule("GET", f"{V1}/internal_transfer/{{id}}", transfers.show, USER, "Show a transfer"),
    Rule(
        "POST",
        f"{V1}/internal_transfers",
        transfers.create_batch,
        USER,
        "Make many transfers",
        max_body=MAX_BATCH_BODY,
    ),
    Rule("POST", f"{V1}/transfer", transfers.create_first, USER, "Make a transfer (older shape)"),
    Rule("GET", f"{V1}/transfer/{{id}}", transfers.show_first, USER, "Show it (older shape)"),
    Rule("POST", f"{V1}/pool_transfers", pool.create, USER, "Pay through the pool"),
    Rule(
        "GET",
        f"{V1}/pool_transfers",
        pool.list_own,
        USER,
        "List own pool transfers",
        ("limit", "offset", "guild_id", "status"),
    ),
    Rule("GET", f"{V1}/pool_transfers/{{id}}", pool.show, USER, "Show a pool transfer"),
    Rule("GET", f"{V1}/balances", transfers.balances, USER, "Own balances"),
    Rule("GET", f"{V1}/assets", transfers.assets, USER | STAFF, "Assets and their limits"),
    Rule("POST", f"{DESK}/deposit", operator.deposit, OPERATOR, "Money comes in"),
    Rule("POST", f"{DESK}/external_withdrawal", operator.withdraw, OPERATOR, "Money leaves"),
    Rule("POST", f"{DESK}/account_status", operator.account_status, OPERATOR, "Freeze or thaw"),
    Rule("PATCH", f"{DESK}/assets/{{code}}", operator.set_asset, OPERATOR, "Change an asset"),
    Rule(
        "GET",
        f"{DESK}/transfers",
        operator.search,
        STAFF,
        "Search transfers",
        (*LISTS, "owner", "flow", "stuck_s"),
    ),
    Rule("GET", f"{DESK}/transfers/{{id}}", operator.history, STAFF, "A transfer's history"),
    Rule("POST", f"{DESK}/transfers/{{id}}/retry", operator.retry_now, OPERATOR, "Retry now"),
    Rule("POST", f"{DESK}/transfers/{{id}}/resolve", operator.propose, OPERATOR, "Propose"),
    Rule("POST", f"{DESK}/resolutions/{{id}}/confirm", operator.confirm, APPROVER, "Confirm"),
    Rule("POST", f"{DESK}/halt", operator.halt, OPERATOR, "Stop everything"),
    Rule("POST", f"{DESK}/resume", operator.resume, OPERATOR, "Resume after a halt"),
    Rule("GET", f"{DESK}/halts", operator.halts, STAFF, "Who halted, and why"),
    Rule("GET", f"{DESK}/audit", operator.audit, STAFF, "Do the books agree?", ("full",)),
    Rule("GET", f"{DESK}/audit/progress", operator.audit_progress, STAFF, "How far an audit is"),
    Rule("GET", "/healthz", health.alive, ANYBODY, "Alive"),
    Rule("GET", "/readyz", health.ready, ANYBODY, "Ready"),
    Rule("GET", "/metrics", health.metrics, ANYBODY, "Metrics"),
    Rule("GET", "/openapi.json", document, ANYBODY, "This API, for programs"),
    Rule("GET", "/docs", docs, ANYBODY, "This API, for people"),
    Rule("GET", "/", home, ANYBODY, "Leads to /docs"),
)


# What a worker serves, and each of several API processes at an address of its own.
HEALTH_RULES = [rule for rule in RULES if rule.path in ("/healthz", "/readyz", "/metrics")]
# What several processes serve on one port: whatever does not depend on which of them answers.
SHARED_RULES = [
    rule._replace(endpoint=health.metrics_elsewhere) if rule.path == "/metrics" else rule
    for rule in RULES
]

Methods: TypeAlias = Mapping[str, Rule]


class Api:
    """Finds the rule for a request, and has it answered behind that rule."""

    def __init__(self, service: Service, rules: Sequence[Rule] = RULES) -> None:
        self._service = service
        by_path: dict[str, dict[str, Rule]] = defaultdict(dict)
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

    async def __call__(self, request: Request) -> Reply:
        methods = self._fixed.get(request.path) or self._find(request)
        if methods is None:
            return problem(NOT_FOUND, self._service.new_id())
        rule = methods.get(request.method)
        if rule is None:
            allowed = {"Allow": ", ".join(sorted(methods))}
            return problem(METHOD_NOT_ALLOWED, self._service.new_id(), headers=allowed)
        return await guarded(self._service, rule, request)

    def _find(self, request: Request) -> Methods | None:
        for pattern, methods in self._named:
            if found := pattern.fullmatch(request.path):
                request.named = found.groupdict()
                return methods
        return None

    def turned_away(self) -> Reply:
        """For whoever came over a connection too many."""
        return problem(Refusal.OVERLOADED, self._service.new_id(), headers=CLOSE)

    def failed(self) -> Reply:
        """For whoever met a bug of ours."""
        return problem(SYSTEM_ERROR, self._service.new_id(), headers=CLOSE)
