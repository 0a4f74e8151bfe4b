"""Every built-in system with money, and every in-memory twin, passes its certification."""

import asyncio
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from tests.contracts.bench_setup import BenchSetup
from tests.contracts.systems import BENCHES
from tidegate.certify import CHECKS, Check, CheckOutcome, failure, run_check

_fresh = (UUID(int=number << 80) for number in count(1 << 40))

# The checks that cannot be tried on a bench. All others must hold.
NOT_TRIED = {
    # Without our database there is no transaction in which a local system could answer.
    ("ledger", "unreachable"),
    ("ledger twin", "unreachable"),
    # The twin is called directly, so no reply can be lost.
    ("ledger twin", "reply-lost"),
    # The questions of a batch are sent concurrently, so their order is not defined.
    *((name, check) for name in ("http", "forgetful http") for check in ("in-order", "disabled")),
    *((name, "through-a-batch") for name in ("http", "forgetful http")),
}


# These use real processes and sockets.
SLOW = ("core process", "http", "forgetful http")
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in BENCHES]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_the_system_keeps_the_promise(
    check: Check, name: str, database: str, tmp_path: Path
) -> None:
    place = BenchSetup(database, tmp_path)
    result = asyncio.run(run_check(check, lambda: BENCHES[name](place), next(_fresh)))
    assert result.verdict is not CheckOutcome.FAILED, failure(result)
    assert (result.verdict is CheckOutcome.NOT_TRIED) == ((name, check.name) in NOT_TRIED), (
        result.reason
    )
