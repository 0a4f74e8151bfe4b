"""No token in a test can expire during a long run of all tests."""

import pytest

from tests.acceptance import rig as acceptance
from tests.service import rig as service
from tests.token_clients import COLLECTING


@pytest.mark.parametrize("rig", [service, acceptance], ids=["service", "acceptance"])
def test_no_token_is_made_while_test_modules_are_imported(
    rig: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a token would expire in a run of more than 15 minutes."""
    monkeypatch.setenv(COLLECTING, "yes")
    with pytest.raises(AssertionError, match="at import"):
        rig.token("olga", "operator")  # type: ignore[attr-defined]


def test_a_bearer_makes_a_fresh_token_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    alice = service.bearer("4001", "user")
    early = str(alice)
    assert str(alice) == early
    now += 1
    assert str(alice) != early
