"""The body of a request, taken strictly or not at all.

What JSON parsers differ on is refused, so that nobody in front of us can read another request
than we do: a second key of the same name, NaN, half a surrogate pair, a number of any length.
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

CLOSED_TYPES: set[object] = set()  # Found to forbid unknown fields, at their first use.

T = TypeVar("T")


class MalformedBody(ValueError):
    """A body that is not taken. Its text is one short line, and safe to send back."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


def decode(raw: bytes, type_: type[T], *, max_bytes: int, max_depth: int = MAX_DEPTH) -> T:
    """Read one JSON object as the type, which must forbid unknown fields in all its parts."""
    if len(raw) > max_bytes:
        raise MalformedBody(f"the body has {len(raw)} bytes: send at most {max_bytes}")
    if type_ not in CLOSED_TYPES:
        refuse_open_structs(type_)
        CLOSED_TYPES.add(type_)
    value = parse(raw, max_depth)
    try:
        return msgspec.convert(value, type_, str_keys=True)
    except msgspec.ValidationError as error:
        raise MalformedBody(f"the body does not fit: {quoted(str(error), DETAIL_CHARS)}") from None


def parse(raw: bytes, max_depth: int) -> dict[str, Any]:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not UTF-8 at byte {error.start}: encode it so") from None
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
    """Level by level, each of what is inside the one before."""
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
    """Written as they are, the parser has refused all below the space; here come the others."""
    if "\\" in text:
        found = any(map(CONTROLS.search, strings(value)))
    elif text.isascii():
        found = "\x7f" in text
    else:
        found = CONTROLS.search(text.translate(WHITESPACE)) is not None
    if found:
        raise MalformedBody(
            "a string has a control character or half a surrogate pair: leave it out"
        )


def strings(value: object) -> Iterator[str]:
    """Every string in the value, keys included."""
    rest = [value]
    while rest:
        match rest.pop():
            case str(text):
                yield text
            case dict(fields):
                yield from fields
                rest.extend(fields.values())
            case list(items):
                rest.extend(items)


def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        last = {name: place for place, (name, _) in enumerate(pairs)}
        twin = next(name for place, (name, _) in enumerate(pairs) if last[name] != place)
        raise MalformedBody(f"the key {quoted(twin)} is there twice: send it once")
    return fields


def whole(digits: str) -> int:
    if len(digits) > MAX_NUMBER_CHARS or not MIN_NUMBER <= (number := int(digits)) <= MAX_NUMBER:
        raise MalformedBody(f"the number {quoted(digits)} is too large: amounts are strings")
    return number


def fraction(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise MalformedBody(f"the number {quoted(digits)} is too large: amounts are strings")
    return number


def no_number(name: str) -> NoReturn:
    raise MalformedBody(f"{name} is not a number: amounts are strings")


def quoted(text: str, limit: int = QUOTED_CHARS) -> str:
    """As much of what a stranger wrote as is safe to repeat."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else "?" for c in short)


def refuse_open_structs(type_: object) -> None:
    """A type that would drop an unknown field in silence is our bug, found at its first use."""
    for part in parts(msgspec.inspect.type_info(type_), set()):
        if isinstance(part, msgspec.inspect.StructType):
            assert part.forbid_unknown_fields, f"{part.cls.__name__} lets unknown fields pass"


def parts(type_: object, seen: set[int]) -> Iterator[object]:
    """The type and all the types it is made of. A type may contain itself."""
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
    object_pairs_hook=without_twins,
    parse_int=whole,
    parse_float=fraction,
    parse_constant=no_number,
)
