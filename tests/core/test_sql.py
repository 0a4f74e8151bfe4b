"""Statements by name: what the server is given is the statement, without the prose around it."""

from uuid import UUID

import pytest

import tidegate.core.sql
from tidegate.core.sql import (
    FEW,
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

TWO = """-- What stands before the first header belongs to no statement.

-- first: says why it is safe.
-- And goes on saying it.
SELECT a  -- the column
  FROM b;

-- second_one: another.
SELECT 1;
"""


def test_each_header_names_the_statement_below_it() -> None:
    assert parse(TWO) == {"first": "SELECT a\n  FROM b", "second_one": "SELECT 1"}


def test_a_comment_without_a_name_begins_no_statement() -> None:
    assert parse("-- No name here.\nSELECT 1;\n") == {}


def test_a_statement_may_be_a_part_of_others_in_its_file() -> None:
    statements = parse(
        "-- one: uses it.\nWITH a AS ({rows})\nSELECT {columns};\n\n"
        "-- rows: a part.\nSELECT 1;\n\n"
        "-- two: uses it, too.\nSELECT ({rows}), '{}';\n"
    )
    # Columns is no statement of this file: it is left for the module that knows it.
    assert statements["one"] == "WITH a AS (SELECT 1)\nSELECT {columns}"
    assert statements["two"] == "SELECT (SELECT 1), '{}'"


def test_statements_are_read_from_the_package_that_owns_them() -> None:
    statements = load("tidegate.store", "transfers.sql")
    assert statements["claim"].startswith("WITH due AS MATERIALIZED")
    assert not any("--" in text or text.endswith(";") for text in statements.values())


def test_a_comment_that_looks_like_a_name_is_noticed() -> None:
    with pytest.raises(AssertionError, match="no statement follows"):
        parse("-- lock: in their order, with their\n-- balances: the newest.\nSELECT 1;\n")


def test_a_batch_is_written_as_the_database_reads_arrays() -> None:
    assert numbers([1, None, -3, 2**100, True, 0.5]) == f"{{1,NULL,-3,{2**100},True,0.5}}"
    assert numbers([1, -3, 2**100, True, 0.5]) == f"{{1,-3,{2**100},True,0.5}}"
    assert numbers([]) == numbers([None, None]) == "{}"
    assert texts(["a", None, ""]) == '{"a",NULL,""}'
    assert texts(['say "no"', "back\\slash", "NULL", "{,}"]) == (
        '{"say \\"no\\"","back\\\\slash","NULL","{,}"}'
    )
    assert texts(["one\x1ftwo", 'thr"ee', "\x1f"]) == '{"one\x1ftwo","thr\\"ee","\x1f"}'


def test_ids_and_hashes_are_written_as_the_database_sends_them() -> None:
    def whole(*numbers: int) -> bytes:
        return b"".join(number.to_bytes(4, "big") for number in numbers)

    ids = whole(1, 0, 2950, 2, 1) + whole(16, 0, 0, 0, 1) + whole(16, 0, 0, 0, 258)
    assert uuids([UUID(int=1), UUID(int=258)]) == ids
    some = whole(1, 1, 2950, 2, 1) + whole(16, 0, 0, 0, 1) + b"\xff" * 4
    assert optional_uuids([UUID(int=1), None]) == some
    assert blobs([b"ab", b"cd"]) == whole(1, 0, 17, 2, 1) + whole(2) + b"ab" + whole(2) + b"cd"
    assert blobs([b"", b"\0\xff"]) == whole(1, 0, 17, 2, 1) + whole(0) + whole(2) + b"\0\xff"


def test_long_columns_are_written_as_short_ones_are() -> None:
    """Numbers go in blocks, integers in runs, and texts in parts: the same bytes as one by one."""
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


def test_a_column_in_which_nothing_is_said_is_empty() -> None:
    assert numbers([None, None]) == texts([None]) == names([None]) == "{}"
    assert optional_uuids([None, None]) == uuids([]) == bytes(8) + (2950).to_bytes(4, "big")
    assert sparse([0, False, 0.0]) == "{}"
    assert sparse([0, 3, False, True, 0.5]) == "{NULL,3,NULL,True,0.5}"
    assert texts([""]) == '{""}', "an empty text is something"


def test_names_are_texts_of_which_no_more_are_kept_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["a name", None, 'say "no"', "", "NULL", "a name"]
    assert names(words) == names(words) == texts(words)
    monkeypatch.setattr(tidegate.core.sql, "MAX_NAMES", 0)
    strange = [f"one of many {n}" for n in range(10)]
    assert names(strange) == texts(strange)
    assert not tidegate.core.sql._NAMES.keys() & set(strange)


def test_what_is_kept_for_later_batches_is_encoded_once() -> None:
    assert encoded({"states": names(["é"])}) == {"states": EncodedText('{"é"}'.encode())}


def test_numbers_and_texts_are_written_as_the_database_sends_them() -> None:
    def whole(*numbers: int) -> bytes:
        return b"".join(number.to_bytes(4, "big", signed=True) for number in numbers)

    assert integers([1, -2]) == whole(1, 0, 23, 2, 1) + whole(4, 1) + whole(4, -2)
    assert bigints([258]) == whole(1, 0, 20, 1, 1) + whole(8, 0, 258)
    assert strings(["ab", ""]) == whole(1, 0, 25, 2, 1) + whole(2) + b"ab" + whole(0)
    accented = whole(1, 1, 25, 2, 1) + whole(2) + "é".encode() + whole(-1)
    assert strings(["é", None]) == accented
    assert strings(["é"]) == whole(1, 0, 25, 1, 1) + whole(2) + "é".encode()
    assert integers([]) == whole(0, 0, 23)
    assert bigints([]) == whole(0, 0, 20)
    assert strings([]) == strings([None, None]) == whole(0, 0, 25)


def test_amounts_beyond_64_bits_go_as_text_beside_the_others() -> None:
    assert amounts([1, 2**63 - 1]) == (bigints([1, 2**63 - 1]), "{}")
    small, large = amounts([5, 2**63, -(2**63) - 1])
    assert large == f"{{NULL,{2**63},{-(2**63) - 1}}}"
    assert small[4:8] == b"\0\0\0\1", "it has NULLs"
    assert small.endswith(b"\0\0\0\x08" + (5).to_bytes(8, "big") + b"\xff" * 8)


def test_what_is_kept_of_integers_and_lengths_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.core.sql, "MAX_NAMES", 0)
    assert integers([987_654]) == integers([987_654])
    assert strings(["x" * 12_345])[20:24] == (12_345).to_bytes(4, "big")
    assert 987_654 not in tidegate.core.sql._INTEGERS
    assert 12_345 not in tidegate.core.sql._LENGTHS


def test_rows_name_what_they_have_in_common_by_its_place() -> None:
    which, marks = numbered(["a", "b", "a"])
    assert (which, marks) == ([1, 2, 1], ["a", "b"])
    made: list[object] = []

    def columns(marks: object) -> dict[str, object]:
        made.append(marks)
        return {"marks": marks}

    assert shared(columns, ["a"]) == shared(columns, ["a"]) == {"marks": ("a",)}
    assert made == [("a",)], "few of them are kept"
    many = list(range(FEW + 1))
    assert shared(columns, many) == shared(columns, many) == {"marks": many}
    assert len(made) == 3, "many are not"
