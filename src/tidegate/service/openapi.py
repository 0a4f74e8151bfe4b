"""The OpenAPI document: what the rules and the types say, for programs and people to read."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from tidegate.engine.audit_rules import AuditReport
from tidegate.service import pool_routes, reply_types, request_types
from tidegate.service.docs_page import (
    FIELDS,
    HEADERS,
    PARAMETERS,
    PATH_PARAMETERS,
    Json,
    all_codes,
    codes_of,
    page,
)
from tidegate.service.http import JSON, HttpReply
from tidegate.service.problem import MEDIA_TYPE, TRY_AGAIN
from tidegate.service.routing import Route

REF = "#/components/schemas/{name}"
HTML, TEXT = "text/html", "text/plain"


class Words(NamedTuple):
    """What a route takes and gives."""

    gives: Mapping[int, Any]  # By status: a type, or a media type where it is no JSON.
    takes: type[msgspec.Struct] | None = None
    refuses: tuple[int, ...] = ()  # Besides what every route of its kind refuses.
    asks: tuple[str, ...] = ()  # Names of headers, among the PARAMETERS.


MAKES = ("Idempotency-Key", "Prefer")
BRAKES = (422, 503)  # A system's own «no», and «not now».

V1 = "/api/v1"
DESK = f"{V1}/operator"
_CREATED = {
    201: request_types.TransferShape,
    200: request_types.TransferShape,
    202: request_types.TransferShape,
}
_CROSSED = {
    201: reply_types.ExternalTransferMade,
    200: reply_types.ExternalTransferMade,
    202: reply_types.ExternalTransferMade,
}

# Every rule has its line here: the document cannot be made without it.
WORDS: Mapping[tuple[str, str], Words] = {
    ("POST", f"{V1}/internal_transfer"): Words(_CREATED, request_types.TransferBody, BRAKES, MAKES),
    ("GET", f"{V1}/internal_transfer"): Words({200: reply_types.TransferPage}),
    ("GET", f"{V1}/internal_transfer/{{id}}"): Words({200: request_types.TransferShape}),
    ("POST", f"{V1}/internal_transfers"): Words(
        {200: reply_types.BatchItems}, request_types.BatchBody, (), ("Prefer",)
    ),
    ("POST", f"{V1}/transfer"): Words(
        {200: reply_types.LegacyCreated, 202: reply_types.LegacyCreated},
        request_types.LegacyTransferBody,
        BRAKES,
        MAKES,
    ),
    ("GET", f"{V1}/transfer/{{id}}"): Words({200: reply_types.LegacyTransfer}),
    ("POST", f"{V1}/pool_transfers"): Words(
        {200: pool_routes.PoolTransfer, 202: pool_routes.PoolTransfer},
        pool_routes.PoolBody,
        (422,),
        MAKES[:1],
    ),
    ("GET", f"{V1}/pool_transfers"): Words({200: pool_routes.PoolPage}),
    ("GET", f"{V1}/pool_transfers/{{id}}"): Words({200: pool_routes.PoolTransfer}),
    ("GET", f"{V1}/balances"): Words({200: reply_types.AccountBalances}),
    ("GET", f"{V1}/assets"): Words({200: reply_types.Assets}),
    ("POST", f"{DESK}/deposit"): Words(_CROSSED, request_types.ExternalTransferBody, BRAKES),
    ("POST", f"{DESK}/external_withdrawal"): Words(
        _CROSSED, request_types.ExternalTransferBody, BRAKES
    ),
    ("POST", f"{DESK}/account_status"): Words(
        {200: reply_types.AccountStatusSet}, request_types.StatusBody, (404,)
    ),
    ("PATCH", f"{DESK}/assets/{{code}}"): Words(
        {200: reply_types.AssetShape}, request_types.AssetBody
    ),
    ("GET", f"{DESK}/transfers"): Words({200: reply_types.OperatorPage}),
    ("GET", f"{DESK}/transfers/{{id}}"): Words({200: reply_types.TransferHistory}),
    ("POST", f"{DESK}/transfers/{{id}}/retry"): Words({202: reply_types.OperatorTransfer}),
    ("POST", f"{DESK}/transfers/{{id}}/resolve"): Words(
        {201: reply_types.ResolutionProposed}, request_types.ResolveBody
    ),
    ("POST", f"{DESK}/resolutions/{{id}}/confirm"): Words({200: reply_types.ResolutionConfirmed}),
    ("POST", f"{DESK}/halt"): Words({200: reply_types.HaltAdded}, request_types.ReasonBody),
    ("POST", f"{DESK}/resume"): Words({200: reply_types.HaltsEnded}, request_types.ResumeBody),
    ("GET", f"{DESK}/halts"): Words({200: reply_types.HaltList}),
    ("GET", f"{DESK}/audit"): Words({200: AuditReport}, None, (404,)),
    ("GET", f"{DESK}/audit/progress"): Words({200: reply_types.AuditProgressShown}, None, (404,)),
    ("GET", "/healthz"): Words({200: reply_types.Liveness}),
    ("GET", "/readyz"): Words({200: reply_types.Readiness, 503: reply_types.Readiness}),
    ("GET", "/metrics"): Words({200: TEXT}, None, (404, 500)),
    ("GET", "/openapi.json"): Words({200: reply_types.OpenApiDocument}),
    ("GET", "/docs"): Words({200: HTML}),
    ("GET", "/"): Words({307: HTML}),
}


def document(rules: Sequence[Route]) -> Json:
    """The whole document. A rule that is not in ROUTES is a KeyError, and a test."""
    components = _components(rules)
    paths: dict[str, Json] = {}
    for rule in rules:
        operation = _operation(rule, WORDS[rule.method, rule.path])
        paths.setdefault(rule.path, {})[rule.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate",
            "version": "1",
            "summary": "Moves money between systems that share no transaction: once, or not at all",
            "description": "Every error is a problem (RFC 9457) with a stable code. Unknown paths "
            "answer 404 and other methods 405, and a connection too many gets 503 OVERLOADED "
            "whatever it asks, all as problems.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in ("Owners", "Operators", "Service")],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearerAuth": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
            },
        },
    }


def _components(rules: Sequence[Route]) -> Json:
    words = [WORDS[rule.method, rule.path] for rule in rules]
    types = {t for w in words for t in (w.takes, *w.gives.values()) if isinstance(t, type)}
    ordered = sorted({*types, reply_types.Problem}, key=lambda type_: type_.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template=REF)
    for name, schema in components.items():
        if name.endswith("Body"):
            for field, property_ in schema["properties"].items():
                property_.update(FIELDS.get(field, {}) | FIELDS.get(f"{name}.{field}", {}))
    components["Problem"]["properties"]["code"]["enum"] = all_codes()
    return components


def _operation(rule: Route, words: Words) -> Json:
    given = {str(status): _gives(status, type_) for status, type_ in words.gives.items()}
    statuses = sorted(refusals(rule, words) - set(words.gives))
    refused = {str(status): _refusal(status, words) for status in statuses}
    operation: Json = {
        "summary": rule.summary,
        "operationId": f"{rule.endpoint.__module__.rpartition('.')[2]}_{rule.endpoint.__name__}",
        "tags": [tag_of(rule)],
        "parameters": [*_path_parameters(rule.path), *map(_parameter, (*rule.query, *words.asks))],
        "responses": given | refused,
        "security": [{"bearerAuth": []}] if rule.roles else [],
        "x-roles": sorted(rule.roles),
    }
    if words.takes is not None:
        content = {JSON: {"schema": _named(words.takes)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def refusals(rule: Route, words: Words) -> set[int]:
    """The statuses with which a route may refuse."""
    found = {400, 413, *words.refuses}
    if rule.roles:
        found |= {401, 403, 500}
    if "Idempotency-Key" in words.asks:
        found.add(429)  # What makes a transfer is limited; of a batch, each item by itself.
    if "{" in rule.path:
        found.add(404)
    return found


def tag_of(rule: Route) -> str:
    if not rule.roles:
        return "Service"
    return "Owners" if "user" in rule.roles else "Operators"


def _named(type_: type[Any]) -> Json:
    return {"$ref": REF.format(name=type_.__name__)}


def _gives(status: int, type_: Any) -> Json:
    content = {type_: {"schema": {"type": "string"}}} if isinstance(type_, str) else None
    said = {200: "Done", 201: "Made, and at its end", 202: "Accepted, not yet at its end"}
    said[307] = "Over there"
    return {
        "description": said.get(status, "Not now"),
        "headers": {"X-Request-Id": {"schema": {"type": "string"}}},
        "content": content or {JSON: {"schema": _named(type_)}},
    }


def _refusal(status: int, words: Words) -> Json:
    plain = status == 400 and words.takes in (
        None,
        request_types.ReasonBody,
        request_types.ResolveBody,
    )
    headers = ["X-Request-Id"]
    headers += ["WWW-Authenticate"] if status == 401 else []
    headers += ["Retry-After"] if status in TRY_AGAIN else []
    return {
        "description": "INVALID_REQUEST" if plain else ", ".join(codes_of(status)),
        "headers": {name: {"schema": {"type": "string"}} for name in headers},
        "content": {MEDIA_TYPE: {"schema": _named(reply_types.Problem)}},
    }


def _parameter(name: str) -> Json:
    place, schema, description = PARAMETERS[name]
    return {"name": name, "in": place, "description": description, "schema": schema}


def _path_parameters(path: str) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PATH_PARAMETERS.get(f"{owner}/{name}") or PATH_PARAMETERS[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for owner, name in re.findall(r"(\w+)/{(\w+)}", path)
    ]


@cache
def _encoded(rules: tuple[Route, ...]) -> bytes:
    return msgspec.json.encode(document(rules))


def serve(rules: Sequence[Route]) -> HttpReply:
    headers = {"Content-Type": JSON, "Cache-Control": "no-cache"}
    return HttpReply(200, _encoded(tuple(rules)), headers)


def serve_page(rules: Sequence[Route]) -> HttpReply:
    return HttpReply(
        200, _page(tuple(rules)), {"Content-Type": f"{HTML}; charset=utf-8", **HEADERS}
    )


def lead_to(path: str) -> HttpReply:
    link = f'<a href="{path}">{path}</a>'.encode()
    return HttpReply(307, link, {"Content-Type": f"{HTML}; charset=utf-8", "Location": path})


@cache
def _page(rules: tuple[Route, ...]) -> bytes:
    return page(document(rules)).encode()
