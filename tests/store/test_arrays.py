"""Values that are sent as arrays come back unchanged, for any user input."""

from typing import Any
from uuid import UUID

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.adapt import Dumper
from psycopg.pq import Format

from tests.cluster import cluster_url
from tidegate.core.kind import Transfer, TransferKind
from tidegate.core.sql import (
    Binary,
    amounts,
    bigints,
    blobs,
    integers,
    names,
    numbers,
    optional_texts,
    optional_uuids,
    repeated,
    sparse,
    strings,
    texts,
)
from tidegate.store.rows import READ_AS

ROWS = 20

# Texts that a database can store: no NUL and no lone surrogate.
STORABLE = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))


class BinaryDumper(Dumper):
    """Sends a Binary array unchanged, as the pipeline does."""

    format = Format.BINARY

    def dump(self, obj: Binary) -> bytes:
        return bytes(obj)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.none() | STORABLE, max_size=20),
    st.lists(st.binary(max_size=40), max_size=20),
    st.lists(st.none() | st.uuids(), max_size=20),
    st.lists(st.none() | st.integers(-(10**38), 10**38), max_size=20),
)
def test_arrays_come_back_as_they_were(
    text_values: list[str | None],
    bytes_: list[bytes],
    ids: list[UUID | None],
    amounts: list[int | None],
) -> None:
    with psycopg.connect(cluster_url()) as session:
        session.adapters.register_dumper(Binary, BinaryDumper)
        rows = session.execute(
            "SELECT * FROM unnest(%s::integer[], %s::text[], %s::text[], %b::bytea[], %b::uuid[],"
            " %s::numeric(39,0)[])",
            (
                numbers(range(ROWS)),
                texts(text_values),
                names(text_values),
                blobs(bytes_),
                optional_uuids(ids),
                numbers(amounts),
            ),
        ).fetchall()
    padded = [
        [*column, *[None] * ROWS][:ROWS]
        for column in (text_values, text_values, bytes_, ids, amounts)
    ]
    assert rows == list(zip(range(ROWS), *padded, strict=True))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=150),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 70)), max_size=4),
    st.lists(st.integers(0, 70) | st.lists(st.none() | STORABLE, max_size=9), max_size=4),
)
def test_long_columns_come_back_as_they_were(
    bigint_values: list[int], runs: list[tuple[int, int]], parts: list[int | list[str | None]]
) -> None:
    """Bigints are packed in blocks, integers in runs, and texts in parts, some of them empty."""
    encoded = [
        n if isinstance(n, int) else [None if t is None else t.encode() for t in n] for n in parts
    ]
    with psycopg.connect(cluster_url()) as session:
        session.adapters.register_dumper(Binary, BinaryDumper)
        rows = session.execute(
            "SELECT * FROM unnest(%b::bigint[], %b::integer[], %b::text[])",
            (bigints(bigint_values), repeated(runs), optional_texts(encoded)),
        ).fetchall()
    integer_values = [value for value, times in runs for _ in range(times)]
    texts_ = [t for part in parts for t in ([None] * part if isinstance(part, int) else part)]
    text_values = texts_ if any(not isinstance(part, int) for part in parts) else []
    columns: tuple[list[Any], ...] = (bigint_values, integer_values, text_values)
    for number, expected in enumerate(columns):
        returned = [row[number] for row in rows]
        assert returned == expected + [None] * (len(rows) - len(expected))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.booleans(), max_size=9), st.lists(st.floats(0, 1e6), max_size=9))
def test_flags_and_delays_come_back_as_they_were(flags: list[bool], delays: list[float]) -> None:
    with psycopg.connect(cluster_url()) as session:
        row = session.execute(
            "SELECT %s::boolean[], %s::float8[], %s::boolean[]",
            (numbers(flags), numbers(delays), sparse(flags)),
        ).fetchone()
    assert row == (flags, delays, [flag or None for flag in flags] if any(flags) else [])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.none() | STORABLE, max_size=ROWS),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=ROWS),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=ROWS),
    st.lists(st.integers(-(10**38), 10**38) | st.integers(-9, 9), max_size=ROWS),
)
def test_binary_arrays_come_back_as_they_were(
    text_values: list[str | None], integer_values: list[int], owners: list[int], sums: list[int]
) -> None:
    small, large = amounts(sums)
    with psycopg.connect(cluster_url()) as session:
        session.adapters.register_dumper(Binary, BinaryDumper)
        rows = session.execute(
            "SELECT n, w, i, b, coalesce(s, l) FROM unnest(%s::integer[], %b::text[],"
            " %b::integer[], %b::bigint[], %b::bigint[], %s::numeric(39,0)[])"
            " AS r (n, w, i, b, s, l)",
            (
                numbers(range(ROWS)),
                strings(text_values),
                integers(integer_values),
                bigints(owners),
                small,
                large,
            ),
        ).fetchall()
    padded = [
        [*column, *[None] * ROWS][:ROWS] for column in (text_values, integer_values, owners, sums)
    ]
    assert rows == list(zip(range(ROWS), *padded, strict=True))


def test_each_field_of_a_transfer_is_read_by_one_column() -> None:
    fields = {*Transfer.__struct_fields__, *TransferKind.__struct_fields__} - {"kind"}
    assert set(READ_AS) == fields
    assert next(iter(READ_AS)) == "id"
