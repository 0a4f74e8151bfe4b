"""The cached fingerprint form of a kind gives the same fingerprint as the request alone."""

import msgspec
import pytest

from tests.engine.rig import request
from tidegate.core.request import Request
from tidegate.engine.request_kinds import RequestKinds
from tidegate.flows import FLOWS

# Values that are equal in Python or similar, but have different fingerprints.
PAIRS = [
    ({"lives_s": 5}, {"lives_s": 5.0}),
    ({"lives_s": 5.0}, {"lives_s": 5}),
    ({"lives_s": None}, {"lives_s": 5.0}),
    ({"terms": {}}, {"lives_s": None}),
    ({"terms": {"a": "1", "b": "2"}}, {"terms": {"b": "2", "a": "1"}}),
    ({"terms": {"a": "1"}}, {"terms": {"a": "2"}}),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_cached_form_gives_the_fingerprint_of_the_request(
    first: dict[str, object], second: dict[str, object]
) -> None:
    kinds = RequestKinds(FLOWS, {"venue"}, {"ledger"})
    for changes in (first, second):
        changed: Request = msgspec.structs.replace(request("in", 10), **changes)
        assert kinds.of(changed).fingerprint(changed) == changed.fingerprint()
