"""Another session holds a row of the pool: only the payment that needs the row waits."""

import asyncio

import psycopg
import pytest

from tests.economy.rig import Play, Rig

pytestmark = pytest.mark.slow


def test_others_are_paid_while_the_record_of_a_refused_payment_is_locked(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        late = rig.insert(13, expires_at="2020-01-01")
        others = [rig.insert(amount) for amount in range(1, 6)]
        with psycopg.connect(rig.database) as holder:
            holder.execute(
                "SELECT FROM economy.pending_transfers WHERE transfer_id = %s FOR UPDATE", (late,)
            )
            async with rig.engine():
                await asyncio.gather(*(rig.until(id_, "completed") for id_ in others))
                assert rig.pending(late)["status"] == "pending"
                holder.rollback()
                rig.run("UPDATE inbox SET due_at = now() WHERE id = %s", late)
                await rig.until(late, "rejected")
        assert rig.alerts == [], "a held row does not page"

    play(scene)
