"""An audit beside a program with its own flows: it reports them, and does not halt."""

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from examples.own_flow import PRIZE, Prize
from tests.conftest import SCHEMA
from tests.crash.scenes import ASSET, UNIT
from tests.engine.audited import BASE, Play, World
from tidegate.core.answers import Answer, Done, Rejected
from tidegate.core.flow import Flow
from tidegate.core.kind import Party, Transfer
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.core.transfer import Question
from tidegate.engine import resolution
from tidegate.engine.alerts import AlertCode
from tidegate.engine.engine import Engine, EngineParts
from tidegate.engine.gate import CORE
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import LEDGER
from tidegate.flows import FLOWS
from tidegate.store import resolutions
from tidegate.store.migrate import migrate
from tidegate.store.resolutions import Proposal, Resolution
from tidegate.store.transaction import PostgresTransaction
from tidegate.systems.ledger import FUNDING, Ledger

pytestmark = pytest.mark.slow

INTERNAL = FLOWS["internal_transfer"]
ADDED = Flow("added", first=INTERNAL.first, rows=INTERNAL.rows)


class Cards:
    """A system that the audit cannot read."""

    name, reversible = "cards", False

    def __init__(self) -> None:
        self.refuses = False

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        return [Rejected("CARD_EXPIRED") if self.refuses else Done() for _ in questions]


class OtherProgram:
    """A program with two flows of its own, on the same store and core."""

    def __init__(self, world: World) -> None:
        migrate(world.database, SCHEMA, [ADDED, PRIZE])
        self.cards = Cards()
        self.wait_s = 10.0
        parts: EngineParts[PostgresTransaction] = EngineParts(
            store=world.gate.store,
            flows={**FLOWS, ADDED.name: ADDED, PRIZE.name: PRIZE},
            outside=[world.core, self.cards],
            local=[Ledger(LEDGER)],
            clock=time.monotonic,
            dice=random.Random(8),
            alert=lambda _: None,
            scan_s=0.1,
        )
        self.engine = Engine(parts)

    async def move(self, flow: str, source: Party, target: Party, amount: int = 5) -> Transfer:
        parties = {"source": source, "target": target}
        wanted = Request(source.owner, flow, parties, ASSET, amount * UNIT)
        receipt = await self.engine.transfer(wanted, self.wait_s)
        assert isinstance(receipt, Receipt), receipt
        return receipt.transfer


def funding(owner: int = BASE) -> Party:
    return Party(LEDGER, FUNDING, owner)


def spot(owner: int = BASE) -> Party:
    return Party(CORE, "SPOT", owner)


def card(owner: int = BASE) -> Party:
    return Party("cards", "visa", owner)


async def finds_nothing(world: World, *, full: bool) -> None:
    report = await world.audit.run(full=full)
    assert report.violations == []
    assert (report.ok, report.halted) == (True, False)
    assert not await world.gate.store.halted()


@pytest.mark.parametrize("full", [True, False])
def test_unknown_flows_are_reported_and_halt_nothing(full: bool, play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        program = OtherProgram(world)
        async with program.engine:
            assert (await program.move("added", funding(), spot())).state == "COMMITTED"
            assert (await program.move("added", spot(), funding(), 7)).state == "COMMITTED"
            assert (await program.move("prize", funding(), card())).state == Prize.PAID
            await finds_nothing(world, full=full)
            # From the core to another system, from one owner to another, and a refund.
            assert (await program.move("prize", spot(), card())).state == Prize.PAID
            assert (await program.move("added", funding(), funding(BASE + 1))).state == "COMMITTED"
            for other in (BASE + 1, BASE + 3):  # The first of them is refused and refunded.
                assert (await program.move("added", spot(), spot(other))).lane is None
            program.cards.refuses = True
            assert (await program.move("prize", funding(), card())).state == Prize.RETURNED
            for next_full in (full, False, True, False):
                await finds_nothing(world, full=next_full)
        report = await world.audit.run(full=True)
        assert report.not_judged == {"added": 5, "prize": 3}
        assert [a.code for a in world.alerts] == [AlertCode.FLOW_UNKNOWN]

    play_audited(scene)


def test_open_transfers_of_an_unknown_flow_are_counted(play_audited: Play) -> None:
    """The core has done its operation, and its answer was lost."""

    async def scene(world: World) -> None:
        await world.traffic()
        program = OtherProgram(world)
        world.core.loses_answers, program.wait_s = True, 0.5
        async with program.engine:
            transfers = await asyncio.gather(
                program.move("added", funding(), spot()), program.move("added", spot(), funding())
            )
            assert {t.state for t in transfers} == {"TARGET_PENDING", "SOURCE_PENDING"}
            for full in (True, False):
                await finds_nothing(world, full=full)
            world.core.loses_answers = False
            for _ in range(100):
                found = await world.gate.store.find([t.id for t in transfers])
                if all(t.lane is None for t in found):
                    break
                await finds_nothing(world, full=False)
                await asyncio.sleep(0.1)
            assert {t.state for t in found} == {"COMMITTED"}
        for full in (False, True):
            await finds_nothing(world, full=full)

    play_audited(scene)


def test_other_violations_are_still_found(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        program = OtherProgram(world)
        async with program.engine:
            await program.move("prize", funding(), card())
            await finds_nothing(world, full=False)
        statement = "UPDATE ledger_accounts SET available = available + 1 WHERE owner = %s"
        await world.corrupt(f"{statement} AND book = 'FUNDING' AND asset_id = {ASSET}", BASE + 1)
        await world.expect_violation("off by 1 smallest")

    play_audited(scene)


def test_a_transfer_of_a_flow_that_is_not_installed_is_a_violation(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        id_ = await world.some_transfer("COMMITTED")
        await world.corrupt("UPDATE transfers SET flow = 'nowhere' WHERE id = %s", id_)
        await world.expect_violation("does not know the flow nowhere")

    play_audited(scene)


def test_a_replaced_table_of_a_known_flow_is_not_judged_by_the_old_one(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        await world.corrupt("UPDATE flow_tables SET checksum = 'x' WHERE flow = 'deposit'")
        await finds_nothing(world, full=True)
        report = await world.audit.run(full=True)
        assert set(report.not_judged) == {"deposit"}

    play_audited(scene)


def test_a_process_that_does_not_know_the_flow_refuses_a_resolution(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        program = OtherProgram(world)
        world.core.loses_answers, program.wait_s = True, 0.5
        async with program.engine:
            open_ = await program.move("added", funding(), spot())
            evidence = {"ticket": "7"}
            proposal = Proposal(open_.id, open_.version, "rejected", "by hand", evidence, "olga")
            assert await resolution.propose(world.gate, open_, proposal) == Refusal.INVALID_REQUEST
            # Proposed at the other process and confirmed here by mistake. It stays open.
            number = await resolutions.propose(world.gate.store, proposal)
            stored = Resolution(number, proposal, None, None)
            assert "does not know" in await resolution.confirm(world.gate, stored, "otto")
            assert (await world.gate.store.find([open_.id]))[0].version == open_.version
            assert await resolutions.confirm(world.gate.store, number, "otto") == "otto"

    play_audited(scene)
