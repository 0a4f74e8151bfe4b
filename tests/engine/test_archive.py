"""Archiving beside a running engine: repeats return the same transfer, and audits still pass."""

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
from tidegate.engine.resolution import ALREADY_ANSWERED, confirm
from tidegate.flows import FLOWS
from tidegate.store import resolutions
from tidegate.store.archive import ArchiveAges, ArchivedBatch, archive
from tidegate.store.resolutions import Proposal

pytestmark = pytest.mark.slow

YEAR_S = 365 * 24 * 3600

# Answers of a transfer that does not exist, without ledger operations, which would show it too.
ORPHANED_ANSWERS = (
    "INSERT INTO archived_history SELECT lpad('7', 32, '0')::uuid, version, flow, from_state,"
    " waypoints, to_state, verb, answer, reason, evidence, actor, at, hash"
    " FROM archived_history WHERE {id}"
)


def archive_all(database: str, keep_cids_s: float = YEAR_S) -> ArchivedBatch:
    done = list(archive(database, SCHEMA, ArchiveAges(0, keep_cids_s), limit=100))
    return (
        ArchivedBatch(*(sum(column) for column in zip(*done, strict=True)))
        if done
        else ArchivedBatch()
    )


def test_an_audit_finds_the_same_before_and_after_archiving(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        before = await world.audit.run()
        assert before.ok, before.violations
        read = dict(world.audit.read)
        # An audit without the core uses the answers of the core in the history.
        without_core = Audit(world.gate.store, None, FLOWS, world.alerts.append)
        by_answers = await without_core.run()
        assert by_answers.ok, by_answers.violations
        assert (await asyncio.to_thread(archive_all, world.database)).transfers == 12
        for full in (False, True):
            assert await world.audit.run(full=full) == before
        assert dict(world.audit.read) == read
        assert await without_core.run() == by_answers
        assert await states(world.gate, BASE) == [part.state for part in parts(BASE)]
        assert await held(world.gate, BASE) == expected(BASE)
        forgotten = await asyncio.to_thread(archive_all, world.database, 0)
        assert forgotten == ArchivedBatch(cids=12)
        assert await world.audit.run() == before
        # After that the same cid is a new request. The old transfer is judged without its cid.
        receipt = await world.gate.engine.transfer(request_of(parts(BASE)[0], 0), 20)
        assert isinstance(receipt, Receipt)
        assert not receipt.duplicate
        report = await world.audit.run()
        assert report.ok, report.violations
        assert world.audit.read["transfers"] == 13

    play_audited(scene)


@pytest.mark.parametrize(
    ("statement", "violation"),
    [
        (
            "UPDATE archived_history SET at = at + interval '1 day' WHERE {id}",
            "does not match its hash",
        ),
        ("DELETE FROM archived_history WHERE {id} AND version = 0", "the history has 1 answers"),
        ("DELETE FROM archived_transfers WHERE id = %s", "does not exist"),
        (ORPHANED_ANSWERS, "does not exist"),
        ("UPDATE archived_transfers SET amount = 1 WHERE id = %s", "does not match its transfer"),
        (
            "UPDATE archived_transfers SET state = 'FAILED' WHERE id = %s",
            "the history leads to state",
        ),
        ("DELETE FROM cids WHERE {id}", "does not lead to this transfer"),
        ("DELETE FROM ledger_operations WHERE {id}", "system ledger has recorded nothing"),
    ],
)
def test_a_full_audit_finds_what_is_wrong_in_the_archive(
    play_audited: Play, statement: str, violation: str
) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        victim = await world.some_transfer("COMMITTED")
        await asyncio.to_thread(archive_all, world.database)
        assert (await world.audit.run()).ok
        await world.corrupt(statement.format(id="transfer_id = %s"), victim)
        await world.expect_violation(violation)

    play_audited(scene)


def test_a_transfer_that_was_open_at_the_last_audit_is_judged_in_the_archive(
    play_audited: Play,
) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        world.core.loses_answers = True
        receipt = await world.gate.engine.transfer(request_of(parts(BASE)[0], 50), 0.2)
        assert isinstance(receipt, Receipt)
        assert (await world.audit.run(full=False)).ok
        world.core.loses_answers = False
        assert (await world.gate.engine.wait(receipt.transfer, 20)).state == "COMMITTED"
        assert (await asyncio.to_thread(archive_all, world.database)).transfers == 13
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
        await asyncio.to_thread(archive_all, world.database)
        found = await resolutions.find(world.gate.store, number)
        assert found is not None
        assert await confirm(world.gate, found, "bob") == ALREADY_ANSWERED
        assert (await world.audit.run()).ok

    play_audited(scene)


class Repeating(Load):
    """A load whose callers repeat old requests."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.requests: list[tuple[Request, UUID]] = []
        self.repeated = self.archived = 0

    async def run(self) -> None:
        while (
            min(self.count - 2_000, self.audits - 20, self.archived - 1_000, self.repeated - 300)
            < 0
        ):
            await asyncio.gather(*(self.transfer() for _ in range(50)))
            self.count += 50

    async def repeat(self) -> None:
        for request, id_ in self.dice.sample(self.requests, min(len(self.requests), 30)):
            receipt = await self.world.gate.engine.transfer(request, 30)
            assert isinstance(receipt, Receipt)
            assert receipt.duplicate
            assert receipt.transfer.id == id_
            self.repeated += 1

    async def transfer(self) -> None:
        request = self.request()
        receipt = await self.world.gate.engine.transfer(request, 30)
        assert isinstance(receipt, Receipt)
        assert not receipt.duplicate
        assert receipt.transfer.lane is None
        self.requests.append((request, receipt.transfer.id))

    async def archive_all(self) -> None:
        while True:
            done = await asyncio.to_thread(archive_all, self.world.database)
            self.archived += done.transfers
            await self.repeat()
            await asyncio.sleep(0.01)


def test_archiving_beside_load_keeps_repeats_and_audits_correct(
    play_audited: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidegate.engine.audit, "PAGE", 300)

    async def scene(world: World) -> None:
        load = Repeating(world)
        await load.endow()
        load_task = asyncio.ensure_future(load.run())
        archive_task = asyncio.ensure_future(load.archive_all())
        while not load_task.done():
            # `run_pass` and not `run`, which would hide a problem that a second pass does not find.
            found = await world.audit.run_pass(full=load.audits % 5 == 4)
            assert found.problems == []
            load.audits += 1
            assert not archive_task.done(), archive_task.exception()
        await load_task
        archive_task.cancel()
        await load.repeat()
        report = await world.audit.run()
        assert report.ok, report.violations
        assert report.assets["USDT"].gap == "0"
        [(count,)] = await world.gate.store.run("SELECT count(*) FROM every_transfer", {})
        assert world.audit.read["transfers"] == count
        assert count == len(load.requests) + 3 * len(load.owners)

    play_audited(scene)
