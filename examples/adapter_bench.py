"""The test bench of the piggy bank: it reads balances directly, and restarts the bank."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.adapter import BALANCE, PiggyBank


class PiggyBench:
    in_order = True  # Each question of a batch sees the effects of those before it.

    def __init__(self, path: Path, bank: type[PiggyBank] = PiggyBank) -> None:
        self.path, self.bank, self.system = path, bank, bank(path)

    async def balance(self, owner: int) -> int:
        return int(self.system.db.execute(BALANCE, [owner, 1]).fetchone()[0])

    async def another(self) -> PiggyBank:
        return self.bank(self.path)

    async def restart(self) -> None:
        self.system.db.close()
        self.system = self.bank(self.path)


@asynccontextmanager
async def bench() -> AsyncIterator[PiggyBench]:
    with TemporaryDirectory() as directory:
        yield PiggyBench(Path(directory) / "bank.db")
