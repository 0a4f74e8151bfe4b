"""The OpenAPI document and its page, made from the table of routes and their types."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from tidegate.service.docs_page import HEADERS, all_codes, codes_of, page
from tidegate.service.http import JSON, HttpReply
from tidegate.service.parameters import IDEMPOTENCY_KEY, IN_PATHS, Json, Parameter
from tidegate.service.problem import MEDIA_TYPE, TRY_AGAIN
from tidegate.service.reply_types import Problem
from tidegate.service.request_types import ReasonBody, ResolveBody
from tidegate.service.routing import Route

REF = "#/components/schemas/{name}"
HTML, TEXT = "text/html", "text/plain"
MEANINGS: Mapping[int, str] = {
    200: "Done",
    201: "Created, and at its end",
    202: "Accepted, not yet at its end",
    307: "Redirect",
}


def document(routes: Sequence[Route]) -> Json:
    """The whole document."""
    components = _components(routes)
    paths: dict[str, Json] = {}
    for route in routes:
        operation = _operation(route)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate",
            "version": "1",
            "summary": "Moves money between systems that share no transaction: once, or not at all",
            "description": "Every error is a problem (RFC 9457) with a stable code. Unknown paths "
            "answer 404 and other methods 405. A connection beyond the limit gets 503 OVERLOADED. "
            "All of these are problems too.",
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


def _components(routes: Sequence[Route]) -> Json:
    named = [type_ for route in routes for type_ in (route.body, *route.replies.values())]
    types = {Problem} | {type_ for type_ in named if isinstance(type_, type)}
    ordered = sorted(types, key=_name)
    _, components = msgspec.json.schema_components(ordered, ref_template=REF)
    components["Problem"]["properties"]["code"]["enum"] = all_codes()
    return components


def _operation(route: Route) -> Json:
    replies = {str(status): _reply(status, type_) for status, type_ in route.replies.items()}
    refused = sorted(refusals(route) - set(route.replies))
    module = route.endpoint.__module__.rpartition(".")[2].removesuffix("_routes")
    operation: Json = {
        "summary": route.summary,
        "operationId": f"{module}_{route.endpoint.__name__}",
        "tags": [tag_of(route)],
        "parameters": [*_path_parameters(route.path), *map(_parameter, route.parameters)],
        "responses": replies | {str(status): _refusal(status, route) for status in refused},
        "security": [{"bearerAuth": []}] if route.roles else [],
        "x-roles": sorted(route.roles),
    }
    if route.body is not None:
        content = {JSON: {"schema": _named(route.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def refusals(route: Route) -> set[int]:
    """The statuses with which a route may refuse."""
    found = {400, 413, *route.refuses}
    if route.roles:
        found |= {401, 403, 500}
    if IDEMPOTENCY_KEY in route.parameters:
        found.add(429)  # Creating transfers is limited. In a batch each item is, by itself.
    if "{" in route.path:
        found.add(404)
    return found


def tag_of(route: Route) -> str:
    if not route.roles:
        return "Service"
    return "Owners" if "user" in route.roles else "Operators"


def _name(type_: type[msgspec.Struct]) -> str:
    return type_.__name__


def _named(type_: type[msgspec.Struct]) -> Json:
    return {"$ref": REF.format(name=_name(type_))}


def _reply(status: int, type_: type[msgspec.Struct] | str) -> Json:
    if isinstance(type_, str):
        content: Json = {type_: {"schema": {"type": "string"}}}
    else:
        content = {JSON: {"schema": _named(type_)}}
    return {
        "description": MEANINGS.get(status, "Unavailable"),
        "headers": {"X-Request-Id": {"schema": {"type": "string"}}},
        "content": content,
    }


def _refusal(status: int, route: Route) -> Json:
    plain = status == 400 and route.body in (None, ReasonBody, ResolveBody)
    headers = ["X-Request-Id"]
    headers += ["WWW-Authenticate"] if status == 401 else []
    headers += ["Retry-After"] if status in TRY_AGAIN else []
    return {
        "description": "INVALID_REQUEST" if plain else ", ".join(codes_of(status)),
        "headers": {name: {"schema": {"type": "string"}} for name in headers},
        "content": {MEDIA_TYPE: {"schema": _named(Problem)}},
    }


def _parameter(parameter: Parameter) -> Json:
    name, where, schema, description = parameter
    return {"name": name, "in": where, "description": description, "schema": schema}


def _path_parameters(path: str) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": IN_PATHS.get(f"{parent}/{name}") or IN_PATHS[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for parent, name in re.findall(r"(\w+)/{(\w+)}", path)
    ]


def serve(document: Json) -> HttpReply:
    headers = {"Content-Type": JSON, "Cache-Control": "no-cache"}
    return HttpReply(200, msgspec.json.encode(document), headers)


def serve_page(document: Json) -> HttpReply:
    headers = {"Content-Type": f"{HTML}; charset=utf-8", **HEADERS}
    return HttpReply(200, page(document).encode(), headers)


def redirect_to(path: str) -> HttpReply:
    link = f'<a href="{path}">{path}</a>'.encode()
    return HttpReply(307, link, {"Content-Type": f"{HTML}; charset=utf-8", "Location": path})
