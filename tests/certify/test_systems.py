"""Every built-in system with money, and every twin of one, keeps what a system promises."""

import asyncio
from itertools import count
from pathlib import Path
from uuid import UUID

import pytest

from tests.contracts.surroundings import Place
from tests.contracts.systems import DESKS
from tidegate.certify import CHECKS, Check, CheckOutcome, attempt, failure

_fresh = (UUID(int=number << 80) for number in count(1 << 40))

# What cannot be tried on a bench, and why. Everything else must hold.
NOT_TRIED = {
    # Without our database there is nobody to ask, and no transaction to answer in.
    ("ledger", "unreachable"),
    ("ledger twin", "unreachable"),
    # The twin is called and not sent to: there is no reply that could be lost on its way.
    ("ledger twin", "reply-lost"),
    # Its questions travel side by side.
    *((name, check) for name in ("http", "forgetful http") for check in ("in-order", "disabled")),
    *((name, "through-a-batch") for name in ("http", "forgetful http")),
}


# Real processes and real sockets take their time.
SLOW = ("core process", "http", "forgetful http")
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in DESKS]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_keeps(check: Check, name: str, database: str, tmp_path: Path) -> None:
    place = Place(database, tmp_path)
    finding = asyncio.run(attempt(check, lambda: DESKS[name](place), next(_fresh)))
    assert finding.verdict is not CheckOutcome.FAILED, failure(finding)
    assert (finding.verdict is CheckOutcome.NOT_TRIED) == ((name, check.name) in NOT_TRIED), (
        finding.why
    )
