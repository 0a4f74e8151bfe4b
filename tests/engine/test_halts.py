"""Halts are independent: resuming one halt does not end another."""

import pytest

from tests.engine.audited import BASE, Play, World
from tidegate.core.answers import Alarm
from tidegate.systems.ledger import FUNDING

pytestmark = pytest.mark.slow

ONE_MORE = "UPDATE ledger_accounts SET available = available + 1 WHERE owner = %s AND book = %s"


def test_a_violation_that_the_audit_finds_during_a_halt_adds_a_second_halt(
    play_audited: Play,
) -> None:
    async def scene(world: World) -> None:
        store = world.gate.store
        await world.traffic()
        drill = await store.halt("a drill", "olga")
        await world.corrupt(ONE_MORE, BASE, FUNDING)
        assert not (await world.audit.run()).ok
        assert not (await world.audit.run()).ok
        assert [halt.actor for halt in await store.halts()] == ["olga", "audit"]
        assert [alert.alarm for alert in world.alerts] == [Alarm.HALT]
        await store.resume("the drill is over", "olga", [drill])
        [left] = await store.halts()
        assert f"FUNDING of owner {BASE}" in left.reason
        assert await store.halted(), "the books still differ"

    play_audited(scene)
