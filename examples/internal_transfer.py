"""Deposit money, move it to the trading core, and move a part of it back."""

import asyncio
import sys
from pathlib import Path

import tidegate as tg

OWNER = 4001


async def move(setup: tg.Setup) -> None:
    async with tg.open_gate(setup) as gate:
        assert gate.core is not None
        await gate.deposit(tg.ExternalTransfer("FUNDING", "USDT", "100", cid="first"), OWNER)
        for source, target, amount in (("FUNDING", "SPOT", "60.5"), ("SPOT", "FUNDING", "20")):
            reply = await gate.transfer(
                tg.TransferRequest(source, target, "USDT", amount), OWNER, wait_s=5
            )
            assert isinstance(reply, tg.Receipt), reply
            print(f"{amount} USDT {source} → {target}: {reply.transfer.state}")
        print("SPOT:", (await gate.core.balance(OWNER, "SPOT", 3)).amount, "millionths of a USDT")


def main(directory: Path) -> None:
    with tg.EmbeddedPostgres(directory / "postgres") as server:
        tg.migrate(server.url(), "tidegate_store", tg.all_flows())
        with tg.core_child(directory / "core") as address:
            asyncio.run(move(tg.Setup(server.url(), core=address)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
