"""The inbox: each request becomes one transfer, or is refused with a reason."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from tests.conftest import SCHEMA
from tests.engine.inboxes import FORMS, RICH, UNIT, InboxClient, PlayInbox, player, wanted
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
def play(request: pytest.FixtureRequest, database: str) -> PlayInbox:
    return player(request.param, database)


@pytest.fixture
def play_postgres(database: str) -> PlayInbox:
    return player("postgres", database)


async def _transfers(client: InboxClient, *ids: UUID) -> list[Transfer]:
    found = {t.id: t for t in await client.rig.store.find(ids)}
    return await client.rig.ended([found[id_] for id_ in ids])


def test_a_request_becomes_a_transfer_under_its_id(play: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        id_ = client.insert(5 * UNIT, "order-1")
        async with client.engine():
            [found] = await client.decided(id_)
            assert (found.outcome, found.refusal) == ("created", None)
            [transfer] = await _transfers(client, id_)
        assert (transfer.state, transfer.cid, transfer.owner) == ("COMMITTED", "order-1", OWNER)
        assert await client.rig.funding() == RICH + 5 * UNIT

    play(scene)


def test_two_engines_process_each_request_once(play: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        ids = [client.insert(UNIT, f"c{n}") for n in range(40)]
        async with client.engine(1), client.engine(2):
            ids += [client.insert(UNIT) for _ in range(20)]
            await client.decided(*ids)
            assert {t.state for t in await _transfers(client, *ids)} == {"COMMITTED"}
        assert await client.rig.funding() == RICH + 60 * UNIT

    play(scene)


def test_requests_with_lost_commit_replies_become_one_transfer_each(database: str) -> None:
    async def whole(directory: Path) -> None:
        async with (
            proxied(database, directory) as (address, proxy),
            PostgresStore(address, SCHEMA, StoreLimits(lease_s=1.0, lock_s=0.3)) as store,
        ):
            rig = Rig(store, Ledger(), Outside(Venue()))
            await rig.endow(RICH)
            client = InboxClient(rig, database)
            ids = [client.insert(UNIT, f"c{n}") for n in range(10)]
            proxy.swallow = 2
            async with client.engine(1), client.engine(2):
                await client.decided(*ids)
                proxy.swallow += 1
                late = [client.insert(UNIT, f"late{n}") for n in range(5)]
                await client.decided(*late)
                assert {t.state for t in await _transfers(client, *ids, *late)} == {"COMMITTED"}
            assert proxy.swallowed == 3
            assert await rig.funding() == RICH + 15 * UNIT

    with tempfile.TemporaryDirectory(prefix="tg") as name:
        asyncio.run(whole(Path(name)))


def test_a_reserved_key_is_answered_with_its_id_and_becomes_one_transfer(play: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        id_ = client.insert(5 * UNIT, "order-1")
        async with client.rig.engine() as engine:  # This engine does not read the inbox.
            reply = await engine.transfer(wanted(5 * UNIT, "order-1"), wait_s=0.1)
            assert isinstance(reply, Receipt)
            assert (reply.transfer.id, reply.duplicate) == (id_, True)
            assert reply.transfer.lane is not None, "it has not ended"
            assert reply.transfer.created_us >> 20, "it has the time of the request"
            other = await engine.transfer(wanted(6 * UNIT, "order-1"), wait_s=0.1)
            assert other is Refusal.IDEMPOTENCY_MISMATCH
        async with client.engine(2) as engine:
            reply = await engine.transfer(wanted(5 * UNIT, "order-1"), wait_s=10)
            assert isinstance(reply, Receipt)
            assert (reply.transfer.id, reply.transfer.state) == (id_, "COMMITTED")
        assert await client.rig.funding() == RICH + 5 * UNIT

    play(scene)


def test_a_refused_request_keeps_its_refusal(play: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        id_ = client.insert(5 * UNIT, "order-1", expires_in_s=-1)
        async with client.engine() as engine:
            [found] = await client.decided(id_)
            assert (found.outcome, found.refusal) == ("refused", "EXPIRED")
            for _ in range(2):
                reply = await engine.submit(wanted(5 * UNIT, "order-1"))
                assert reply is Refusal.EXPIRED
            other = await engine.submit(wanted(6 * UNIT, "order-1"))
            assert other is Refusal.IDEMPOTENCY_MISMATCH
        assert await client.rig.store.find([id_]) == []
        assert await client.rig.funding() == RICH

    play(scene)


def test_a_refusal_of_a_newer_version_is_a_refusal(play_postgres: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        id_ = client.insert(5 * UNIT, "order-1", expires_in_s=-1)
        async with client.engine() as engine:
            await client.decided(id_)
            client.sql("UPDATE inbox SET refusal = 'NOT_ON_SUNDAYS' WHERE id = %s", id_)
            reply = await engine.submit(wanted(5 * UNIT, "order-1"))
            assert isinstance(reply, Refusal)
            assert not engine.died.done()

    play_postgres(scene)


def test_the_expiry_of_a_request_is_a_time_and_not_a_duration(play_postgres: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        id_ = client.insert(5 * UNIT, expires_in_s=3_600)
        client.sql("UPDATE inbox SET due_at = now() + interval '0.5 s' WHERE id = %s", id_)
        async with client.engine():
            await client.decided(id_)
        [(same,)] = client.sql(
            "SELECT t.expires_at = i.expires_at FROM transfers AS t JOIN inbox AS i USING (id)"
        )
        assert same

    play_postgres(scene)


def test_a_request_that_cannot_be_written_backs_off_and_others_continue(
    play_postgres: PlayInbox,
) -> None:
    async def scene(client: InboxClient) -> None:
        client.sql("ALTER TABLE transfers ADD CONSTRAINT unlucky CHECK (amount <> 13)")
        bad = client.insert(13, "bad")
        good = [client.insert(UNIT, f"good{n}") for n in range(9)]
        async with client.engine():
            await client.decided(*good)
            found = await client.until(bad, lambda o: o.attempts >= 1 and o.error is not None)
            assert "unlucky" in str(found.error)
            first_s = found.due_in_s
            assert 0 < first_s <= 2
            found = await client.until(bad, lambda o: o.attempts >= 2 and o.due_in_s > 2)
            assert found.outcome is None, "it waits longer each time"
            pages = [a for a in client.rig.alerts if a.alarm is Alarm.PAGE]
            assert pages
            assert "unlucky" in pages[0].cause
            client.sql("ALTER TABLE transfers DROP CONSTRAINT unlucky")
            client.sql("UPDATE inbox SET due_at = now() WHERE outcome IS NULL")
            [found] = await client.decided(bad)
            assert (found.outcome, found.error) == ("created", None)

    play_postgres(scene)


def test_a_refusal_that_cannot_be_written_backs_off_and_others_continue(
    play_postgres: PlayInbox,
) -> None:
    async def scene(client: InboxClient) -> None:
        client.sql(
            "ALTER TABLE inbox ADD CONSTRAINT unlucky CHECK (amount <> 13 OR outcome IS NULL)"
        )
        late = [client.insert(n, expires_in_s=-1) for n in (12, 13, 14)]
        good = client.insert(UNIT)
        async with client.engine() as engine:
            found = await client.decided(late[0], late[2], good)
            assert [o.outcome for o in found] == ["refused", "refused", "created"]
            waiting = await client.until(late[1], lambda o: o.error is not None)
            assert "unlucky" in str(waiting.error)
            assert any("unlucky" in a.cause for a in client.rig.alerts if a.alarm is Alarm.PAGE)
            assert not engine.died.done()

    play_postgres(scene)


def _raises(row: InboxRequest) -> CheckedRequest:
    raise ZeroDivisionError("a bug in the form")


def _of_another(row: InboxRequest) -> CheckedRequest:
    return CheckedRequest(wanted(row.amount, owner=OWNER + 1))


def _more(row: InboxRequest) -> CheckedRequest:
    return CheckedRequest(wanted(row.amount + 1))


@pytest.mark.parametrize("wrong", [_raises, _of_another, _more])
def test_a_wrong_form_stops_only_its_requests_and_moves_nothing(
    play: PlayInbox, wrong: Callable[[InboxRequest], CheckedRequest]
) -> None:
    def form(row: InboxRequest) -> CheckedRequest | Refusal:
        return wrong(row) if row.amount == 13 else FORMS[row.flow](row)

    async def scene(client: InboxClient) -> None:
        bad, good = client.insert(13), client.insert(UNIT)
        async with client.engine(forms={**FORMS, "internal_transfer": form}) as engine:
            [found] = await client.decided(good)
            assert found.outcome == "created"
            waiting = await client.until(bad, lambda o: o.error is not None)
            assert (waiting.outcome, waiting.attempts) == (None, 1)
            assert any("cannot be decided" in a.cause for a in client.rig.alerts)
            assert not engine.died.done()
        assert await client.rig.store.find([bad]) == []

    play(scene)


def test_requests_wait_during_a_halt_and_continue_after_it(play: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        store = client.rig.store
        async with client.engine() as engine:
            await store.halt("a test", "test")
            ids = [client.insert(UNIT), client.insert(UNIT, expires_in_s=-1)]
            engine.inbox.look()
            assert await engine.submit(wanted(UNIT, "other")) is Refusal.HALTED
            await asyncio.sleep(0.2)  # Several scans.
            assert [client.row(id_).outcome for id_ in ids] == [None, None]
            await store.resume("over", "test")
            found = await client.decided(*ids)
            assert [o.outcome for o in found] == ["created", "refused"]

    play(scene)


def test_a_halt_between_claim_and_commit_leaves_the_request(play_postgres: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        id_ = client.insert(UNIT)
        engine = client.engine()
        [row] = await client.rig.store.inbox.claim(engine.context.tables, 10)
        await client.rig.store.halt("a test", "test")
        request = engine.inbox._judge(row)
        assert isinstance(request, Request)
        await engine.inbox._write([(row, request)])
        assert client.row(id_).outcome is None
        assert await client.rig.store.find([id_]) == []
        await client.rig.store.resume("over", "test")
        async with client.engine(2):
            [found] = await client.decided(id_)
        assert found.outcome == "created"

    play_postgres(scene)


def test_old_decided_requests_are_deleted_and_refused_keys_become_free(
    play_postgres: PlayInbox,
) -> None:
    async def scene(client: InboxClient) -> None:
        made = client.insert(UNIT, "made")
        refused = client.insert(UNIT, "refused", expires_in_s=-1)
        recent = client.insert(UNIT, "recent", expires_in_s=-1)
        async with client.engine():
            await client.decided(made, refused, recent)
        client.sql(
            "UPDATE inbox SET decided_at = decided_at - %s * interval '1 second' WHERE id <> %s",
            KEPT_S + 1,
            recent,
        )
        waiting = client.insert(2 * UNIT, "waiting")
        client.sql("UPDATE inbox SET requested_at = '2001-01-01' WHERE id = %s", waiting)
        assert await client.rig.store.inbox.forget(KEPT_S, 10) == 2
        left = client.sql("SELECT id FROM inbox ORDER BY id")
        assert left == [(recent,), (waiting,)]
        again = client.insert(UNIT, "refused")
        assert again != refused, "the key was free"
        assert client.insert(UNIT, "made") == made, "a transfer keeps its key"
        async with client.engine(3) as engine:
            [found] = await client.decided(again)
            assert found.outcome == "created"
            reply = await engine.submit(wanted(UNIT, "recent"))
            assert reply is Refusal.EXPIRED

    play_postgres(scene)


def test_a_process_without_the_system_leaves_the_request_to_others(play: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        id_ = client.insert(UNIT, "order-1")
        async with client.engine(1, outside=[]):
            found = await client.until(id_, lambda o: o.error is not None)
            assert found.outcome is None
            assert found.due_in_s <= 0, "other processes may claim it at once"
            async with client.engine(2):
                [found] = await client.decided(id_)
                assert found.attempts <= 3, (
                    "the process without the system does not claim it repeatedly"
                )
                assert (found.outcome, found.error) == ("created", None)
                assert {t.state for t in await _transfers(client, id_)} == {"COMMITTED"}
        assert client.rig.alerts == []

    play(scene)


def test_a_process_with_another_table_of_the_flow_leaves_the_request(play: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        id_, store = client.insert(UNIT), client.rig.store
        engine = client.engine()
        ours = engine.context.tables["internal_transfer"]
        if isinstance(store, MemoryStore):
            store.tables.flows["internal_transfer"] = "another"
        else:
            client.sql("UPDATE flow_tables SET checksum = 'another'")
        assert await store.inbox.claim({"internal_transfer": ours}, 10) == []
        assert client.row(id_).attempts == 0
        [found] = await store.inbox.claim({"internal_transfer": "another"}, 10)
        assert found.id == id_

    play(scene)


def test_a_request_does_not_wait_for_a_clock_that_was_set_back(play: PlayInbox) -> None:
    async def scene(client: InboxClient) -> None:
        id_, store = client.insert(UNIT), client.rig.store
        await store.inbox.postpone([id_], "as if the clock had been a day ahead", 86_400.0)
        assert client.row(id_).due_in_s > 80_000
        await store.mend_clock(60.0, 10)
        assert client.row(id_).due_in_s <= 0

    play(scene)


def test_the_floor_of_ids_stays_below_the_waiting_requests_of_the_inbox(
    play_postgres: PlayInbox,
) -> None:
    async def scene(client: InboxClient) -> None:
        id_, store = client.insert(UNIT), client.rig.store
        assert isinstance(store, PostgresStore)
        old = UUID(int=id_.int - (2 * HORIZON_S * 1000 << 80))
        for table, column in (("cids", "transfer_id"), ("inbox", "id")):
            client.sql(f"UPDATE {table} SET {column} = %s WHERE {column} = %s", old, id_)
        floors = PostgresFloors(store)
        assert await floors.lowest(HORIZON_S) <= old
        await floors.raise_to(await floors.lowest(HORIZON_S))
        async with client.engine():
            [found] = await client.decided(old)
            assert found.outcome == "created"
            await _transfers(client, old)
        assert await floors.lowest(HORIZON_S) > old

    play_postgres(scene)
