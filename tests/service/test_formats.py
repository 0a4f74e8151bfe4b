"""Ids as people see them."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from tidegate.service.formats import id_from, ulid_of
from tidegate.serving import request_ids


@given(st.integers(0, 2**128 - 1))
def test_an_id_is_written_as_a_ulid_and_read_back(number: int) -> None:
    id_ = UUID(int=number)
    assert ulid_of(id_) == str(ULID.from_uuid(id_))
    assert id_from(ulid_of(id_)) == id_from(str(id_)) == id_


def test_no_two_requests_have_one_id() -> None:
    one, other = request_ids(), request_ids()
    assert len({make() for make in (one, other) for _ in range(100)}) == 200
