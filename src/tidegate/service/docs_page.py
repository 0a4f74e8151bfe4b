"""The API for people: what its parts mean in words, and the page that shows them all."""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tidegate.core.refusals import Reason, Refusal
from tidegate.service.parameters import Json
from tidegate.service.problem import DEFAULT_STATUS, DETAILS, STATUS


def codes_of(status: int) -> list[str]:
    """Every code that an answer of this status may carry."""
    named = [str(code) for code, given in STATUS.items() if given == status]
    systems = [str(reason) for reason in Reason if reason not in STATUS]
    return named + (systems if status == DEFAULT_STATUS else [])


def all_codes() -> list[str]:
    return list(dict.fromkeys([*Refusal, *Reason, *STATUS]))


def meaning_of(code: str) -> str:
    return DETAILS.get(code) or MEANINGS.get(code, "")


# Of codes that a system gives, and of those whose detail differs from case to case.
MEANINGS: Mapping[str, str] = {
    Refusal.INVALID_REQUEST: "the request is malformed; the detail says where",
    Refusal.RATE_LIMIT_EXCEEDED: "too many requests in a second",
    Refusal.DAILY_LIMIT_EXCEEDED: "too many transfers in a day",
    Refusal.DAILY_AMOUNT_EXCEEDED: "too much of this asset in a day",
    Reason.INVALID_OWNER: "an owner is a whole number from 1 on",
    Reason.SOURCE_ACCOUNT_NOT_FOUND: "there is no such account to take the money from",
    Reason.TARGET_ACCOUNT_NOT_FOUND: "there is no such account to give the money to",
    Reason.ACCOUNT_FROZEN: "the account is frozen",
    Reason.ACCOUNT_DISABLED: "the account is disabled",
    Reason.INSUFFICIENT_BALANCE: "the account has less than the amount",
    Reason.BALANCE_OVERFLOW: "the account would have more than it can hold",
    Reason.UNDONE: "the operation was undone before it arrived",
}


STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 64rem; margin: 0 auto; padding: 1rem; }
h2 { border-bottom: 1px solid var(--line); margin-top: 3rem; }
article { border: 1px solid var(--line); border-radius: 0.5rem; padding: 0 1rem; margin: 1rem 0; }
article > :target, article:target { border-color: currentColor; }
h3 { margin: 0.8rem 0 0.2rem; }
p { margin: 0.4rem 0; }
nav ul { list-style: none; padding: 0; }
code, pre { font: 0.9rem/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { background: var(--soft); border-radius: 0.3rem; padding: 0.5rem; white-space: pre-wrap; }
table { border-collapse: collapse; width: 100%; margin: 0.6rem 0; font-size: 0.95rem; }
caption { text-align: left; font-weight: 600; }
th, td { text-align: left; vertical-align: top; padding: 0.2rem 0.6rem; }
tr { border-bottom: 1px solid var(--line); }
th[scope=row] { font-weight: 400; white-space: nowrap; }
summary { cursor: pointer; margin: 0.6rem 0; }
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page(document: Json) -> str:
    """The same document, to be read by a person. No script, nothing from elsewhere."""
    tags = [tag["name"] for tag in document["tags"]]
    links = "".join(f'<li><a href="#{tag}">{tag}</a></li>' for tag in [*tags, "Types", "Codes"])
    index = "".join(_index(document, tag) for tag in tags)
    routes = "".join(_group(document, tag) for tag in tags)
    schemas = document["components"]["schemas"]
    types = "".join(_type(name, schema) for name, schema in schemas.items())
    title, summary = document["info"]["title"], document["info"]["summary"]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title} API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>"
        f"<header><h1>{title} API</h1><p>{_text(summary)}.</p>"
        f"<p>{_text(document['info']['description'])} "
        'The same for programs: <a href="/openapi.json">/openapi.json</a>.</p></header>'
        f'<nav aria-label="Sections"><ul>{links}</ul>{index}</nav><main>{routes}'
        f'<section id="Types"><h2>Types</h2>{types}</section>'
        f'<section id="Codes"><h2>Codes</h2>{_codes()}</section></main></body></html>\n'
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _table(caption: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already."""
    lines = [f"<tr><th scope='row'>{r[0]}</th>{_cells(r[1:])}</tr>" for r in rows]
    head = "".join(f"<th scope='col'>{name}</th>" for name in names)
    if not lines:
        return ""
    named = f"<caption>{caption}</caption>" if caption else ""
    return f"<table>{named}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _cells(texts: Sequence[str]) -> str:
    return "".join(f"<td>{text}</td>" for text in texts)


def _operations(document: Json, tag: str) -> Iterator[tuple[str, Json]]:
    """Method and path, and what they do."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation["tags"]:
                yield f"{method.upper()} {path}", operation


def _index(document: Json, tag: str) -> str:
    rows = (
        (
            f'<a href="#{operation["operationId"]}"><code>{_text(name)}</code></a>',
            _text(operation["summary"]),
            ", ".join(operation["x-roles"]) or "anybody",
        )
        for name, operation in _operations(document, tag)
    )
    return _table(tag, ("route", "what", "for"), rows)


def _group(document: Json, tag: str) -> str:
    schemas = document["components"]["schemas"]
    found = [_route(name, said, schemas) for name, said in _operations(document, tag)]
    return f'<section id="{tag}"><h2>{tag}</h2>{"".join(found)}</section>'


def _route(name: str, operation: Json, schemas: Json) -> str:
    roles = ", ".join(operation["x-roles"]) or "anybody, without a token"
    parts = [
        f'<article id="{operation["operationId"]}"><h3><code>{_text(name)}</code></h3>',
        f"<p>{_text(operation['summary'])}. For: {roles}.</p>",
        _table(
            "Parameters",
            ("name", "where", "what"),
            (
                (f"<code>{p['name']}</code>", p["in"], _text(p["description"]))
                for p in operation["parameters"]
            ),
        ),
    ]
    if "requestBody" in operation:
        body = operation["requestBody"]
        [content] = body["content"].values()
        sample = json.dumps(_sample(content["schema"], schemas))
        parts.append(f"<p>Body: {_content(body)}, such as</p><pre>{_text(sample)}</pre>")
    answers = [
        (status, _text(said["description"]), _content(said))
        for status, said in operation["responses"].items()
    ]
    given = [answer for answer in answers if answer[0] < "400"]
    refused = [answer for answer in answers if answer[0] >= "400"]
    parts.append(_table("Answers", ("status", "meaning", "body"), given))
    if refused:
        codes = _table("", ("status", "codes", "body"), refused)
        parts.append(f"<details><summary>How it may refuse</summary>{codes}</details>")
    return "".join(parts) + "</article>"


def _sample(schema: Json, schemas: Json) -> object:
    """One value that such a type may have: what must be there, and what has an example."""
    if "$ref" in schema:
        return _sample(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "examples" in schema:
        return schema["examples"][0]
    if schema.get("type") == "array":
        return [_sample(schema["items"], schemas)]
    fields = schema.get("properties", {})
    wanted = schema.get("required") or [name for name in fields if "examples" in fields[name]]
    return {name: _sample(fields[name], schemas) for name in wanted}


def _content(said: Json) -> str:
    [(media, content)] = said["content"].items()
    return f"{_schema(content['schema'])} <small>({media})</small>"


def _schema(schema: Json) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#type-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_schema, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_schema(schema['items'])}"
    if "enum" in schema:
        return ", ".join(f"<code>{_text(value)}</code>" for value in schema["enum"])
    return _text(schema.get("type", "anything"))


def _type(name: str, schema: Json) -> str:
    rows = (
        (
            f"<code>{field}</code>",
            _schema(property_),
            "yes" if field in schema.get("required", ()) else "no",
            _text(property_.get("description", "")),
        )
        for field, property_ in schema["properties"].items()
    )
    said = _text(schema.get("description", ""))
    table = _table(name, ("field", "type", "always", "notes"), rows)
    return f'<article id="type-{name}"><h3>{name}</h3><p>{said}</p>{table}</article>'


def _codes() -> str:
    systems = {reason: DEFAULT_STATUS for reason in Reason if reason not in STATUS}
    rows = (
        (f"<code>{code}</code>", str(status), _text(meaning_of(code)))
        for code, status in (dict(STATUS) | systems).items()
    )
    return _table("Every code of a problem", ("code", "status", "meaning"), rows)
