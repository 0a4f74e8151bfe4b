"""Bugs that simulation has found stay fixed, and are found again when the fix is undone."""

import asyncio
from typing import Any

import pytest

import tidegate.engine.move_alerts
from tidegate.core.account import Account
from tidegate.core.answers import Alarm
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.core.transfer import Move
from tidegate.engine.due_scan import DueScan
from tidegate.simulation.auditor import LEDGER
from tidegate.simulation.faults import Fault, FaultPlan
from tidegate.simulation.network import ClientWriter, Network, SimConnection
from tidegate.simulation.scenario import Scenario, run
from tidegate.simulation.workload import ASSET
from tidegate.simulation.world import CoreHost
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, LedgerStatus
from tidegate.systems.ledger.memory import ACCOUNTS


def clocks_jump(scene: Scenario) -> None:
    """Every worker's clock is an hour ahead for two seconds, then correct again."""
    begin = scene._begin

    async def begin_and_disturb() -> None:
        await begin()
        for worker in scene.world.workers:
            worker.skew_s = 3600.0
        scene.spread_s = 8.0
        asyncio.get_running_loop().call_later(2.0, correct)

    def correct() -> None:
        for worker in scene.world.workers:
            worker.skew_s = 0.0

    scene._begin = begin_and_disturb  # type: ignore[method-assign]


def test_a_clock_that_is_set_back_does_not_delay_the_next_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raising_asks() -> FaultPlan:
        return FaultPlan(dict.fromkeys(range(20), Fault.RAISES), points=("ask",))

    assert run(3, raising_asks(), clocks_jump).fault is None

    unpatched = DueScan.run

    async def run_by_clock(self: DueScan[Any]) -> None:
        async def wait_by_clock(seconds: float) -> None:
            until_s = self.context.clock() + seconds
            while self.context.clock() < until_s:  # noqa: ASYNC110  A clock jump sends no event.
                await asyncio.sleep(seconds / 4)

        monkeypatch.setattr(self._wakeup, "wait", wait_by_clock)
        await unpatched(self)

    monkeypatch.setattr(DueScan, "run", run_by_clock)
    assert "not ended" in str(run(3, raising_asks(), clocks_jump).fault)


def deposit_is_refused(scene: Scenario) -> None:
    """A deposit that is refused by its source, then by its target and the suspense book."""
    owner = 1
    books = {"source": OUTSIDE, "target": FUNDING, "suspense": SUSPENSE}
    parties = {role: Party(LEDGER, book, owner) for role, book in books.items()}
    scene.requests = [Request(owner, "deposit", parties, ASSET, 10, "cid")]
    begin = scene._begin

    def disable(disabled: tuple[str, ...]) -> None:
        rows = scene.world.tables.rows[ACCOUNTS]
        for book in books.values():
            status = LedgerStatus.DISABLED if book in disabled else LedgerStatus.ACTIVE
            key = Account(owner, book, ASSET)
            rows[key] = rows[key]._replace(status=status)

    async def begin_and_disturb() -> None:
        await begin()
        disable((OUTSIDE,))
        asyncio.get_running_loop().call_later(0.4, disable, (FUNDING, SUSPENSE))
        asyncio.get_running_loop().call_later(5.0, disable, ())

    scene._begin = begin_and_disturb  # type: ignore[method-assign]


def test_the_same_refusal_in_another_state_raises_a_new_alert(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run(1, FaultPlan(), deposit_is_refused).fault is None

    def ignores_the_state(move: Move) -> bool:
        before = move.before
        if before is None or move.alarm is Alarm.HALT:
            return True
        same_reason = not move.entries or move.after.error == before.error
        return not (before.paged and same_reason)

    monkeypatch.setattr(tidegate.engine.move_alerts, "_is_new_reason", ignores_the_state)
    assert "stuck in SUSPENDING without an alert" in str(
        run(1, FaultPlan(), deposit_is_refused).fault
    )


class DiesDuringCleanup(FaultPlan):
    """The core is killed in its first unlink, and loses power in the unlink of its next start."""

    def __init__(self) -> None:
        super().__init__()
        self.left = [Fault.CORE_KILLED, Fault.POWER_LOST]

    def next_fault(self, point: str) -> Fault | None:
        return self.left.pop(0) if self.left and point == "unlink" else None


def test_no_client_is_served_by_a_core_that_died_during_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve, served = Network._serve, list[bool]()

    def note_served(self: Network, connection: SimConnection, writer: ClientWriter) -> None:
        assert isinstance(self.host, CoreHost)
        assert self.host.core is not None
        served.append(self.host.running and self.host.core.disk is self.host.disk)
        serve(self, connection, writer)

    def snapshot_each_operation(scene: Scenario) -> None:
        scene.requests = [
            request for request in scene.requests if request.flow == "internal_transfer"
        ]
        scene.world.variant = scene.world.variant._replace(snapshot_records=1)

    monkeypatch.setattr(Network, "_serve", note_served)
    plans = []
    for seed in range(20):
        plans.append(DiesDuringCleanup())
        assert run(seed, plans[-1], snapshot_each_operation).fault is None
    assert any(not plan.left for plan in plans)
    assert all(served)
