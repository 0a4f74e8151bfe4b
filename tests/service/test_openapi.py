"""The OpenAPI document says what the service does, no more and no less."""

import asyncio
import copy
import html.parser
import re
from typing import Any

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

from tests.service.rig import ALICE, Front, Play, token
from tidegate.core.refusals import Reason, Refusal
from tidegate.service.api import RULES
from tidegate.service.docs_page import meaning_of
from tidegate.service.openapi import ROUTES, document
from tidegate.service.problem import STATUS

DOCUMENT = document(RULES)
EXAMPLES = 12
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
    "user": token(str(ALICE), "user"),
    "operator": token("olga", "operator"),
    "approver": token("anna", "approver"),
}


def strict() -> dict[str, Any]:
    """The document as it would be if an answer could not have a field that it does not name."""
    whole = copy.deepcopy(DOCUMENT)
    for name, schema in whole["components"]["schemas"].items():
        if name not in ("Audited", "Document"):
            schema["additionalProperties"] = False
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
    ruled = sorted((rule.method, rule.path) for rule in RULES)
    assert sorted((method, path) for method, path, _ in operations()) == ruled
    assert sorted(ROUTES) == ruled
    for rule in RULES:
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


def test_the_docs_page_stands_alone_and_shows_every_route(play: Play) -> None:
    async def scene(front: Front) -> None:
        said = await front.call("GET", "/docs")
        assert said.status == 200
        assert said.headers["content-type"] == "text/html; charset=utf-8"
        policy = said.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert said.headers["x-content-type-options"] == "nosniff"
        outline = Outline()
        outline.feed(said.body)
        assert outline.tags.isdisjoint({"script", "link", "img", "iframe", "form", "object"})
        assert {"main", "nav", "h1", "caption", "title"} <= outline.tags
        assert outline.given["html.lang"] == "en"
        assert len(set(outline.ids)) == len(outline.ids)
        inside = {link.removeprefix("#") for link in outline.links if link.startswith("#")}
        assert inside <= set(outline.ids)
        assert {link for link in outline.links if not link.startswith("#")} == {"/openapi.json"}
        for rule in RULES:
            assert f"<code>{rule.method} {rule.path}</code>" in said.body
        served = await front.call("GET", "/openapi.json")
        assert served.body == DOCUMENT

    play(scene)


def fuzz(url: str, who: str | None) -> int:
    """Ask what the document allows and what it does not; count the questions."""
    asked = 0
    schema = from_dict(strict())
    found = [result.ok() for result in schema.get_all_operations()]
    headers = {} if who is None else {"Authorization": f"Bearer {who}"}

    def examples(operation: schemathesis.APIOperation, mode: GenerationMode) -> None:
        @hypothesis.seed(7)
        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def one(case: schemathesis.Case) -> None:
            nonlocal asked
            asked += 1
            response = case.call(base_url=url, headers=headers, timeout=20)
            case.validate_response(response, checks=CHECKS)

        one()

    for operation in sorted(found, key=lambda o: any(last in o.path for last in LAST)):
        examples(operation, GenerationMode.POSITIVE)
        if operation.body or operation.query:  # Else there is nothing that could be wrong.
            examples(operation, GenerationMode.NEGATIVE)
    return asked


@pytest.mark.slow
@pytest.mark.parametrize("who", TOKENS)
def test_schemathesis_finds_no_5xx_and_no_undocumented_answer(play: Play, who: str) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "1000000")
        asked = await asyncio.to_thread(fuzz, str(front.client.base_url), TOKENS[who])
        assert asked > len(RULES) * EXAMPLES // 2

    play(scene)
