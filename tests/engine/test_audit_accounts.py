"""The audit finds money that was moved to a wrong account, although every sum agrees."""

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
# A ledger that credits another book of the same owner. All sums of the ledger still agree.
WRONG_CREDIT = (
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
def test_money_that_the_ledger_credited_to_another_book_is_found(
    play_audited: Play, full: bool
) -> None:
    async def scene(world: World) -> None:
        await world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "50", "d"), BASE)
        await moved(world, TO_SPOT, 9)
        assert (await world.audit.run(full=full)).ok
        done = await moved(world, FROM_SPOT, 5)
        for statement, value in zip(
            WRONG_CREDIT, (done.transfer.id, BASE, BASE, BASE), strict=True
        ):
            await world.corrupt(statement, value)
        violation = "the ledger operation of version 1 does not match its transfer"
        await world.expect_violation(violation, full=full)

    play_audited(scene)


@pytest.mark.parametrize("full", [True, False])
def test_money_that_the_core_credited_to_another_book_is_found(
    play_audited: Play, full: bool
) -> None:
    async def scene(world: World) -> None:
        await world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "50", "d"), BASE)
        assert (await world.audit.run(full=full)).ok
        world.core.credits_instead = Party(CORE, "MARGIN", BASE)
        await moved(world, TO_SPOT, 9)
        await world.expect_violation("does not match its transfer", full=full)

    play_audited(scene)


@pytest.mark.parametrize("full", [True, False])
def test_missing_accounts_are_found_although_every_sum_agrees(
    play_audited: Play, full: bool
) -> None:
    """A deposit adds to one book what it takes from another. Without both, all sums agree."""

    async def scene(world: World) -> None:
        await world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "50", "d"), BASE)
        assert (await world.audit.run(full=full)).ok
        await world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "5", "e"), BASE + 1)
        await world.corrupt("DELETE FROM ledger_accounts WHERE owner = %s", BASE + 1)
        await world.expect_violation("the balance does not follow from the operations", full=full)

    play_audited(scene)
