"""What a batch costs, counted: commits, statements and syncs do not depend on its size."""

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
    """Everything that goes to the database, seen at the one door through which it goes."""
    seen: Counter[str] = Counter()

    class Counted(Pipeline):
        def send(self, statement: str, values: Mapping[str, object]) -> StatementReply:
            # Who waits long is looked up now and then, which depends on time, not on the batch.
            seen["statements"] += statement not in (STATEMENTS["begin"], STATEMENTS["ended"])
            return super().send(statement, values)

        def command(self, sql: bytes) -> StatementReply:
            seen["commits"] += sql == b"COMMIT"
            return super().command(sql)

    monkeypatch.setattr(PostgresStore, "pipe", Counted)
    return seen


def requests(way: str, size: int) -> list[Request]:
    made = []
    for n in range(size):
        owner = OWNERS[n % len(OWNERS)]
        inside, outside = Party(LEDGER, FUNDING, owner), Party(CORE, "SPOT", owner)
        source, target = (inside, outside) if way == "in" else (outside, inside)
        parties = {"source": source, "target": target}
        made.append(Request(owner, "internal_transfer", parties, 3, 1, f"n{next(_cids)}"))
    return made


async def cost(gate: Gate, way: str, size: int, counts: Counter[str]) -> Counter[str]:
    before = counts.copy()
    said = await asyncio.gather(*(gate.engine.transfer(r, 20) for r in requests(way, size)))
    assert all(isinstance(s, Receipt) and s.transfer.state == "COMMITTED" for s in said)
    return counts - before


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_batch_takes_two_commits_and_one_sync_whatever_its_size(
    database: str, tmp_path: Path, counts: Counter[str], way: str
) -> None:
    async def whole() -> None:
        async with open_gate(database, CountedDisk(tmp_path, counts)) as gate:
            for owner in OWNERS:
                for account in ("FUNDING", "SPOT"):
                    crossing = ExternalTransfer(account, "USDT", "1000", cid=f"d{account}")
                    said = await gate.deposit(crossing, owner)
                    assert isinstance(said, Receipt)
                    end = await gate.engine.wait(said.transfer, 10)
                    assert end.state == "COMPLETED"
            costs = [await cost(gate, way, size, counts) for size in (1, 100, 1_000)]
        for spent in costs:
            assert (spent["commits"], spent["fdatasync"]) == (2, 1), costs
        # Reserve the keys, lock accounts, read them, apply, create; read the brake before the ask;
        # lock the rows, record them, remember the core's mark.
        #   Or, on the way out: reserve, create; brake; lock rows and accounts, read …
        assert {spent["statements"] for spent in costs} == {9}, costs

    asyncio.run(whole())
