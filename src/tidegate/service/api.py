"""The HTTP service: every route with its rule, and nothing without one."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidegate.service import health, openapi, operator, pool, transfers
from tidegate.service.connections import Uncrowded
from tidegate.service.front import (
    ANYBODY,
    APPROVER,
    OPERATOR,
    STAFF,
    USER,
    Call,
    Rule,
    Service,
    guarded,
)
from tidegate.service.problem import METHOD_NOT_ALLOWED, NOT_FOUND, SYSTEM_ERROR, problem

V1 = "/api/v1"
DESK = f"{V1}/operator"


async def document(_: Call) -> Response:
    return openapi.serve(RULES)


async def docs(_: Call) -> Response:
    return openapi.serve_page(RULES)


RULES: Sequence[Rule] = (
    Rule("POST", f"{V1}/internal_transfer", transfers.create, USER, "Make a transfer"),
    Rule("GET", f"{V1}/internal_transfer", transfers.list_own, USER, "List own transfers"),
    Rule("GET", f"{V1}/internal_transfer/{{id}}", transfers.show, USER, "Show a transfer"),
    Rule("POST", f"{V1}/internal_transfers", transfers.create_batch, USER, "Make many transfers"),
    Rule("POST", f"{V1}/transfer", transfers.create_first, USER, "Make a transfer (older shape)"),
    Rule("GET", f"{V1}/transfer/{{id}}", transfers.show_first, USER, "Show it (older shape)"),
    Rule("POST", f"{V1}/pool_transfers", pool.create, USER, "Pay through the pool"),
    Rule("GET", f"{V1}/pool_transfers", pool.list_own, USER, "List own pool transfers"),
    Rule("GET", f"{V1}/pool_transfers/{{id}}", pool.show, USER, "Show a pool transfer"),
    Rule("GET", f"{V1}/balances", transfers.balances, USER, "Own balances"),
    Rule("GET", f"{V1}/assets", transfers.assets, USER | STAFF, "Assets and their limits"),
    Rule("POST", f"{DESK}/deposit", operator.deposit, OPERATOR, "Money comes in"),
    Rule("POST", f"{DESK}/external_withdrawal", operator.withdraw, OPERATOR, "Money leaves"),
    Rule("POST", f"{DESK}/account_status", operator.account_status, OPERATOR, "Freeze or thaw"),
    Rule("PATCH", f"{DESK}/assets/{{code}}", operator.set_asset, OPERATOR, "Change an asset"),
    Rule("GET", f"{DESK}/transfers", operator.search, STAFF, "Search transfers"),
    Rule("GET", f"{DESK}/transfers/{{id}}", operator.history, STAFF, "A transfer's history"),
    Rule("POST", f"{DESK}/transfers/{{id}}/retry", operator.retry_now, OPERATOR, "Retry now"),
    Rule("POST", f"{DESK}/transfers/{{id}}/resolve", operator.propose, OPERATOR, "Propose"),
    Rule("POST", f"{DESK}/resolutions/{{id}}/confirm", operator.confirm, APPROVER, "Confirm"),
    Rule("POST", f"{DESK}/halt", operator.halt, OPERATOR, "Stop everything"),
    Rule("POST", f"{DESK}/resume", operator.resume, OPERATOR, "Go on"),
    Rule("GET", f"{DESK}/audit", operator.audit, STAFF, "Do the books agree?"),
    Rule("GET", f"{DESK}/audit/progress", operator.audit_progress, STAFF, "How far an audit is"),
    Rule("GET", "/healthz", health.alive, ANYBODY, "Alive"),
    Rule("GET", "/readyz", health.ready, ANYBODY, "Ready"),
    Rule("GET", "/metrics", health.metrics, ANYBODY, "Metrics"),
    Rule("GET", "/openapi.json", document, ANYBODY, "This API, for programs"),
    Rule("GET", "/docs", docs, ANYBODY, "This API, for people"),
)


def build(service: Service) -> Starlette:
    async def not_found(_: Request, __: Exception) -> Response:
        return problem(NOT_FOUND, service.new_id())

    async def not_allowed(_: Request, refused: Exception) -> Response:
        headers = refused.headers if isinstance(refused, HTTPException) else None
        return problem(METHOD_NOT_ALLOWED, service.new_id(), headers=headers)

    async def failed(_: Request, __: Exception) -> Response:
        return problem(SYSTEM_ERROR, service.new_id())

    routes = [Route(rule.path, guarded(service, rule), methods=[rule.method]) for rule in RULES]
    api = Starlette(
        routes=routes,
        middleware=[Middleware(Uncrowded, new_id=service.new_id)],
        exception_handlers={404: not_found, 405: not_allowed, Exception: failed},
    )
    # A redirect would be built from a header that the caller chooses.
    api.router.redirect_slashes = False
    return api
