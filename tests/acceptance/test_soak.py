"""A steady load causes no false halt: half a minute here, and longer with `make soak`."""

from pathlib import Path

import pytest

from tests.acceptance.soak import soak

pytestmark = pytest.mark.slow

SECONDS = 30.0


def test_steady_load_under_audits_without_a_pause_gives_no_false_halt(tmp_path: Path) -> None:
    times: list[float] = []
    tally = soak(tmp_path / "all", SECONDS, lambda passed_s, _: times.append(passed_s))
    # The run proves something only if all of this has happened.
    for kind in ("COMMITTED", "FAILED", "ROLLED_BACK", "replays", "freezes", "kills"):
        assert tally[kind] > 0, tally
    assert tally["transfers"] > 5 * SECONDS, tally
    assert min(tally["full audits"], tally["incremental audits"]) >= 10, tally
    assert times == sorted(times)
    assert times[-1] <= SECONDS
