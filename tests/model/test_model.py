"""The model of the internal transfer: its claims hold everywhere, and planted bugs violate them."""

import pytest

from tests.model import checker

pytestmark = pytest.mark.slow

FEWEST_STATES = 100_000


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    """Without Spin there is no proof, and to pass without one would be a lie."""
    assert checker.missing() is None, checker.missing()


@pytest.mark.parametrize("claim", ["safety", "liveness"])
def test_the_claim_holds_in_every_state(claim: str) -> None:
    found = checker.whole(claim)
    assert (found.errors, found.violated) == (0, "")
    assert found.states >= FEWEST_STATES


@pytest.mark.parametrize("bug", checker.PLANTED)
def test_a_planted_bug_violates_its_claim(bug: str) -> None:
    found = checker.planted(bug)
    assert found.errors == 1
    wanted = "assertion violated" if found.claim == "safety" else "acceptance cycle"
    assert found.violated.startswith(wanted), found


@pytest.mark.parametrize("state", checker.REACHED)
def test_a_state_is_reached(state: str) -> None:
    found = checker.reached(state)
    assert found.errors == 1
    assert found.violated.startswith("assertion violated"), found


def test_a_report_that_cannot_be_read_is_no_proof() -> None:
    with pytest.raises(checker.NoSpin, match="did not report"):
        checker._read("safety", "safety", "pan: out of memory\n")
    cut = "Warning: Search not completed\nState-vector 9 byte, depth reached 7, errors: 0\n"
    with pytest.raises(checker.NoSpin, match="not complete"):
        checker._read("safety", "safety", f"{cut}  12 states, stored\n")
