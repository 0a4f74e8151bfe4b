"""Strict parsing of JSON bodies.

Everything that JSON parsers read differently is refused: duplicate keys, NaN, half a surrogate
pair, very long numbers. Otherwise a proxy in front of us could check one request while we run
another.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar

import msgspec

MAX_DEPTH = 8
MIN_NUMBER, MAX_NUMBER = -(2**63), 2**64 - 1
MAX_NUMBER_CHARS = 20
QUOTED_CHARS = 40
DETAIL_CHARS = 120

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

CLOSED_TYPES: set[object] = set()  # Types that were checked: they forbid unknown fields.

T = TypeVar("T")


class MalformedBody(ValueError):
    """The body is refused. The message is one short line that is safe to send to the client."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


def decode(raw: bytes, type_: type[T], *, max_bytes: int, max_depth: int = MAX_DEPTH) -> T:
    """Parse one JSON object into the type. All structs in it must forbid unknown fields."""
    if len(raw) > max_bytes:
        raise MalformedBody(f"the body has {len(raw)} bytes: send at most {max_bytes}")
    if type_ not in CLOSED_TYPES:
        assert_closed_structs(type_)
        CLOSED_TYPES.add(type_)
    value = parse(raw, max_depth)
    try:
        return msgspec.convert(value, type_, str_keys=True)
    except msgspec.ValidationError as error:
        raise MalformedBody(
            f"the body has a wrong field: {quoted(str(error), DETAIL_CHARS)}"
        ) from None


def parse(raw: bytes, max_depth: int) -> dict[str, Any]:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not UTF-8 at byte {error.start}: send UTF-8") from None
    if text.startswith("\ufeff"):
        raise MalformedBody("the body begins with a byte order mark: leave it out")
    try:
        value = PARSER.decode(text)
    except json.JSONDecodeError as error:
        raise MalformedBody(f"the body is not JSON at character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise MalformedBody(f"the body is nested too deeply: at most {max_depth} levels") from None
    if not isinstance(value, dict):
        raise MalformedBody("the body is not an object: send {…}")
    refuse_depth(value, max_depth)
    refuse_controls(text, value)
    return value


def refuse_depth(value: dict[str, Any], max_depth: int) -> None:
    """Refuse more than `max_depth` levels. Each round collects the containers one level deeper."""
    level: list[Any] = [value]
    for _ in range(max_depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise MalformedBody(f"the body is nested too deeply: at most {max_depth} levels")


def refuse_controls(text: str, value: object) -> None:
    """Refuse control characters and half surrogate pairs in strings, escaped or not.

    The parser has already refused unescaped characters below the space.
    """
    if "\\" in text:
        forbidden = any(map(CONTROLS.search, strings(value)))
    elif text.isascii():
        forbidden = "\x7f" in text
    else:
        forbidden = CONTROLS.search(text.translate(WHITESPACE)) is not None
    if forbidden:
        raise MalformedBody(
            "a string has a control character or half a surrogate pair: leave it out"
        )


def strings(value: object) -> Iterator[str]:
    """Yield every string in the value, including keys."""
    stack = [value]
    while stack:
        match stack.pop():
            case str(text):
                yield text
            case dict(fields):
                yield from fields
                stack.extend(fields.values())
            case list(items):
                stack.extend(items)


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        last = {name: index for index, (name, _) in enumerate(pairs)}
        duplicate = next(name for index, (name, _) in enumerate(pairs) if last[name] != index)
        raise MalformedBody(f"the key {quoted(duplicate)} occurs twice: send it once")
    return fields


def bounded_int(digits: str) -> int:
    if len(digits) > MAX_NUMBER_CHARS or not MIN_NUMBER <= (number := int(digits)) <= MAX_NUMBER:
        raise MalformedBody(f"the number {quoted(digits)} is out of range: send amounts as strings")
    return number


def bounded_float(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise MalformedBody(f"the number {quoted(digits)} is out of range: send amounts as strings")
    return number


def refuse_constant(name: str) -> NoReturn:
    raise MalformedBody(f"{name} is not valid JSON: send amounts as strings")


def quoted(text: str, limit: int = QUOTED_CHARS) -> str:
    """Shorten a client's text and replace what is not printable, so that it is safe to repeat."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else "?" for c in short)


def assert_closed_structs(type_: object) -> None:
    """Assert at a type's first use that it forbids unknown fields: dropping one would be a bug."""
    for part in parts(msgspec.inspect.type_info(type_), set()):
        if isinstance(part, msgspec.inspect.StructType):
            assert part.forbid_unknown_fields, f"{part.cls.__name__} accepts unknown fields"


def parts(type_: object, seen: set[int]) -> Iterator[object]:
    """Yield the type and all types it is made of. A type may contain itself."""
    if isinstance(type_, tuple):
        for item in type_:
            yield from parts(item, seen)
    elif isinstance(type_, msgspec.inspect.Type | msgspec.inspect.Field) and id(type_) not in seen:
        seen.add(id(type_))
        yield type_
        for name in type_.__struct_fields__:
            yield from parts(getattr(type_, name), seen)


WHITESPACE = dict.fromkeys(map(ord, "\t\n\r"))
PARSER = json.JSONDecoder(
    object_pairs_hook=unique_fields,
    parse_int=bounded_int,
    parse_float=bounded_float,
    parse_constant=refuse_constant,
)
