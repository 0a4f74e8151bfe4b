"""The table of all routes. Permissions, OpenAPI and the docs page come from it."""

from collections.abc import Sequence
from functools import cache

from tidegate.engine.audit_rules import AuditReport
from tidegate.service import (
    health_routes,
    openapi,
    operator_routes,
    pool_routes,
    transfer_routes,
)
from tidegate.service.http import HttpReply
from tidegate.service.parameters import (
    CURSOR,
    FLOW,
    FULL,
    GUILD_ID,
    IDEMPOTENCY_KEY,
    LIMIT,
    OFFSET,
    OWNER,
    POOL_STATUS,
    PREFER,
    STATE,
    STUCK_S,
)
from tidegate.service.reply_types import (
    AccountBalances,
    AccountStatusSet,
    Assets,
    AssetShape,
    AuditProgressShown,
    BatchItems,
    ExternalTransferMade,
    HaltAdded,
    HaltList,
    HaltsEnded,
    LegacyCreated,
    LegacyTransfer,
    Liveness,
    OpenApiDocument,
    OperatorPage,
    OperatorTransfer,
    PoolPage,
    PoolTransfer,
    Readiness,
    ResolutionConfirmed,
    ResolutionProposed,
    TransferHistory,
    TransferPage,
    TransferShape,
)
from tidegate.service.request_types import (
    AssetBody,
    BatchBody,
    ExternalTransferBody,
    LegacyTransferBody,
    PoolBody,
    ReasonBody,
    ResolveBody,
    ResumeBody,
    StatusBody,
    TransferBody,
)
from tidegate.service.routing import (
    ANYBODY,
    APPROVER,
    MAX_BATCH_BODY,
    OPERATOR,
    STAFF,
    USER,
    Call,
    Route,
)

V1 = "/api/v1"
OPERATOR_PATH = f"{V1}/operator"
LISTS = (LIMIT, CURSOR, STATE)
CREATES = (IDEMPOTENCY_KEY, PREFER)
REFUSABLE = (422, 503)  # A system may refuse the transfer, or be unavailable.
TRANSFER_CREATED = {201: TransferShape, 200: TransferShape, 202: TransferShape}
EXTERNAL_CREATED = dict.fromkeys((201, 200, 202), ExternalTransferMade)


async def document(_: Call) -> HttpReply:
    return _document_reply()


async def docs(_: Call) -> HttpReply:
    return _page_reply()


@cache
def _document_reply() -> HttpReply:
    return openapi.serve(openapi.document(ROUTES))


@cache
def _page_reply() -> HttpReply:
    return openapi.serve_page(openapi.document(ROUTES))


async def home(_: Call) -> HttpReply:
    return openapi.redirect_to("/docs")


USER_ROUTES = (
    Route(
        "POST",
        f"{V1}/internal_transfer",
        transfer_routes.create,
        USER,
        "Create a transfer",
        TRANSFER_CREATED,
        TransferBody,
        CREATES,
        REFUSABLE,
    ),
    Route(
        "GET",
        f"{V1}/internal_transfer",
        transfer_routes.list_own,
        USER,
        "List your transfers",
        {200: TransferPage},
        parameters=LISTS,
    ),
    Route(
        "GET",
        f"{V1}/internal_transfer/{{id}}",
        transfer_routes.show,
        USER,
        "Show a transfer",
        {200: TransferShape},
    ),
    Route(
        "POST",
        f"{V1}/internal_transfers",
        transfer_routes.create_batch,
        USER,
        "Create many transfers",
        {200: BatchItems},
        BatchBody,
        (PREFER,),
        max_body=MAX_BATCH_BODY,
    ),
    Route(
        "POST",
        f"{V1}/transfer",
        transfer_routes.create_legacy,
        USER,
        "Create a transfer (older format)",
        {200: LegacyCreated, 202: LegacyCreated},
        LegacyTransferBody,
        CREATES,
        REFUSABLE,
    ),
    Route(
        "GET",
        f"{V1}/transfer/{{id}}",
        transfer_routes.show_legacy,
        USER,
        "Show a transfer (older format)",
        {200: LegacyTransfer},
    ),
    Route(
        "POST",
        f"{V1}/pool_transfers",
        pool_routes.create,
        USER,
        "Create a pool transfer",
        {200: PoolTransfer, 202: PoolTransfer},
        PoolBody,
        (IDEMPOTENCY_KEY,),
        (422,),
    ),
    Route(
        "GET",
        f"{V1}/pool_transfers",
        pool_routes.list_own,
        USER,
        "List your pool transfers",
        {200: PoolPage},
        parameters=(LIMIT, OFFSET, GUILD_ID, POOL_STATUS),
    ),
    Route(
        "GET",
        f"{V1}/pool_transfers/{{id}}",
        pool_routes.show,
        USER,
        "Show a pool transfer",
        {200: PoolTransfer},
    ),
    Route(
        "GET",
        f"{V1}/balances",
        transfer_routes.balances,
        USER,
        "List your balances",
        {200: AccountBalances},
    ),
    Route(
        "GET",
        f"{V1}/assets",
        transfer_routes.assets,
        USER | STAFF,
        "List assets and their limits",
        {200: Assets},
    ),
)

