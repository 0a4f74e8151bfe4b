"""Bodies are parsed strictly: everything that two parsers could read differently is refused."""

import contextlib
import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.service.json_body import MalformedBody, decode

LIMIT = 16 * 1024


class Item(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    asset: str
    amount: str


class Order(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    source: str = msgspec.field(name="from")
    amount: str
    owner: int | None = None
    items: tuple[Item, ...] = ()
    notes: Any = None


class Open(msgspec.Struct):
    amount: str


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: dict[str, list[Open | None]]


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    branches: "list[Tree]" = []


GOOD = b'{"from":"SPOT","amount":"1.5"}'


def nested(depth: int) -> bytes:
    return b'{"from":"","amount":"","notes":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def noted(text: bytes) -> bytes:
    return b'{"from":"SPOT","amount":"1","notes":' + text + b"}"


REFUSED = {
    "empty": b"",
    "spaces only": b"  ",
    "cut short": GOOD[:-1],
    "garbage after it": GOOD + b"x",
    "two objects": GOOD + GOOD,
    "a comma too many": b'{"from":"SPOT","amount":"1",}',
    "single quotes": b"{'from':'SPOT','amount':'1'}",
    "a comment": b'{"from":"SPOT",/* */"amount":"1"}',
    "a list": b"[" + GOOD + b"]",
    "a string": b'"from"',
    "a number": b"1",
    "null": b"null",
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": GOOD.decode().encode("utf-16"),
    "UTF-32 without mark": GOOD.decode().encode("utf-32-le"),
    "Latin-1": noted(b'"\xe9"'),
    "overlong UTF-8": noted(b'"\xc0\xaf"'),
    "a surrogate in UTF-8": noted(b'"\xed\xa0\x80"'),
    "half a pair, high": noted(rb'"\ud800"'),
    "half a pair, low": noted(rb'"x\udc00"'),
    "a pair the wrong way round": noted(rb'"\udc00\ud800"'),
    "half a pair in a key": noted(rb'{"\ud800":1}'),
    "half a pair in a list": noted(rb'[[["\ud800"]]]'),
    "NUL": noted(b'"\x00"'),
    "NUL, escaped": noted(rb'"\u0000"'),
    "NUL between tokens": b"{\x00" + GOOD[1:],
    "a line feed": noted(b'"a\nb"'),
    "a line feed, escaped": noted(rb'"a\nb"'),
    "an escape character": noted(rb'"\u001b[31m"'),
    "DEL": noted(b'"\x7f"'),
    "DEL, escaped": noted(rb'"\u007f"'),
    "a C1 control": noted(b'"\xc2\x85"'),
    "a control in a key": noted(rb'{"a\tb":1}'),
    "too deep": nested(9),
    "far too deep": nested(200_000)[:LIMIT],
    "bottomless": b"[" * LIMIT,
    "bottomless objects": (b'{"a":' * LIMIT)[:LIMIT],
    "too deep behind a string of brackets": noted(b'["[]{}]]",' + b"[" * 8 + b"]" * 9),
    "a key twice": b'{"from":"SPOT","amount":"1","amount":"2"}',
    "a key twice, once escaped": rb'{"from":"SPOT","amount":"1","\u0061mount":"2"}',
    "a key twice with one value": b'{"from":"SPOT","amount":"1","amount":"1"}',
    "a key twice below": noted(b'[{"a":1,"b":2,"a":1}]'),
    "NaN": noted(b"NaN"),
    "Infinity": noted(b"Infinity"),
    "-Infinity": noted(b"[-Infinity]"),
    "1e400": noted(b"1e400"),
    "-1e400": noted(b"-1e400"),
    "5 000 digits": noted(b"9" * 5_000),
    "5 000 digits below zero": noted(b"-" + b"9" * 5_000),
    "2**64": noted(b"18446744073709551616"),
    "a leading zero": noted(b"01"),
    "a leading plus": noted(b"+1"),
    "hexadecimal": noted(b"0x10"),
    "an amount as a fraction": b'{"from":"SPOT","amount":1.5}',
    "an amount as a number": b'{"from":"SPOT","amount":1}',
    "an amount as null": b'{"from":"SPOT","amount":null}',
    "an amount in a list": b'{"from":"SPOT","amount":["1"]}',
    "an owner as a string": b'{"from":"SPOT","amount":"1","owner":"1"}',
    "an owner as a fraction": b'{"from":"SPOT","amount":"1","owner":1.0}',
    "an owner as a bool": b'{"from":"SPOT","amount":"1","owner":true}',
    "a field missing": b'{"from":"SPOT"}',
    "an unknown field": b'{"from":"SPOT","amount":"1","admin":true}',
    "a field by its inner name": b'{"source":"SPOT","amount":"1"}',
    "a field in other letters": b'{"from":"SPOT","Amount":"1"}',
    "an unknown field below": b'{"from":"","amount":"1","items":[{"asset":"","amount":"","x":1}]}',
    "an unknown field of any length": b'{"from":"","amount":"1","' + b"x" * 9_000 + b'":1}',
    "an unknown field that cannot be printed": '{"from":"","amount":"","\u202e\u2028":1}'.encode(),
    "too many bytes": GOOD + b" " * LIMIT,
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED.keys())
def test_a_malformed_body_is_refused_in_one_short_printable_line(raw: bytes) -> None:
    with pytest.raises(MalformedBody) as refused:
        decode(raw, Order, max_bytes=LIMIT)
    detail = refused.value.detail
    assert str(refused.value) == detail
    assert 0 < len(detail) <= 160
    assert detail.isprintable()


ACCEPTED = {
    "plain": GOOD,
    "with spaces": b' {\r\n\t"from": "SPOT",\n "amount": "1.5" }\n',
    "of spaces and other letters": '{\r\n\t"from":"SPOT", "amount":"é"\n}'.encode(),
    "a whole pair": noted(rb'"\ud83d\ude00"'),
    "escapes that are no controls": noted(rb'"\" \\ \/ \u00e9 \\ud800 \\n"'),
    "as deep as allowed": nested(8),
    "brackets in strings": noted(rb'"[[[[[[[[[[{{{{{{{{{{\"[[["'),
    "many shallow ones": noted(b"[" + b",".join([b"{},[]"] * 500) + b"]"),
    "the same key in two objects": noted(b'[{"a":1},{"a":1}]'),
    "the largest number": noted(b"18446744073709551615"),
    "the smallest number": noted(b"-9223372036854775808"),
    "an unused fraction": noted(b"1.5e3"),
}


@pytest.mark.parametrize("raw", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_valid_body_is_accepted_unchanged(raw: bytes) -> None:
    order = decode(raw, Order, max_bytes=LIMIT)
    read = json.loads(raw)
    assert (order.source, order.amount, order.notes) == (
        read["from"],
        read["amount"],
        read.get("notes"),
    )


def test_the_limits_are_exact() -> None:
    assert decode(GOOD, Order, max_bytes=len(GOOD)) == Order("SPOT", "1.5")
    with pytest.raises(MalformedBody, match=f"send at most {len(GOOD) - 1}"):
        decode(GOOD, Order, max_bytes=len(GOOD) - 1)
    for depth in range(2, 12):
        raw = nested(depth)
        assert decode(raw, Order, max_bytes=LIMIT, max_depth=depth).source == ""
        with pytest.raises(MalformedBody, match=f"at most {depth - 1} levels"):
            decode(raw, Order, max_bytes=LIMIT, max_depth=depth - 1)


def test_a_refusal_says_what_is_wrong() -> None:
    for raw, message in (
        (b'{"from":"SPOT","amount":1.5}', "Expected `str`, got `float` - at `$.amount`"),
        (b'{"from":"SPOT","amount":"1","admin":1}', "unknown field `admin`"),
        (b'{"from":"SPOT","from":"SPOT"}', "the key from occurs twice: send it once"),
        (noted(b"9" * 5_000), "is out of range: send amounts as strings"),
    ):
        with pytest.raises(MalformedBody) as refused:
            decode(raw, Order, max_bytes=LIMIT)
        assert message in refused.value.detail


@pytest.mark.parametrize("type_", [Open, Outer, list[Open], dict[str, Open | None]])
def test_a_type_that_would_drop_unknown_fields_cannot_be_used(type_: Any) -> None:
    for _ in range(2):
        with pytest.raises(AssertionError, match="Open accepts unknown fields"):
            decode(b'{"amount":"1"}', type_, max_bytes=LIMIT)


def test_a_type_may_contain_itself() -> None:
    tree = decode(b'{"branches":[{"branches":[]}]}', Tree, max_bytes=LIMIT)
    assert tree == Tree([Tree()])
    with pytest.raises(MalformedBody):
        decode(b'{"branches":[{"leaves":[]}]}', Tree, max_bytes=LIMIT)


def test_no_body_of_a_megabyte_takes_long() -> None:
    size = 2**20
    shapes = (
        b'{"a":[' + b",".join([b"[]"] * (size // 4)) + b"]}",
        b'{"a":"' + rb"\"" * (size // 3) + b'"}',
        b'{"a":"' + rb"\"" * (size // 3),
        b'{"a":"' + rb"\"" * (size // 3) + b"\\",
        b"{" + b",".join(b'"%d":1' % n for n in range(size // 12)) + b',"9":1,"9":1}',
        b'{"a":[' + b",".join([rb'"\u0041"'] * (size // 10)) + b"]}",
    )
    for raw in shapes:
        began = time.process_time()
        with contextlib.suppress(MalformedBody):
            decode(raw, dict, max_bytes=size)
        assert time.process_time() - began < 2


plain_texts = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=20)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | plain_texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_texts, inner, max_size=4),
    max_leaves=12,
)
plain_objects = st.dictionaries(plain_texts, plain_values, max_size=6)


@settings(deadline=None)
@given(plain_objects, st.booleans(), st.sampled_from([None, 2]))
def test_what_json_writes_is_read_unchanged(
    value: dict[str, Any], escaped: bool, indent: int | None
) -> None:
    raw = json.dumps(value, ensure_ascii=escaped, indent=indent).encode()
    assert decode(raw, dict, max_bytes=len(raw), max_depth=50) == value


def depth_of(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case list():
            return 1 + max(map(depth_of, value), default=0)
    return 0


@settings(deadline=None)
@given(plain_objects, st.integers(1, 6))
def test_the_depth_is_counted_exactly(value: dict[str, Any], most: int) -> None:
    raw = json.dumps(value).encode()
    if depth_of(value) <= most:
        assert decode(raw, dict, max_bytes=len(raw), max_depth=most) == value
    else:
        with pytest.raises(MalformedBody, match="nested too deeply"):
            decode(raw, dict, max_bytes=len(raw), max_depth=most)


@settings(deadline=None)
@given(plain_objects.filter(bool), st.sampled_from("\x00\x1f\x7f\x9f\ud800\udfff"), st.randoms())
def test_a_control_character_is_refused_wherever_it_is(
    value: dict[str, Any], poison: str, dice: Any
) -> None:
    key = dice.choice(list(value))
    for poisoned in ({**value, key: [poison]}, {**value, key: {"a": poison}}, {poison: value}):
        with pytest.raises(MalformedBody, match="control character"):
            decode(json.dumps(poisoned).encode(), dict, max_bytes=2**20, max_depth=50)


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text('{}[]":,\\u01aeE+-. ntf', max_size=60).map(str.encode))
def test_any_bytes_are_accepted_or_refused_without_another_error(raw: bytes) -> None:
    try:
        value = decode(raw, dict, max_bytes=LIMIT)
    except MalformedBody:
        return
    assert value == json.loads(raw)
    assert value == msgspec.json.decode(raw)
