"""One seed: owners move money to and fro while everything fails; then the books are audited."""

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.simulation.simloop import simulate
from tests.simulation.world import Faults, Node, World, settled
from tidegate.core.ports import Account, StoreFault
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.core.transfer import GENESIS, Party, Transfer, chained
from tidegate.engine.births import Receipt
from tidegate.flows import FLOWS
from tidegate.systems.ledger import FUNDING, Status
from tidegate.systems.ledger.judge import Balance

ASSET, START, SPOT = 3, 1_000, "SPOT"
OWNERS = (1, 2, 3, 4)
TRANSFERS = 20

# What may have happened to the money, (debited, credited, refunded), in each state at rest.
ALLOWED = {
    "COMMITTED": {(1, 1, 0)},
    "FAILED": {(0, 0, 0)},
    "ROLLED_BACK": {(1, 0, 1)},
}


@dataclass
class Result:
    states: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    deaths: int = 0
    trace: str = ""


def run(seed: int) -> Result:
    return simulate(seed, _run(seed))


async def _run(seed: int) -> Result:
    dice = random.Random(seed)
    world = World(dice, dict(FLOWS), Faults.thrown(dice))
    for owner in OWNERS:
        _endow(world, owner)
    world.nodes = [Node(world, name) for name in ("a", "b")]
    for node in world.nodes:
        await node.start()
    meddling = asyncio.ensure_future(_meddle(world))
    told = await asyncio.gather(*(_client(world, n) for n in range(TRANSFERS)))
    meddling.cancel()
    _thaw(world)
    await settled(world, OWNERS)
    audit(world, told)
    rows = [row.transfer for row in world.tables.rows["transfers"].values()]
    return Result(
        Counter(t.state for t in rows),
        Counter(world.counts),
        sum(not node.alive for node in world.nodes),
        repr(sorted((t.id.hex, t.state, t.version, t.retries) for t in rows)),
    )


def _endow(world: World, owner: int) -> None:
    """Money in both systems, and its mirror outside, so that an owner's books sum to zero."""
    ledger = world.tables.rows["ledger_accounts"]
    ledger[Account(owner, FUNDING, ASSET)] = Balance(START, 0, Status.ACTIVE)
    ledger[Account(owner, "OUTSIDE", ASSET)] = Balance(-2 * START, 0, Status.ACTIVE)
    world.venue.accounts[Account(owner, SPOT, ASSET)] = Balance(START, 0, Status.ACTIVE)


async def _client(world: World, number: int) -> tuple[Request, UUID | None]:
    """Asks with one cid until somebody says what became of it, whoever dies meanwhile."""
    dice = world.dice
    await asyncio.sleep(dice.random() * 10)
    owner = dice.choice(OWNERS)
    source, target = dice.sample([Party("ledger", FUNDING, owner), Party("venue", SPOT, owner)], 2)
    request = Request(
        owner,
        "internal_transfer",
        {"source": source, "target": target},
        ASSET,
        dice.choice((1, 10, 400, 900, 2_500)),
        f"cid-{number % (TRANSFERS - 3)}-{owner}-{source.book}",
    )
    while True:
        living = world.living()
        said = await _attempt(dice.choice(living), request) if living else None
        if isinstance(said, Receipt):
            return request, said.transfer.id
        if said is Refusal.IDEMPOTENCY_MISMATCH:
            return request, None
        await asyncio.sleep(dice.random())


async def _attempt(node: Node, request: Request) -> Receipt | Refusal | None:
    """The client's patience is its own: a process that dies says nothing any more."""
    asked = asyncio.ensure_future(node.engine.transfer(request))
    await asyncio.wait([asked], timeout=5)
    if not asked.done() or isinstance(asked.exception(), StoreFault):
        return None
    return asked.result()


async def _meddle(world: World) -> None:
    """Accounts are frozen, disabled and thawed between retries, in both systems."""
    while True:
        await asyncio.sleep(world.dice.random() * 3)
        owner, status = world.dice.choice(OWNERS), world.dice.choice(list(Status))
        book = world.dice.choice((FUNDING, SPOT))
        _set_status(world, Account(owner, book, ASSET), status)


def _thaw(world: World) -> None:
    for owner in OWNERS:
        for book in (FUNDING, SPOT):
            _set_status(world, Account(owner, book, ASSET), Status.ACTIVE)


def _set_status(world: World, account: Account, status: Status) -> None:
    tables = world.tables
    if account.book == SPOT:
        balance = world.venue.accounts[account]
        world.venue.accounts[account] = balance._replace(status=status)
    elif ("ledger_accounts", account) not in tables.holders:
        balance = tables.rows["ledger_accounts"][account]
        tables.rows["ledger_accounts"][account] = balance._replace(status=status)


def audit(world: World, told: list[tuple[Request, UUID | None]]) -> None:
    """Judges by what was really done to accounts, which no part of the engine wrote."""
    rows = {row.transfer.id: row.transfer for row in world.tables.rows["transfers"].values()}
    effects = _effects(world)
    for id_, transfer in rows.items():
        assert effects[id_] in ALLOWED[transfer.state], f"{transfer}: {effects[id_]}"
        _check_history(world, transfer)
    assert not effects.keys() - rows.keys(), "money moved for a transfer that does not exist"
    for owner in OWNERS:
        _check_books(world, owner)
    _check_keys(told, rows)


def _effects(world: World) -> dict[UUID, tuple[int, int, int]]:
    counts: dict[UUID, Counter[str]] = defaultdict(Counter)
    for operations in world.tables.rows["ledger_operations"].values():
        for operation in operations:
            counts[operation.transfer_id][operation.verb] += operation.delta != 0
    for id_, verb, _ in world.venue.effects:
        counts[id_][verb] += 1
    found = {i: (c["debit"], c["credit"], c["refund"]) for i, c in counts.items()}
    return defaultdict(lambda: (0, 0, 0), found)


def _check_history(world: World, transfer: Transfer) -> None:
    head, state, version = GENESIS, None, 0
    for answered in world.tables.rows["history"][transfer.id]:
        entry = answered.entry
        assert entry.version == version, f"{transfer.id}: a gap before version {entry.version}"
        assert state in (None, entry.path[0]), f"{transfer.id}: {entry.path} after {state}"
        head = chained(head, transfer, entry, answered.at_us)
        assert head == answered.hash, f"{transfer.id}: the chain is broken at {version}"
        state, version = entry.path[-1], version + 1
    assert (state, version, head) == (transfer.state, transfer.version, transfer.head_hash)


def _check_books(world: World, owner: int) -> None:
    ledger: dict[Any, Balance] = world.tables.rows["ledger_accounts"]
    inside = [b for a, b in ledger.items() if a.owner == owner and a.book != "OUTSIDE"]
    inside += [b for a, b in world.venue.accounts.items() if a.owner == owner]
    assert all(balance.available >= 0 for balance in inside), f"owner {owner} is overdrawn"
    total = sum(balance.available + balance.held for balance in inside)
    assert total == 2 * START, f"owner {owner} has {total} instead of {2 * START}"


def _check_keys(told: list[tuple[Request, UUID | None]], rows: dict[UUID, Transfer]) -> None:
    seen: dict[tuple[int, str | None], UUID] = {}
    for request, id_ in told:
        if id_ is not None:
            assert id_ in rows, f"{request.cid} was told of a transfer that does not exist"
            first = seen.setdefault((request.owner, request.cid), id_)
            assert first == id_, f"{request.cid} became two transfers"
    assert len(rows) == len(set(seen.values())), "a transfer exists that nobody was told of"
