"""Deposit money, move it into the trading core and part of it back, all in one program."""

import asyncio
import sys
from pathlib import Path

from tidegate import (
    EmbeddedPostgres,
    Receipt,
    Setup,
    Wish,
    checked,
    core_child,
    migrate,
    open_gate,
)

OWNER = 4001


async def move(setup: Setup) -> None:
    async with open_gate(setup) as gate:
        assert gate.core is not None
        await gate.deposit(Wish("", "FUNDING", "USDT", "100", cid="first-deposit"), OWNER)
        for source, target, amount in (("FUNDING", "SPOT", "60.5"), ("SPOT", "FUNDING", "20")):
            said = await gate.transfer(Wish(source, target, "USDT", amount), OWNER, wait_s=5)
            assert isinstance(said, Receipt), said
            print(f"{amount} USDT {source} → {target}: {said.transfer.state}")
        print("SPOT:", (await gate.core.balance(OWNER, "SPOT", 3)).amount, "millionths of a USDT")


def main(directory: Path) -> None:
    with EmbeddedPostgres(directory / "postgres") as server:
        migrate(server.url(), "tidegate_store", checked(()))
        with core_child(directory / "core") as address:
            asyncio.run(move(Setup(server.url(), core=address)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
