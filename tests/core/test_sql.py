"""Named statements reach the server without their comments, and batches as its arrays."""

from uuid import UUID

import pytest

import tidegate.core.sql
from tidegate.core.sql import (
    MAX_SHARED_GROUPS,
    EncodedText,
    amounts,
    bigints,
    blobs,
    encoded,
    integers,
    load,
    names,
    numbered,
    numbers,
    optional_texts,
    optional_uuids,
    parse,
    repeated,
    shared,
    sparse,
    strings,
    texts,
    uuids,
)

TWO_STATEMENTS = """-- Text before the first header belongs to no statement.

-- first: explains why it is safe.
-- This line continues the explanation.
SELECT a  -- the column
  FROM b;

-- second_one: another.
SELECT 1;
"""


def test_each_header_names_the_statement_below_it() -> None:
    assert parse(TWO_STATEMENTS) == {"first": "SELECT a\n  FROM b", "second_one": "SELECT 1"}


def test_a_comment_without_a_name_does_not_begin_a_statement() -> None:
    assert parse("-- No name here.\nSELECT 1;\n") == {}


def test_a_statement_may_be_inserted_into_others_of_its_file() -> None:
    statements = parse(
        "-- one: uses it.\nWITH a AS ({rows})\nSELECT {columns};\n\n"
        "-- rows: a part.\nSELECT 1;\n\n"
        "-- two: uses it, too.\nSELECT ({rows}), '{}';\n"
    )
    # {columns} is not a statement of this file, so it is left for another module to replace.
    assert statements["one"] == "WITH a AS (SELECT 1)\nSELECT {columns}"
    assert statements["two"] == "SELECT (SELECT 1), '{}'"


def test_statements_are_loaded_from_their_package() -> None:
    statements = load("tidegate.store", "transfers.sql")
    assert statements["claim"].startswith("WITH due AS MATERIALIZED")
    assert not any("--" in text or text.endswith(";") for text in statements.values())


def test_a_comment_line_that_looks_like_a_header_is_refused() -> None:
    with pytest.raises(AssertionError, match="no statement follows"):
        parse("-- lock: in their order, with their\n-- balances: the newest.\nSELECT 1;\n")


def test_arrays_are_encoded_as_text() -> None:
    assert numbers([1, None, -3, 2**100, True, 0.5]) == f"{{1,NULL,-3,{2**100},True,0.5}}"
    assert numbers([1, -3, 2**100, True, 0.5]) == f"{{1,-3,{2**100},True,0.5}}"
    assert numbers([]) == numbers([None, None]) == "{}"
    assert texts(["a", None, ""]) == '{"a",NULL,""}'
    assert texts(['say "no"', "back\\slash", "NULL", "{,}"]) == (
        '{"say \\"no\\"","back\\\\slash","NULL","{,}"}'
    )
    assert texts(["one\x1ftwo", 'thr"ee', "\x1f"]) == '{"one\x1ftwo","thr\\"ee","\x1f"}'


def test_ids_and_hashes_are_encoded_in_binary_form() -> None:
    def int4s(*numbers: int) -> bytes:
        return b"".join(number.to_bytes(4, "big") for number in numbers)

    ids = int4s(1, 0, 2950, 2, 1) + int4s(16, 0, 0, 0, 1) + int4s(16, 0, 0, 0, 258)
    assert uuids([UUID(int=1), UUID(int=258)]) == ids
    some = int4s(1, 1, 2950, 2, 1) + int4s(16, 0, 0, 0, 1) + b"\xff" * 4
    assert optional_uuids([UUID(int=1), None]) == some
    assert blobs([b"ab", b"cd"]) == int4s(1, 0, 17, 2, 1) + int4s(2) + b"ab" + int4s(2) + b"cd"
    assert blobs([b"", b"\0\xff"]) == int4s(1, 0, 17, 2, 1) + int4s(0) + int4s(2) + b"\0\xff"


