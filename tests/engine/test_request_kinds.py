"""What is kept for all requests of a kind must say the same as each request by itself."""

import msgspec
import pytest

from tests.engine.rig import request
from tidegate.core.request import Request
from tidegate.engine.request_kinds import RequestKinds
from tidegate.flows import FLOWS

# Values that Python calls equal, and that are written differently.
PAIRS = [
    ({"lives_s": 5}, {"lives_s": 5.0}),
    ({"lives_s": 5.0}, {"lives_s": 5}),
    ({"lives_s": None}, {"lives_s": 5.0}),
    ({"terms": {}}, {"lives_s": None}),
    ({"terms": {"a": "1", "b": "2"}}, {"terms": {"b": "2", "a": "1"}}),
    ({"terms": {"a": "1"}}, {"terms": {"a": "2"}}),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_kept_spelling_gives_the_fingerprint_of_the_request(
    first: dict[str, object], second: dict[str, object]
) -> None:
    origins = RequestKinds(FLOWS, {"venue"}, {"ledger"})
    for changes in (first, second):
        changed: Request = msgspec.structs.replace(request("in", 10), **changes)
        assert origins.of(changed).fingerprint(changed) == changed.fingerprint()
