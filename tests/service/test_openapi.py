"""The OpenAPI document says what the service does, no more and no less."""

import asyncio
import copy
import html.parser
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.openapi import from_dict
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.conftest import SCHEMA
from tests.service.rig import ALICE, PUBLIC, TERMS, ApiClient, Run, bearer, serving
from tidegate.app import Setup, open_gate
from tidegate.core.refusals import Reason, Refusal
from tidegate.service.auth import Verifier
from tidegate.service.docs_page import meaning_of
from tidegate.service.keys import FixedKeys, key_of_pem
from tidegate.service.metrics import Metrics
from tidegate.service.openapi import document
from tidegate.service.problem import DEFAULT_STATUS, STATUS
from tidegate.service.routes import ROUTES
from tidegate.service.routing import ServiceContext

DOCUMENT = document(ROUTES)
EXAMPLES, FEW = 25, 3  # Of questions that the caller may ask, and of others.
Operation: TypeAlias = schemathesis.APIOperation[Any, Any, Any, Any]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# They pull the brake or change what the others see: last, so that the others are tried first.
LAST = ("/halt", "/resume", "/account_status", "/operator/assets/")
TOKENS = {
    "nobody": None,
    "user": bearer(str(ALICE), "user"),
    "operator": bearer("olga", "operator"),
    "approver": bearer("anna", "approver"),
}
REACHED = {  # Statuses without which the fuzzing was too shallow to say anything.
    "nobody": {200, 401},
    "user": {200, 201, 400, 403, 404, 422},
    "operator": {200, 201, 400, 403, 404},
    "approver": {200, 400, 403, 404},
}
WORDS: dict[str, list[object]] = {
    "asset": ["USDT", "POINT", "DOGE"],
    "amount": ["1", "0.5", "999999999", "0.00000001"],
    "user_id": [ALICE],
}
IN = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1"}


def strict(made: str) -> dict[str, Any]:
    """The document as it would be if an answer could not have a field that it does not name.

    Where only few words get past the first check, they are named: else nothing deeper is tried.
    """
    whole = copy.deepcopy(DOCUMENT)
    for name, schema in whole["components"]["schemas"].items():
        schema["additionalProperties"] = False
        for field, words in WORDS.items():
            if name.endswith("Body") and field in schema["properties"]:
                schema["properties"][field]["enum"] = words
        if name == "TransferBody":
            schema["properties"]["from"]["enum"] = ["FUNDING"]
    known = {"id": [made, "1", "x"], "code": ["USDT", "DOGE"], "cursor": [made, "x"]}
    for methods in whole["paths"].values():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                if parameter["name"] in known:
                    parameter["schema"] = {"enum": known[parameter["name"]]}
    return whole


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    ]


def references(value: object) -> set[str]:
    match value:
        case {"$ref": str(name)}:
            return {name}
        case dict():
            return set().union(*map(references, value.values()))
        case list():
            return set().union(*map(references, value))
        case _:
            return set()


def test_the_document_is_valid_openapi_3_1() -> None:
    schema = from_dict(copy.deepcopy(DOCUMENT))
    schema.validate()
    assert schema.specification.name == "Open API 3.1.0"
    assert all(isinstance(found, Ok) for found in schema.get_all_operations())


def test_every_rule_is_in_the_document_and_nothing_else() -> None:
    ruled = sorted((rule.method, rule.path) for rule in ROUTES)
    assert sorted((method, path) for method, path, _ in operations()) == ruled
    for rule in ROUTES:
        operation = DOCUMENT["paths"][rule.path][rule.method.lower()]
        assert operation["x-roles"] == sorted(rule.roles)
        assert operation["security"] == ([{"bearerAuth": []}] if rule.roles else [])


def test_operations_have_names_of_their_own_and_describe_their_path() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    for _, path, operation in operations():
        named = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path))


def test_every_type_is_used_and_every_reference_leads_somewhere() -> None:
    there = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert references(DOCUMENT) == there


def test_every_code_is_listed_and_has_a_meaning() -> None:
    listed = set(DOCUMENT["components"]["schemas"]["Problem"]["properties"]["code"]["enum"])
    assert listed == {*map(str, Refusal), *map(str, Reason), *STATUS}
    assert [code for code in listed if not meaning_of(code)] == []


