"""The examples run as programs, print the expected lines and are short."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"

OUTPUTS = {
    "internal_transfer": (
        40,
        ["60.5 USDT FUNDING → SPOT: COMMITTED", "20 USDT SPOT → FUNDING: COMMITTED"],
    ),
    "guild_pool": (
        40,
        ["completed {'balance': 1, 'cooldown': 1, 'daily_limit': 1}"],
    ),
    "guild_bot": (
        90,
        [
            "anna: noted",
            "ben: noted",
            "cara: amount must be a positive whole number, not -5",
            "anna paid ben 100",
            "ben paid cara 30",
            "anna: noted",
        ],
    ),
    "inbox": (60, ["order-17: created"]),
    "own_flow": (80, ["player 7: PAID after 1 retries", "player 13: RETURNED after 1 retries"]),
}
# These are tested in tests/certify/test_adapters_page.py.
ADAPTERS = {"adapter", "adapter_bench", "broken_adapter"}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_example_runs_and_is_short(name: str, tmp_path: Path) -> None:
    fewer_than, lines = OUTPUTS[name]
    source = EXAMPLES / f"{name}.py"
    assert len(source.read_text().splitlines()) < fewer_than
    run = subprocess.run(
        [sys.executable, source, tmp_path], check=True, capture_output=True, text=True, timeout=60
    )
    assert run.stdout.splitlines()[: len(lines)] == lines


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == ADAPTERS | set(OUTPUTS)