def test_long_columns_are_encoded_like_short_ones() -> None:
    """Blocks of numbers, runs of integers and parts of texts give the usual bytes."""
    column = [*range(-70, 130), 2**63 - 1, -(2**63)]
    cells = [b"\0\0\0\x08" + v.to_bytes(8, "big", signed=True) for v in column]
    assert bigints(column)[20:] == b"".join(cells)
    assert bigints(column[:64])[20:] == b"".join(cells[:64])
    assert bigints([]) == bytes(8) + (20).to_bytes(4, "big")
    assert repeated([(7, 3), (1, 0), (9, 1)]) == integers([7, 7, 7, 9])
    assert repeated([]) == integers([])
    assert optional_texts([2, [b"a", None, b""], 0, [b"bc"]]) == strings(
        [None, None, "a", None, "", "bc"]
    )
    assert optional_texts([2, 5]) == optional_texts([]) == strings([])


def test_a_column_of_nulls_is_empty() -> None:
    assert numbers([None, None]) == texts([None]) == names([None]) == "{}"
    assert optional_uuids([None, None]) == uuids([]) == bytes(8) + (2950).to_bytes(4, "big")
    assert sparse([0, False, 0.0]) == "{}"
    assert sparse([0, 3, False, True, 0.5]) == "{NULL,3,NULL,True,0.5}"
    assert texts([""]) == '{""}', "an empty text is a value"


def test_the_cache_of_names_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = ["a name", None, 'say "no"', "", "NULL", "a name"]
    assert names(values) == names(values) == texts(values)
    monkeypatch.setattr(tidegate.core.sql, "MAX_NAMES", 0)
    more = [f"one of many {n}" for n in range(10)]
    assert names(more) == texts(more)
    assert not tidegate.core.sql._NAMES.keys() & set(more)


def test_a_cached_array_is_encoded_text() -> None:
    assert encoded({"states": names(["é"])}) == {"states": EncodedText('{"é"}'.encode())}


def test_numbers_and_texts_are_encoded_in_binary_form() -> None:
    def int4s(*numbers: int) -> bytes:
        return b"".join(number.to_bytes(4, "big", signed=True) for number in numbers)

    assert integers([1, -2]) == int4s(1, 0, 23, 2, 1) + int4s(4, 1) + int4s(4, -2)
    assert bigints([258]) == int4s(1, 0, 20, 1, 1) + int4s(8, 0, 258)
    assert strings(["ab", ""]) == int4s(1, 0, 25, 2, 1) + int4s(2) + b"ab" + int4s(0)
    accented = int4s(1, 1, 25, 2, 1) + int4s(2) + "é".encode() + int4s(-1)
    assert strings(["é", None]) == accented
    assert strings(["é"]) == int4s(1, 0, 25, 1, 1) + int4s(2) + "é".encode()
    assert integers([]) == int4s(0, 0, 23)
    assert bigints([]) == int4s(0, 0, 20)
    assert strings([]) == strings([None, None]) == int4s(0, 0, 25)


def test_amounts_beyond_64_bits_are_in_a_text_column() -> None:
    assert amounts([1, 2**63 - 1]) == (bigints([1, 2**63 - 1]), "{}")
    small, large = amounts([5, 2**63, -(2**63) - 1])
    assert large == f"{{NULL,{2**63},{-(2**63) - 1}}}"
    assert small[4:8] == b"\0\0\0\1", "it has NULLs"
    assert small.endswith(b"\0\0\0\x08" + (5).to_bytes(8, "big") + b"\xff" * 8)


def test_no_more_integers_and_lengths_are_cached_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tidegate.core.sql, "MAX_NAMES", 0)
    assert integers([987_654]) == integers([987_654])
    assert strings(["x" * 12_345])[20:24] == (12_345).to_bytes(4, "big")
    assert 987_654 not in tidegate.core.sql._INTEGERS
    assert 12_345 not in tidegate.core.sql._LENGTHS


def test_columns_of_few_groups_are_cached() -> None:
    row_numbers, groups = numbered(["a", "b", "a"])
    assert (row_numbers, groups) == ([1, 2, 1], ["a", "b"])
    calls: list[object] = []

    def columns(groups: object) -> dict[str, object]:
        calls.append(groups)
        return {"groups": groups}

    assert shared(columns, ["a"]) == shared(columns, ["a"]) == {"groups": ("a",)}
    assert calls == [("a",)], "few groups are cached"
    many = list(range(MAX_SHARED_GROUPS + 1))
    assert shared(columns, many) == shared(columns, many) == {"groups": many}
    assert len(calls) == 3, "many groups are not"