OPERATOR_ROUTES = (
    Route(
        "POST",
        f"{OPERATOR_PATH}/deposit",
        operator_routes.deposit,
        OPERATOR,
        "Create a deposit",
        EXTERNAL_CREATED,
        ExternalTransferBody,
        refuses=REFUSABLE,
    ),
    Route(
        "POST",
        f"{OPERATOR_PATH}/external_withdrawal",
        operator_routes.withdraw,
        OPERATOR,
        "Create an external withdrawal",
        EXTERNAL_CREATED,
        ExternalTransferBody,
        refuses=REFUSABLE,
    ),
    Route(
        "POST",
        f"{OPERATOR_PATH}/account_status",
        operator_routes.account_status,
        OPERATOR,
        "Freeze, disable or reactivate an account",
        {200: AccountStatusSet},
        StatusBody,
        refuses=(404,),
    ),
    Route(
        "PATCH",
        f"{OPERATOR_PATH}/assets/{{code}}",
        operator_routes.set_asset,
        OPERATOR,
        "Change an asset",
        {200: AssetShape},
        AssetBody,
    ),
    Route(
        "GET",
        f"{OPERATOR_PATH}/transfers",
        operator_routes.search,
        STAFF,
        "Search transfers",
        {200: OperatorPage},
        parameters=(*LISTS, OWNER, FLOW, STUCK_S),
    ),
    Route(
        "GET",
        f"{OPERATOR_PATH}/transfers/{{id}}",
        operator_routes.history,
        STAFF,
        "Show a transfer and its history",
        {200: TransferHistory},
    ),
    Route(
        "POST",
        f"{OPERATOR_PATH}/transfers/{{id}}/retry",
        operator_routes.retry_now,
        OPERATOR,
        "Retry a transfer now",
        {202: OperatorTransfer},
    ),
    Route(
        "POST",
        f"{OPERATOR_PATH}/transfers/{{id}}/resolve",
        operator_routes.propose,
        OPERATOR,
        "Propose a resolution of a stuck transfer",
        {201: ResolutionProposed},
        ResolveBody,
    ),
    Route(
        "POST",
        f"{OPERATOR_PATH}/resolutions/{{id}}/confirm",
        operator_routes.confirm,
        APPROVER,
        "Confirm a resolution",
        {200: ResolutionConfirmed},
    ),
    Route(
        "POST",
        f"{OPERATOR_PATH}/halt",
        operator_routes.halt,
        OPERATOR,
        "Halt all transfers",
        {200: HaltAdded},
        ReasonBody,
    ),
    Route(
        "POST",
        f"{OPERATOR_PATH}/resume",
        operator_routes.resume,
        OPERATOR,
        "Resume after a halt",
        {200: HaltsEnded},
        ResumeBody,
    ),
    Route(
        "GET",
        f"{OPERATOR_PATH}/halts",
        operator_routes.halts,
        STAFF,
        "List the halts in force",
        {200: HaltList},
    ),
    Route(
        "GET",
        f"{OPERATOR_PATH}/audit",
        operator_routes.audit,
        STAFF,
        "Audit the books",
        {200: AuditReport},
        parameters=(FULL,),
        refuses=(404,),
    ),
    Route(
        "GET",
        f"{OPERATOR_PATH}/audit/progress",
        operator_routes.audit_progress,
        STAFF,
        "Show the progress of an audit",
        {200: AuditProgressShown},
        refuses=(404,),
    ),
)

# What a worker serves, and each of several API processes at its own health address.
HEALTH_ROUTES = (
    Route("GET", "/healthz", health_routes.alive, ANYBODY, "Liveness", {200: Liveness}),
    Route(
        "GET",
        "/readyz",
        health_routes.ready,
        ANYBODY,
        "Readiness",
        {200: Readiness, 503: Readiness},
    ),
    Route(
        "GET",
        "/metrics",
        health_routes.metrics,
        ANYBODY,
        "Metrics for Prometheus",
        {200: openapi.TEXT},
        refuses=(404, 500),
    ),
)

DOCUMENT_ROUTES = (
    Route("GET", "/openapi.json", document, ANYBODY, "This API as OpenAPI", {200: OpenApiDocument}),
    Route("GET", "/docs", docs, ANYBODY, "This API as a page", {200: openapi.HTML}),
    Route("GET", "/", home, ANYBODY, "Redirect to /docs", {307: openapi.HTML}),
)

ROUTES: Sequence[Route] = (*USER_ROUTES, *OPERATOR_ROUTES, *HEALTH_ROUTES, *DOCUMENT_ROUTES)

# What several processes serve on one port: only what does not depend on which of them answers.
SHARED_PORT_ROUTES = [
    route._replace(endpoint=health_routes.metrics_elsewhere) if route.path == "/metrics" else route
    for route in ROUTES
]
