"""What simulation has found stays mended: each case, and that it is found again when unmended."""

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


def jumping(scene: Scenario) -> None:
    """Every clock is an hour fast for two seconds, and then right again."""
    begin = scene._begin

    async def begun() -> None:
        await begin()
        for node in scene.world.nodes:
            node.skew_s = 3600.0
        scene.spread_s = 8.0
        asyncio.get_running_loop().call_later(2.0, right)

    def right() -> None:
        for node in scene.world.nodes:
            node.skew_s = 0.0

    scene._begin = begun  # type: ignore[method-assign]


def test_a_clock_that_is_set_back_does_not_put_off_the_next_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def doubtful() -> FaultPlan:
        return FaultPlan(dict.fromkeys(range(20), Fault.RAISES), points=("ask",))

    assert run(3, doubtful(), jumping).fault is None

    async def by_the_clock(self: DueScan[Any], seconds: float) -> None:
        until_s = self.context.clock() + seconds
        while self.context.clock() < until_s:  # noqa: ASYNC110  A clock that is set tells nobody.
            await asyncio.sleep(seconds / 4)

    monkeypatch.setattr(DueScan, "_rest", by_the_clock)
    assert "not ended" in str(run(3, doubtful(), jumping).fault)


def nowhere(scene: Scenario) -> None:
    """A deposit that cannot enter, and once it has entered cannot go anywhere."""
    owner = 1
    books = {"source": OUTSIDE, "target": FUNDING, "suspense": SUSPENSE}
    parties = {role: Party(LEDGER, book, owner) for role, book in books.items()}
    scene.wishes = [Request(owner, "deposit", parties, ASSET, 10, "cid")]
    begin = scene._begin

    def mark(closed: tuple[str, ...]) -> None:
        rows = scene.world.tables.rows[ACCOUNTS]
        for book in books.values():
            status = LedgerStatus.DISABLED if book in closed else LedgerStatus.ACTIVE
            key = Account(owner, book, ASSET)
            rows[key] = rows[key]._replace(status=status)

    async def begun() -> None:
        await begin()
        mark((OUTSIDE,))
        asyncio.get_running_loop().call_later(0.4, mark, (FUNDING, SUSPENSE))
        asyncio.get_running_loop().call_later(5.0, mark, ())

    scene._begin = begun  # type: ignore[method-assign]


def test_a_refusal_for_an_old_reason_at_a_new_place_is_news(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run(1, FaultPlan(), nowhere).fault is None

    def forgetful(move: Move) -> bool:
        before = move.before
        if before is None or move.alarm is Alarm.HALT:
            return True
        same_reason = not move.entries or move.after.error == before.error
        return not (before.paged and same_reason)

    monkeypatch.setattr(tidegate.engine.move_alerts, "_is_news", forgetful)
    assert "stuck in SUSPENDING, and nobody was told" in str(run(1, FaultPlan(), nowhere).fault)


class DiesAsItRises(FaultPlan):
    """The core is killed as it clears away, and loses its power as it does so at its next start."""

    def __init__(self) -> None:
        super().__init__()
        self.left = [Fault.CORE_KILLED, Fault.POWER_LOST]

    def suffers(self, point: str) -> Fault | None:
        return self.left.pop(0) if self.left and point == "unlink" else None


def test_nobody_talks_to_the_shadow_of_a_core_that_died_as_it_rose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve, served = Network._serve, list[bool]()

    def seen(self: Network, line: SimConnection, writer: ClientWriter) -> None:
        assert isinstance(self.host, CoreHost)
        assert self.host.core is not None
        served.append(self.host.running and self.host.core.disk is self.host.disk)
        serve(self, line, writer)

    def cored(scene: Scenario) -> None:
        scene.wishes = [wish for wish in scene.wishes if wish.flow == "internal_transfer"]
        scene.world.terms = scene.world.terms._replace(snapshot_records=1)

    monkeypatch.setattr(Network, "_serve", seen)
    plans = []
    for seed in range(20):
        plans.append(DiesAsItRises())
        assert run(seed, plans[-1], cored).fault is None
    assert any(not plan.left for plan in plans)
    assert all(served)
