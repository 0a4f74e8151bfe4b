"""The claims of the internal transfer's model hold in all states, and planted bugs violate them."""

import pytest

from tests.model import checker

pytestmark = pytest.mark.slow

FEWEST_STATES = 100_000


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    """Fail without Spin: passing would be wrong, as nothing was checked."""
    assert checker.missing() is None, checker.missing()


@pytest.mark.parametrize("claim", ["safety", "liveness"])
def test_the_claim_holds_in_every_state(claim: str) -> None:
    result = checker.unchanged(claim)
    assert (result.errors, result.violated) == (0, "")
    assert result.states >= FEWEST_STATES


@pytest.mark.parametrize("bug", checker.PLANTED)
def test_a_planted_bug_violates_its_claim(bug: str) -> None:
    result = checker.planted(bug)
    assert result.errors == 1
    expected = "assertion violated" if result.claim == "safety" else "acceptance cycle"
    assert result.violated.startswith(expected), result


@pytest.mark.parametrize("state", checker.REACHED)
def test_a_state_is_reached(state: str) -> None:
    result = checker.reached(state)
    assert result.errors == 1
    assert result.violated.startswith("assertion violated"), result


def test_a_report_that_is_incomplete_or_cannot_be_read_is_an_error() -> None:
    with pytest.raises(checker.NoSpin, match="did not report"):
        checker._read("safety", "safety", "pan: out of memory\n")
    cut = "Warning: Search not completed\nState-vector 9 byte, depth reached 7, errors: 0\n"
    with pytest.raises(checker.NoSpin, match="not complete"):
        checker._read("safety", "safety", f"{cut}  12 states, stored\n")
