"""The audit notices money that went to another account, although every sum agrees."""

import pytest

from tests.crash.scenes import ASSET
from tests.engine.audited import BASE, Play, World
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.engine.gate import CORE
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import LEDGER, ExternalTransfer
from tidegate.systems.ledger import FUNDING

pytestmark = pytest.mark.slow

FROM_SPOT = {"source": Party(CORE, "SPOT", BASE), "target": Party(LEDGER, FUNDING, BASE)}
TO_SPOT = {"source": Party(LEDGER, FUNDING, BASE), "target": Party(CORE, "SPOT", BASE)}
# What a ledger does that credits another book of the same owner: all its own sums agree.
ASTRAY = (
    "UPDATE ledger_operations SET book = 'OTHER' WHERE transfer_id = %s AND verb = 'credit'",
    "UPDATE ledger_operations SET balance_after = 5 WHERE owner = %s AND book = 'OTHER'",
    "UPDATE ledger_accounts SET available = available - 5 WHERE owner = %s AND book = 'FUNDING'",
    "INSERT INTO ledger_accounts (owner, book, asset_id, available) VALUES (%s, 'OTHER', 3, 5)",
)


async def moved(world: World, parties: dict[str, Party], amount: int) -> Receipt:
    request = Request(BASE, "internal_transfer", parties, ASSET, amount)
    done = await world.gate.engine.transfer(request, 20)
    assert isinstance(done, Receipt)
    assert done.transfer.state == "COMMITTED"
    return done


@pytest.mark.parametrize("full", [True, False])
def test_money_that_the_ledger_credited_to_another_book_is_noticed(
    play_audited: Play, full: bool
) -> None:
    async def scene(world: World) -> None:
        await world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "50", "d"), BASE)
        await moved(world, TO_SPOT, 9)
        assert (await world.audit.run(full=full)).ok
        done = await moved(world, FROM_SPOT, 5)
        for statement, value in zip(ASTRAY, (done.transfer.id, BASE, BASE, BASE), strict=True):
            await world.corrupt(statement, value)
        await world.found("the ledger's operation 1 is about something else", full=full)

    play_audited(scene)


@pytest.mark.parametrize("full", [True, False])
def test_money_that_the_core_credited_to_another_book_is_noticed(
    play_audited: Play, full: bool
) -> None:
    async def scene(world: World) -> None:
        await world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "50", "d"), BASE)
        assert (await world.audit.run(full=full)).ok
        world.core.astray = Party(CORE, "MARGIN", BASE)
        await moved(world, TO_SPOT, 9)
        await world.found("is about something else than its transfer", full=full)

    play_audited(scene)


@pytest.mark.parametrize("full", [True, False])
def test_accounts_that_are_gone_are_noticed_although_every_sum_agrees(
    play_audited: Play, full: bool
) -> None:
    """A deposit adds to one book what it takes from another: without both, all sums agree."""

    async def scene(world: World) -> None:
        await world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "50", "d"), BASE)
        assert (await world.audit.run(full=full)).ok
        await world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "5", "e"), BASE + 1)
        await world.corrupt("DELETE FROM ledger_accounts WHERE owner = %s", BASE + 1)
        await world.found("it does not follow from its operations", full=full)

    play_audited(scene)
