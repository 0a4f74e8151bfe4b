"""The archive beside a running engine: no repeat makes a second transfer, no audit is misled."""

import asyncio
from uuid import UUID

import pytest

import tidegate.engine.audit
from tests.conftest import SCHEMA
from tests.crash.scenes import expected, held, parts, request_of, states
from tests.engine.audited import BASE, Play, World
from tests.engine.test_audit import Load
from tidegate.core.request import Request
from tidegate.engine.audit import Audit
from tidegate.engine.pending_request import Receipt
from tidegate.engine.resolution import MEANWHILE, confirm
from tidegate.flows import FLOWS
from tidegate.store import resolutions
from tidegate.store.archive import ArchiveAges, ArchivedBatch, archive
from tidegate.store.resolutions import Proposal

pytestmark = pytest.mark.slow

YEAR_S = 365 * 24 * 3600

# Without operations of the ledger, which would tell as well.
ANSWERS_OF_NOBODY = (
    "INSERT INTO archived_history SELECT lpad('7', 32, '0')::uuid, version, flow, from_state,"
    " waypoints, to_state, verb, answer, reason, evidence, actor, at, hash"
    " FROM archived_history WHERE {id}"
)


def put_away(database: str, keep_cids_s: float = YEAR_S) -> ArchivedBatch:
    done = list(archive(database, SCHEMA, ArchiveAges(0, keep_cids_s), limit=100))
    return (
        ArchivedBatch(*(sum(column) for column in zip(*done, strict=True)))
        if done
        else ArchivedBatch()
    )


def test_the_books_are_the_same_before_and_after(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        before = await world.audit.run()
        assert before.ok, before.violations
        read = dict(world.audit.read)
        # One that cannot read the core counts by the answers that the core has given.
        alone = Audit(world.gate.store, None, FLOWS, world.alerts.append)
        by_answers = await alone.run()
        assert by_answers.ok, by_answers.violations
        assert (await asyncio.to_thread(put_away, world.database)).transfers == 12
        for full in (False, True):
            assert await world.audit.run(full=full) == before
        assert dict(world.audit.read) == read
        assert await alone.run() == by_answers
        assert await states(world.gate, BASE) == [part.state for part in parts(BASE)]
        assert await held(world.gate, BASE) == expected(BASE)
        forgotten = await asyncio.to_thread(put_away, world.database, 0)
        assert forgotten == ArchivedBatch(cids=12)
        assert await world.audit.run() == before
        # The same cid is a new request then; the old one is judged without it.
        said = await world.gate.engine.transfer(request_of(parts(BASE)[0], 0), 20)
        assert isinstance(said, Receipt)
        assert not said.duplicate
        report = await world.audit.run()
        assert report.ok, report.violations
        assert world.audit.read["transfers"] == 13

    play_audited(scene)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE archived_history SET at = at + interval '1 day' WHERE {id}", "was hashed"),
        ("DELETE FROM archived_history WHERE {id} AND version = 0", "its history has 1 answers"),
        ("DELETE FROM archived_transfers WHERE id = %s", "does not exist"),
        (ANSWERS_OF_NOBODY, "does not exist"),
        ("UPDATE archived_transfers SET amount = 1 WHERE id = %s", "about something else"),
        ("UPDATE archived_transfers SET state = 'FAILED' WHERE id = %s", "its history leads to"),
        ("DELETE FROM cids WHERE {id}", "its key does not lead to it"),
        ("DELETE FROM ledger_operations WHERE {id}", "ledger holds nothing"),
    ],
)
def test_a_full_audit_finds_what_is_wrong_in_the_archive(
    play_audited: Play, statement: str, said: str
) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        victim = await world.some_transfer("COMMITTED")
        await asyncio.to_thread(put_away, world.database)
        assert (await world.audit.run()).ok
        await world.corrupt(statement.format(id="transfer_id = %s"), victim)
        await world.found(said)

    play_audited(scene)


def test_what_was_open_at_the_last_audit_is_judged_in_the_archive(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        world.core.deaf = True
        said = await world.gate.engine.transfer(request_of(parts(BASE)[0], 50), 0.2)
        assert isinstance(said, Receipt)
        assert (await world.audit.run(full=False)).ok
        world.core.deaf = False
        assert (await world.gate.engine.wait(said.transfer, 20)).state == "COMMITTED"
        assert (await asyncio.to_thread(put_away, world.database)).transfers == 13
        report = await world.audit.run(full=False)
        assert report.ok, report.violations
        assert world.audit.read["transfers"] == 1

    play_audited(scene)


def test_a_late_confirmation_of_an_archived_transfer_changes_nothing(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        id_ = await world.some_transfer("COMMITTED")
        proposal = Proposal(id_, 1, "done", "a call", {"ticket": "7"}, "ann")
        number = await resolutions.propose(world.gate.store, proposal)
        await asyncio.to_thread(put_away, world.database)
        found = await resolutions.find(world.gate.store, number)
        assert found is not None
        assert await confirm(world.gate, found, "bob") == MEANWHILE
        assert (await world.audit.run()).ok

    play_audited(scene)


class Repeating(Load):
    """A load whose callers repeat what they asked for, however long ago."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.made: list[tuple[Request, UUID]] = []
        self.repeated = self.moved = 0

    async def run(self) -> None:
        while min(self.count - 2_000, self.looks - 20, self.moved - 1_000, self.repeated - 300) < 0:
            await asyncio.gather(*(self.one() for _ in range(50)))
            self.count += 50

    async def repeat(self) -> None:
        for request, id_ in self.dice.sample(self.made, min(len(self.made), 30)):
            said = await self.world.gate.engine.transfer(request, 30)
            assert isinstance(said, Receipt)
            assert said.duplicate
            assert said.transfer.id == id_
            self.repeated += 1

    async def one(self) -> None:
        request = self.request()
        said = await self.world.gate.engine.transfer(request, 30)
        assert isinstance(said, Receipt)
        assert not said.duplicate
        assert said.transfer.lane is None
        self.made.append((request, said.transfer.id))

    async def put_away(self) -> None:
        while True:
            done = await asyncio.to_thread(put_away, self.world.database)
            self.moved += done.transfers
            await self.repeat()
            await asyncio.sleep(0.01)


def test_beside_load_everything_is_found_once_and_no_audit_sees_anything_wrong(
    play_audited: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidegate.engine.audit, "PAGE", 300)

    async def scene(world: World) -> None:
        load = Repeating(world)
        await load.endow()
        loading = asyncio.ensure_future(load.run())
        moving = asyncio.ensure_future(load.put_away())
        while not loading.done():
            # `look` and not `run`, which would look again before it says anything.
            look = await world.audit.look(full=load.looks % 5 == 4)
            assert look.problems == []
            load.looks += 1
            assert not moving.done(), moving.exception()
        await loading
        moving.cancel()
        await load.repeat()
        report = await world.audit.run()
        assert report.ok, report.violations
        assert report.assets["USDT"].gap == "0"
        [(count,)] = await world.gate.store.run("SELECT count(*) FROM every_transfer", {})
        assert world.audit.read["transfers"] == count
        assert count == len(load.made) + 3 * len(load.owners)

    play_audited(scene)
