"""The numbers of commits, statements and syncs of a batch do not depend on its size."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.engine.watched_gate import open_gate
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.engine.gate import CORE, Gate
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import LEDGER, ExternalTransfer
from tidegate.store.pipeline import Pipeline, StatementReply
from tidegate.store.postgres import PostgresStore
from tidegate.store.transaction import STATEMENTS
from tidegate.systems.ledger import FUNDING
from tidegate.trading_core.disk import RealDisk, RealFile

pytestmark = pytest.mark.slow

OWNERS = range(1, 11)
_cids = itertools.count()


class CountedFile(RealFile):
    counts: Counter[str]

    async def fdatasync(self) -> None:
        self.counts["fdatasync"] += 1
        await super().fdatasync()


class CountedDisk(RealDisk):
    def __init__(self, directory: Path, counts: Counter[str]) -> None:
        super().__init__(directory)
        self.counts = counts

    def create(self, name: str) -> CountedFile:
        file = CountedFile(self._directory / name, self._syncer)
        file.counts = self.counts
        return file


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count all statements and commits: the pipeline sends everything to the database."""
    counts: Counter[str] = Counter()

    class Counted(Pipeline):
        def send(self, statement: str, values: Mapping[str, object]) -> StatementReply:
            # The number of polls for ends depends on the time, not on the batch.
            counts["statements"] += statement not in (STATEMENTS["begin"], STATEMENTS["ended"])
            return super().send(statement, values)

        def command(self, sql: bytes) -> StatementReply:
            counts["commits"] += sql == b"COMMIT"
            return super().command(sql)

    monkeypatch.setattr(PostgresStore, "pipe", Counted)
    return counts


def new_requests(direction: str, size: int) -> list[Request]:
    requests = []
    for n in range(size):
        owner = OWNERS[n % len(OWNERS)]
        funding, spot = Party(LEDGER, FUNDING, owner), Party(CORE, "SPOT", owner)
        source, target = (funding, spot) if direction == "in" else (spot, funding)
        parties = {"source": source, "target": target}
        requests.append(Request(owner, "internal_transfer", parties, 3, 1, f"n{next(_cids)}"))
    return requests


async def cost(gate: Gate, direction: str, size: int, counts: Counter[str]) -> Counter[str]:
    before = counts.copy()
    results = await asyncio.gather(
        *(gate.engine.transfer(request, 20) for request in new_requests(direction, size))
    )
    assert all(isinstance(r, Receipt) and r.transfer.state == "COMMITTED" for r in results)
    return counts - before


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_batch_takes_two_commits_and_one_sync_whatever_its_size(
    database: str, tmp_path: Path, counts: Counter[str], direction: str
) -> None:
    async def run() -> None:
        async with open_gate(database, CountedDisk(tmp_path, counts)) as gate:
            for owner in OWNERS:
                for account in ("FUNDING", "SPOT"):
                    wanted = ExternalTransfer(account, "USDT", "1000", cid=f"d{account}")
                    receipt = await gate.deposit(wanted, owner)
                    assert isinstance(receipt, Receipt)
                    ended = await gate.engine.wait(receipt.transfer, 10)
                    assert ended.state == "COMPLETED"
            costs = [await cost(gate, direction, size, counts) for size in (1, 100, 1_000)]
        for cost_of_batch in costs:
            assert (cost_of_batch["commits"], cost_of_batch["fdatasync"]) == (2, 1), costs
        # In: reserve the keys, lock the accounts, read them, apply, create; check for a halt;
        # lock the rows, record the answers, record the core's position.
        # Out: reserve the keys, create; check for a halt; lock rows and accounts, read, apply, ...
        assert {cost_of_batch["statements"] for cost_of_batch in costs} == {9}, costs

    asyncio.run(run())
