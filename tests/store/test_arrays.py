"""What is written as an array comes back as it was, whatever a stranger put into it."""

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster import cluster_url
from tidegate.core.sql import blobs, numbers, texts, uuids

# What a database can hold as text: no NUL, no half of a surrogate pair.
KEEPABLE = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.none() | KEEPABLE, max_size=20),
    st.lists(st.binary(max_size=40), max_size=20),
    st.lists(st.none() | st.uuids(), max_size=20),
    st.lists(st.none() | st.integers(-(10**38), 10**38), max_size=20),
)
def test_arrays_come_back_as_they_were(
    words: list[str | None],
    bytes_: list[bytes],
    ids: list[object],
    amounts: list[int | None],
) -> None:
    with psycopg.connect(cluster_url()) as session:
        row = session.execute(
            "SELECT %s::text[], %s::bytea[], %s::uuid[], %s::numeric(39,0)[]",
            (texts(words), blobs(bytes_), uuids(ids), numbers(amounts)),  # type: ignore[arg-type]
        ).fetchone()
    assert row is not None
    assert row[0] == words
    assert row[1] == bytes_
    assert row[2] == ids
    assert [None if n is None else int(n) for n in row[3]] == amounts


@settings(max_examples=20, deadline=None)
@given(st.lists(st.booleans(), max_size=9), st.lists(st.floats(0, 1e6), max_size=9))
def test_flags_and_delays_come_back_as_they_were(flags: list[bool], delays: list[float]) -> None:
    with psycopg.connect(cluster_url()) as session:
        row = session.execute(
            "SELECT %s::boolean[], %s::float8[]", (numbers(flags), numbers(delays))
        ).fetchone()
    assert row == (flags, delays)
