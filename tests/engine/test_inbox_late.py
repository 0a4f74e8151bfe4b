"""Late requests of the inbox are refused without an alert."""

import asyncio
import time

import pytest

from tests.engine.inboxes import RICH, UNIT, InboxClient, PlayInbox, player, wanted
from tidegate.core.ids import first_id
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.store.floors import PostgresFloors
from tidegate.store.postgres import PostgresStore

pytestmark = pytest.mark.slow


@pytest.fixture(params=["twin", "postgres"])
def play(request: pytest.FixtureRequest, database: str) -> PlayInbox:
    return player(request.param, database)


@pytest.fixture
def play_postgres(database: str) -> PlayInbox:
    return player("postgres", database)


def test_a_request_that_expires_between_claim_and_commit_is_refused(play: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        id_ = client.insert(UNIT, expires_in_s=0.5)
        engine = client.engine()
        [row] = await client.rig.store.inbox.claim(engine.context.tables, 10)
        request = engine.inbox._judge(row)
        assert isinstance(request, Request), "it had not expired when it was claimed"
        await asyncio.sleep(0.6)
        await engine.inbox._write([(row, request)])
        found = client.row(id_)
        assert (found.outcome, found.refusal) == ("refused", "EXPIRED")
        assert await client.rig.store.find([id_]) == []

    play(scene)


def test_a_request_below_the_floor_is_refused_without_an_alert(play_postgres: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        assert isinstance(client.rig.store, PostgresStore)
        id_ = client.insert(UNIT, "order-1")
        await PostgresFloors(client.rig.store).raise_to(
            first_id(int(time.time() * 1000) + 86_400_000)
        )
        async with client.engine() as engine:
            [found] = await client.decided(id_)
            assert (found.outcome, found.refusal) == ("refused", "TOO_LATE")
            # The refusal is final, so it does not suggest to try the same key again.
            assert await engine.submit(wanted(UNIT, "order-1")) is Refusal.KEY_REFUSED
        assert await client.rig.funding() == RICH
        assert client.rig.alerts == []

    play_postgres(scene)
