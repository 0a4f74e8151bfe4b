"""An hour of load gives no false halt: half a minute here, by `make soak` as long as asked."""

from pathlib import Path

import pytest

from tests.acceptance.soak import soak

pytestmark = pytest.mark.slow

SECONDS = 30.0


def test_steady_load_under_audits_without_a_pause_gives_no_false_halt(tmp_path: Path) -> None:
    told: list[float] = []
    tally = soak(tmp_path / "all", SECONDS, lambda passed_s, _: told.append(passed_s))
    # That nothing went wrong says little, unless all of this has happened.
    for kind in ("COMMITTED", "FAILED", "ROLLED_BACK", "replays", "freezes", "kills"):
        assert tally[kind] > 0, tally
    assert tally["transfers"] > 5 * SECONDS, tally
    assert min(tally["full audits"], tally["incremental audits"]) >= 10, tally
    assert told == sorted(told)
    assert told[-1] <= SECONDS
