"""Six transfers of three owners, one for each possible end, and the balances that must result."""

from typing import NamedTuple

from tidegate.core.account import Account
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.core.wire import AccountStatus as CoreStatus
from tidegate.engine.gate import CORE, Gate
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import LEDGER, ExternalTransfer
from tidegate.systems.ledger import FUNDING, LedgerStatus

ASSET, UNIT = 3, 10**6


class Part(NamedTuple):
    """One transfer of the scene: its owner, direction, amount and expected end state."""

    owner: int
    direction: str
    amount: int
    state: str


def parts(base: int) -> list[Part]:
    """Owner `base` can pay. SPOT of `base + 1` and FUNDING of `base + 2` cannot be credited."""
    return [
        Part(base, "in", 100, "COMMITTED"),
        Part(base, "out", 40, "COMMITTED"),
        Part(base, "in", 5_000, "FAILED"),
        Part(base, "out", 5_000, "FAILED"),
        Part(base + 1, "in", 70, "ROLLED_BACK"),
        Part(base + 2, "out", 30, "ROLLED_BACK"),
    ]


def expected(base: int) -> dict[tuple[int, str], int]:
    """The final balance of each account, in smallest units."""
    balances = {
        (base, "FUNDING"): 1_000 - 100 + 40,
        (base, "SPOT"): 500 + 100 - 40,
        (base + 1, "FUNDING"): 1_000,
        (base + 1, "SPOT"): 500,
        (base + 2, "FUNDING"): 1_000,
        (base + 2, "SPOT"): 500,
    }
    return {account: amount * UNIT for account, amount in balances.items()}


def request_of(part: Part, number: int) -> Request:
    inside, outside = Party(LEDGER, FUNDING, part.owner), Party(CORE, "SPOT", part.owner)
    source, target = (inside, outside) if part.direction == "in" else (outside, inside)
    parties = {"source": source, "target": target}
    amount = part.amount * UNIT
    return Request(part.owner, "internal_transfer", parties, ASSET, amount, f"part-{number}")


async def endow(gate: Gate, base: int) -> None:
    assert gate.core is not None
    for owner in range(base, base + 3):
        for account, amount in (("FUNDING", "1000"), ("SPOT", "500")):
            crossing = ExternalTransfer(account, "USDT", amount, cid=f"endow-{account}")
            reply = await gate.deposit(crossing, owner)
            assert isinstance(reply, Receipt)
            end = await gate.engine.wait(reply.transfer, 20)
            assert end.state == "COMPLETED", end
    await gate.core.set_status(base + 1, "SPOT", ASSET, CoreStatus.DISABLED)
    closed = Account(base + 2, FUNDING, ASSET)
    assert await gate.ledger.set_status(gate.store, closed, LedgerStatus.DISABLED)


async def held(gate: Gate, base: int) -> dict[tuple[int, str], int]:
    """The balances of both systems, read from each of them."""
    assert gate.core is not None
    balances = {}
    for owner in range(base, base + 3):
        books = await gate.ledger.balances(gate.store, owner)
        balances[owner, "FUNDING"] = books[Account(owner, FUNDING, ASSET)].available
        balances[owner, "SPOT"] = (await gate.core.balance(owner, "SPOT", ASSET)).amount
        assert {a.book for a in books} == {"FUNDING", "OUTSIDE"}
    return balances


async def states(gate: Gate, base: int) -> list[str]:
    keys = [(part.owner, f"part-{n}") for n, part in enumerate(parts(base))]
    known = (await gate.store.look(keys)).known
    return [k.transfer.state if k and k.transfer else "missing" for k in known]
