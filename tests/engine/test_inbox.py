"""The inbox: each request becomes a transfer exactly once, or is refused and says why."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from tests.conftest import SCHEMA
from tests.engine.inboxes import FORMS, RICH, UNIT, Desk, PlayDesk, player, wanted
from tests.engine.proxy import proxied
from tests.engine.rig import OWNER, Outside, Rig
from tests.engine.venue import Venue
from tidegate.core.answers import Alarm
from tidegate.core.ids import HORIZON_S
from tidegate.core.kind import Transfer
from tidegate.core.ports import InboxRequest
from tidegate.core.refusals import Refusal
from tidegate.core.request import CheckedRequest, Request
from tidegate.engine.inbox_reader import KEPT_S
from tidegate.engine.pending_request import Receipt
from tidegate.store.floors import PostgresFloors
from tidegate.store.memory_store import MemoryStore
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.systems.ledger import Ledger

pytestmark = pytest.mark.slow


@pytest.fixture(params=["twin", "postgres"])
def play(request: pytest.FixtureRequest, database: str) -> PlayDesk:
    return player(request.param, database)


@pytest.fixture
def play_postgres(database: str) -> PlayDesk:
    return player("postgres", database)


async def _transfers(desk: Desk, *ids: UUID) -> list[Transfer]:
    found = {t.id: t for t in await desk.rig.store.find(ids)}
    return await desk.rig.ended([found[id_] for id_ in ids])


def test_a_request_becomes_a_transfer_under_its_id(play: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        id_ = desk.ask(5 * UNIT, "order-1")
        async with desk.engine():
            [found] = await desk.decided(id_)
            assert (found.outcome, found.refusal) == ("created", None)
            [transfer] = await _transfers(desk, id_)
        assert (transfer.state, transfer.cid, transfer.owner) == ("COMMITTED", "order-1", OWNER)
        assert await desk.rig.funding() == RICH + 5 * UNIT

    play(scene)


def test_two_engines_make_each_request_once(play: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        ids = [desk.ask(UNIT, f"c{n}") for n in range(40)]
        async with desk.engine(1), desk.engine(2):
            ids += [desk.ask(UNIT) for _ in range(20)]
            await desk.decided(*ids)
            assert {t.state for t in await _transfers(desk, *ids)} == {"COMMITTED"}
        assert await desk.rig.funding() == RICH + 60 * UNIT

    play(scene)


def test_requests_whose_commits_are_not_heard_of_become_transfers_once(database: str) -> None:
    async def whole(directory: Path) -> None:
        async with (
            proxied(database, directory) as (address, proxy),
            PostgresStore(address, SCHEMA, StoreLimits(lease_s=1.0, lock_s=0.3)) as store,
        ):
            rig = Rig(store, Ledger(), Outside(Venue()))
            await rig.endow(RICH)
            desk = Desk(rig, database)
            ids = [desk.ask(UNIT, f"c{n}") for n in range(10)]
            proxy.swallow = 2
            async with desk.engine(1), desk.engine(2):
                await desk.decided(*ids)
                proxy.swallow += 1
                late = [desk.ask(UNIT, f"late{n}") for n in range(5)]
                await desk.decided(*late)
                assert {t.state for t in await _transfers(desk, *ids, *late)} == {"COMMITTED"}
            assert proxy.swallowed == 3
            assert await rig.funding() == RICH + 15 * UNIT

    with tempfile.TemporaryDirectory(prefix="tg") as name:
        asyncio.run(whole(Path(name)))


def test_a_reserved_key_is_answered_with_its_id_and_becomes_one_transfer(play: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        id_ = desk.ask(5 * UNIT, "order-1")
        async with desk.rig.engine() as engine:  # It takes nothing from the inbox.
            said = await engine.transfer(wanted(5 * UNIT, "order-1"), wait_s=0.1)
            assert isinstance(said, Receipt)
            assert (said.transfer.id, said.duplicate) == (id_, True)
            assert said.transfer.lane is not None, "it has not ended"
            assert said.transfer.created_us >> 20, "it says when it was asked for"
            other = await engine.transfer(wanted(6 * UNIT, "order-1"), wait_s=0.1)
            assert other is Refusal.IDEMPOTENCY_MISMATCH
        async with desk.engine(2) as engine:
            said = await engine.transfer(wanted(5 * UNIT, "order-1"), wait_s=10)
            assert isinstance(said, Receipt)
            assert (said.transfer.id, said.transfer.state) == (id_, "COMMITTED")
        assert await desk.rig.funding() == RICH + 5 * UNIT

    play(scene)


def test_a_refused_request_keeps_its_refusal(play: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        id_ = desk.ask(5 * UNIT, "order-1", expires_in_s=-1)
        async with desk.engine() as engine:
            [found] = await desk.decided(id_)
            assert (found.outcome, found.refusal) == ("refused", "EXPIRED")
            for _ in range(2):
                said = await engine.submit(wanted(5 * UNIT, "order-1"))
                assert said is Refusal.EXPIRED
            other = await engine.submit(wanted(6 * UNIT, "order-1"))
            assert other is Refusal.IDEMPOTENCY_MISMATCH
        assert await desk.rig.store.find([id_]) == []
        assert await desk.rig.funding() == RICH

    play(scene)


def test_a_refusal_of_a_newer_version_is_a_refusal(play_postgres: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        id_ = desk.ask(5 * UNIT, "order-1", expires_in_s=-1)
        async with desk.engine() as engine:
            await desk.decided(id_)
            desk.sql("UPDATE inbox SET refusal = 'NOT_ON_SUNDAYS' WHERE id = %s", id_)
            said = await engine.submit(wanted(5 * UNIT, "order-1"))
            assert isinstance(said, Refusal)
            assert not engine.died.done()

    play_postgres(scene)


def test_what_a_request_may_live_is_a_moment_and_not_a_duration(play_postgres: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        id_ = desk.ask(5 * UNIT, expires_in_s=3_600)
        desk.sql("UPDATE inbox SET due_at = now() + interval '0.5 s' WHERE id = %s", id_)
        async with desk.engine():
            await desk.decided(id_)
        [(same,)] = desk.sql(
            "SELECT t.expires_at = i.expires_at FROM transfers AS t JOIN inbox AS i USING (id)"
        )
        assert same

    play_postgres(scene)


def test_what_cannot_be_written_backs_off_and_the_others_go_on(play_postgres: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        desk.sql("ALTER TABLE transfers ADD CONSTRAINT unlucky CHECK (amount <> 13)")
        bad = desk.ask(13, "bad")
        good = [desk.ask(UNIT, f"good{n}") for n in range(9)]
        async with desk.engine():
            await desk.decided(*good)
            found = await desk.until(bad, lambda o: o.attempts >= 1 and o.error is not None)
            assert "unlucky" in str(found.error)
            first_s = found.due_in_s
            assert 0 < first_s <= 2
            found = await desk.until(bad, lambda o: o.attempts >= 2 and o.due_in_s > 2)
            assert found.outcome is None, "it waits longer each time"
            pages = [a for a in desk.rig.alerts if a.alarm is Alarm.PAGE]
            assert pages
            assert "unlucky" in pages[0].cause
            desk.sql("ALTER TABLE transfers DROP CONSTRAINT unlucky")
            desk.sql("UPDATE inbox SET due_at = now() WHERE outcome IS NULL")
            [found] = await desk.decided(bad)
            assert (found.outcome, found.error) == ("created", None)

    play_postgres(scene)


def test_what_cannot_be_refused_backs_off_and_the_others_go_on(play_postgres: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        desk.sql("ALTER TABLE inbox ADD CONSTRAINT unlucky CHECK (amount <> 13 OR outcome IS NULL)")
        late = [desk.ask(n, expires_in_s=-1) for n in (12, 13, 14)]
        good = desk.ask(UNIT)
        async with desk.engine() as engine:
            found = await desk.decided(late[0], late[2], good)
            assert [o.outcome for o in found] == ["refused", "refused", "created"]
            kept = await desk.until(late[1], lambda o: o.error is not None)
            assert "unlucky" in str(kept.error)
            assert any("unlucky" in a.cause for a in desk.rig.alerts if a.alarm is Alarm.PAGE)
            assert not engine.died.done()

    play_postgres(scene)


def _raises(asked: InboxRequest) -> CheckedRequest:
    raise ZeroDivisionError("a bug of the form")


def _of_another(asked: InboxRequest) -> CheckedRequest:
    return CheckedRequest(wanted(asked.amount, owner=OWNER + 1))


def _more(asked: InboxRequest) -> CheckedRequest:
    return CheckedRequest(wanted(asked.amount + 1))


@pytest.mark.parametrize("wrong", [_raises, _of_another, _more])
def test_a_wrong_form_stops_its_requests_only_and_moves_nothing(
    play: PlayDesk, wrong: Callable[[InboxRequest], CheckedRequest]
) -> None:
    def form(asked: InboxRequest) -> CheckedRequest | Refusal:
        return wrong(asked) if asked.amount == 13 else FORMS[asked.flow](asked)

    async def scene(desk: Desk) -> None:
        bad, good = desk.ask(13), desk.ask(UNIT)
        async with desk.engine(forms={**FORMS, "internal_transfer": form}) as engine:
            [found] = await desk.decided(good)
            assert found.outcome == "created"
            kept = await desk.until(bad, lambda o: o.error is not None)
            assert (kept.outcome, kept.attempts) == (None, 1)
            assert any("cannot be decided" in a.cause for a in desk.rig.alerts)
            assert not engine.died.done()
        assert await desk.rig.store.find([bad]) == []

    play(scene)


def test_halted_requests_wait_and_go_on(play: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        store = desk.rig.store
        async with desk.engine() as engine:
            await store.halt("a test", "test")
            ids = [desk.ask(UNIT), desk.ask(UNIT, expires_in_s=-1)]
            engine.inbox.look()
            assert await engine.submit(wanted(UNIT, "other")) is Refusal.HALTED
            await asyncio.sleep(0.2)  # Several scans.
            assert [desk.look(id_).outcome for id_ in ids] == [None, None]
            await store.resume("over", "test")
            found = await desk.decided(*ids)
            assert [o.outcome for o in found] == ["created", "refused"]

    play(scene)


def test_a_halt_between_claim_and_commit_leaves_the_request(play_postgres: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        id_ = desk.ask(UNIT)
        engine = desk.engine()
        [asked] = await desk.rig.store.inbox.claim(engine.context.tables, 10)
        await desk.rig.store.halt("a test", "test")
        request = engine.inbox._judge(asked)
        assert isinstance(request, Request)
        await engine.inbox._write([(asked, request)])
        assert desk.look(id_).outcome is None
        assert await desk.rig.store.find([id_]) == []
        await desk.rig.store.resume("over", "test")
        async with desk.engine(2):
            [found] = await desk.decided(id_)
        assert found.outcome == "created"

    play_postgres(scene)


def test_what_was_decided_long_ago_is_forgotten_and_refused_keys_are_free(
    play_postgres: PlayDesk,
) -> None:
    async def scene(desk: Desk) -> None:
        made = desk.ask(UNIT, "made")
        refused = desk.ask(UNIT, "refused", expires_in_s=-1)
        recent = desk.ask(UNIT, "recent", expires_in_s=-1)
        async with desk.engine():
            await desk.decided(made, refused, recent)
        desk.sql(
            "UPDATE inbox SET decided_at = decided_at - %s * interval '1 second' WHERE id <> %s",
            KEPT_S + 1,
            recent,
        )
        waiting = desk.ask(2 * UNIT, "waiting")
        desk.sql("UPDATE inbox SET requested_at = '2001-01-01' WHERE id = %s", waiting)
        assert await desk.rig.store.inbox.forget(KEPT_S, 10) == 2
        left = desk.sql("SELECT id FROM inbox ORDER BY id")
        assert left == [(recent,), (waiting,)]
        again = desk.ask(UNIT, "refused")
        assert again != refused, "the key was free"
        assert desk.ask(UNIT, "made") == made, "a transfer keeps its key"
        async with desk.engine(3) as engine:
            [found] = await desk.decided(again)
            assert found.outcome == "created"
            said = await engine.submit(wanted(UNIT, "recent"))
            assert said is Refusal.EXPIRED

    play_postgres(scene)


def test_a_process_without_the_system_leaves_the_request_to_others(play: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        id_ = desk.ask(UNIT, "order-1")
        async with desk.engine(1, outside=[]):
            found = await desk.until(id_, lambda o: o.error is not None)
            assert found.outcome is None
            assert found.due_in_s <= 0, "others may take it at once"
            async with desk.engine(2):
                [found] = await desk.decided(id_)
                assert found.attempts <= 3, "it was not taken again and again by the other"
                assert (found.outcome, found.error) == ("created", None)
                assert {t.state for t in await _transfers(desk, id_)} == {"COMMITTED"}
        assert desk.rig.alerts == []

    play(scene)


def test_a_process_with_another_table_of_the_flow_leaves_the_request(play: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        id_, store = desk.ask(UNIT), desk.rig.store
        engine = desk.engine()
        ours = engine.context.tables["internal_transfer"]
        if isinstance(store, MemoryStore):
            store.tables.flows["internal_transfer"] = "another"
        else:
            desk.sql("UPDATE flow_tables SET checksum = 'another'")
        assert await store.inbox.claim({"internal_transfer": ours}, 10) == []
        assert desk.look(id_).attempts == 0
        [found] = await store.inbox.claim({"internal_transfer": "another"}, 10)
        assert found.id == id_

    play(scene)


def test_a_request_does_not_wait_for_a_clock_that_was_set_back(play: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        id_, store = desk.ask(UNIT), desk.rig.store
        await store.inbox.postpone([id_], "as if the clock had been a day ahead", 86_400.0)
        assert desk.look(id_).due_in_s > 80_000
        await store.mend_clock(60.0, 10)
        assert desk.look(id_).due_in_s <= 0

    play(scene)


def test_the_floor_of_ids_stays_below_what_waits_in_the_inbox(play_postgres: PlayDesk) -> None:
    async def scene(desk: Desk) -> None:
        id_, store = desk.ask(UNIT), desk.rig.store
        assert isinstance(store, PostgresStore)
        old = UUID(int=id_.int - (2 * HORIZON_S * 1000 << 80))
        for table, column in (("cids", "transfer_id"), ("inbox", "id")):
            desk.sql(f"UPDATE {table} SET {column} = %s WHERE {column} = %s", old, id_)
        floors = PostgresFloors(store)
        assert await floors.lowest(HORIZON_S) <= old
        await floors.raise_to(await floors.lowest(HORIZON_S))
        async with desk.engine():
            [found] = await desk.decided(old)
            assert found.outcome == "created"
            await _transfers(desk, old)
        assert await floors.lowest(HORIZON_S) > old

    play_postgres(scene)
