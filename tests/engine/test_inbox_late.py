"""Requests of the inbox that come too late: they are refused, and page nobody."""

import asyncio
import time

import pytest

from tests.engine.inboxes import RICH, UNIT, Desk, PlayDesk, player, wanted
from tidegate.core.ids import first_id
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.store.floors import PostgresFloors
from tidegate.store.postgres import PostgresStore

pytestmark = pytest.mark.slow


@pytest.fixture(params=["twin", "postgres"])
def play(request: pytest.FixtureRequest, database: str) -> PlayDesk:
    return player(request.param, database)


@pytest.fixture
def play_postgres(database: str) -> PlayDesk:
    return player("postgres", database)


def test_a_request_that_expires_between_claim_and_commit_is_refused(play: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        id_ = desk.ask(UNIT, expires_in_s=0.5)
        engine = desk.engine()
        [asked] = await desk.rig.store.inbox.claim(engine.context.tables, 10)
        request = engine.inbox._judge(asked)
        assert isinstance(request, Request), "it had not expired when it was claimed"
        await asyncio.sleep(0.6)
        await engine.inbox._write([(asked, request)])
        found = desk.look(id_)
        assert (found.outcome, found.refusal) == ("refused", "EXPIRED")
        assert await desk.rig.store.find([id_]) == []

    play(scene)


def test_a_request_below_the_floor_is_refused_and_pages_nobody(play_postgres: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        assert isinstance(desk.rig.store, PostgresStore)
        id_ = desk.ask(UNIT, "order-1")
        await PostgresFloors(desk.rig.store).raise_to(
            first_id(int(time.time() * 1000) + 86_400_000)
        )
        async with desk.engine() as engine:
            [found] = await desk.decided(id_)
            assert (found.outcome, found.refusal) == ("refused", "TOO_LATE")
            # Refused for ever under this key, so that nobody is told to try it again.
            assert await engine.submit(wanted(UNIT, "order-1")) is Refusal.KEY_REFUSED
        assert await desk.rig.funding() == RICH
        assert desk.rig.alerts == []

    play_postgres(scene)