def test_the_written_page_names_every_route_and_every_code() -> None:
    written = (Path(__file__).parents[2] / "docs" / "api.md").read_text("utf-8")
    for rule in ROUTES:
        assert rule.path.replace("/api/v1/operator", "…") in written
    for code in DOCUMENT["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]:
        status = STATUS.get(code, DEFAULT_STATUS)
        assert f"| `{code}` | {status} | {meaning_of(code)} |" in written


class Outline(html.parser.HTMLParser):
    """What of a page matters here: its elements, ids and links."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.given: dict[str, str | None] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        named = dict(attrs)
        self.given |= {f"{tag}.{name}": value for name, value in attrs}
        self.ids += [named["id"] or ""] if "id" in named else []
        self.links += [named["href"] or ""] if "href" in named else []


def test_the_docs_page_stands_alone_and_shows_every_route(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        reply = await api.call("GET", "/docs")
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        outline = Outline()
        outline.feed(reply.body)
        assert outline.tags.isdisjoint({"script", "link", "img", "iframe", "form", "object"})
        assert {"main", "nav", "h1", "caption", "title"} <= outline.tags
        assert outline.given["html.lang"] == "en"
        assert len(set(outline.ids)) == len(outline.ids)
        inside = {link.removeprefix("#") for link in outline.links if link.startswith("#")}
        assert inside <= set(outline.ids)
        assert {link for link in outline.links if not link.startswith("#")} == {"/openapi.json"}
        for rule in ROUTES:
            assert f"<code>{rule.method} {rule.path}</code>" in reply.body
        serving = await api.call("GET", "/openapi.json")
        assert serving.body == DOCUMENT

    run(scenario)


def test_a_core_that_is_away_gives_a_documented_answer(database: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        setup = Setup(database, SCHEMA, core=f"unix:{tmp_path}/nothing")
        async with open_gate(setup) as gate:
            verifier = Verifier(FixedKeys([key_of_pem("test", PUBLIC)]), TERMS, time.time)
            service = ServiceContext(
                gate, verifier.authenticate, Metrics(), time.monotonic, lambda: "1"
            )
            async with serving(service) as api:
                reply = await api.call("GET", "/api/v1/balances", bearer=TOKENS["user"])
                assert (reply.status, reply.body["code"]) == (503, "UNAVAILABLE")
                assert reply.headers["x-request-id"] == "1"
                ready = await api.call("GET", "/readyz")
                assert ready.status == 503, "a core that does not answer is not ready"

    asyncio.run(scenario())


def fuzz(url: str, bearer: str, made: str) -> Counter[int]:
    """Ask what the document allows and what it does not; count the answers."""
    statuses: Counter[int] = Counter()
    schema = from_dict(strict(made))
    found = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
    headers = {"Authorization": f"Bearer {TOKENS[bearer]}"} if TOKENS[bearer] else {}

    def examples(operation: Operation, mode: GenerationMode) -> None:
        roles = DOCUMENT["paths"][operation.path][operation.method]["x-roles"]

        @hypothesis.seed(7)
        @hypothesis.settings(
            max_examples=EXAMPLES if not roles or bearer in roles else FEW,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def one(case: schemathesis.Case[Any]) -> None:
            case.headers.pop("Authorization", None)  # Who asks is ours to say.
            response = case.call(base_url=url, headers=headers, timeout=20)
            statuses[response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

        one()

    for operation in sorted(found, key=lambda o: any(last in o.path for last in LAST)):
        examples(operation, GenerationMode.POSITIVE)
        if operation.body or operation.query:  # Else there is nothing that could be wrong.
            examples(operation, GenerationMode.NEGATIVE)
    return statuses


@pytest.mark.slow
@pytest.mark.parametrize("bearer", TOKENS)
def test_schemathesis_finds_no_5xx_and_no_undocumented_answer(run: Run, bearer: str) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "1000000")
        made = await api.transfer(IN)
        url, id_ = str(api.client.base_url), made.body["req_id"]
        statuses = await asyncio.to_thread(fuzz, url, bearer, id_)
        assert set(statuses) >= REACHED[bearer], statuses

    run(scenario)
