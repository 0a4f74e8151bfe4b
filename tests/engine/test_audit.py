"""The audit, on real PostgreSQL and the core's own code: it finds what is wrong and only that."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest

import tidegate.engine.audit
from tests.conftest import SCHEMA
from tests.crash.scenes import ASSET, UNIT, endow, parts, request_of
from tidegate.core.answers import Alarm, Answer, Unknown, Unreachable
from tidegate.core.flow import Verb
from tidegate.core.ports import Account
from tidegate.core.request import Request
from tidegate.core.transfer import Party, Question
from tidegate.core.wire import Mark
from tidegate.core.wire import Status as CoreStatus
from tidegate.engine.alerts import Alert
from tidegate.engine.audit import Audit
from tidegate.engine.births import Receipt
from tidegate.engine.engine import Engine, Parts
from tidegate.engine.gate import CORE, LEDGER, Crossing, Gate
from tidegate.flows import FLOWS
from tidegate.store.postgres import PostgresStore
from tidegate.systems.ledger import FUNDING, Ledger, Status
from tidegate.systems.trading import Caller, Totals, Trading, recall
from tidegate.trading_core.core import Core
from tidegate.trading_core.disk import RealDisk
from tidegate.trading_core.pipe import connect_to

pytestmark = pytest.mark.slow

BASE = 101
_cids = itertools.count()


class Deaf(Trading):
    """The core's client; when told so, what the core did is not heard, or reading takes long."""

    deaf = False
    mute = False  # Nothing reaches the core.
    slow_s = 0.0

    async def totals(self) -> Totals:
        await asyncio.sleep(self.slow_s)
        found = await super().totals()
        await asyncio.sleep(self.slow_s)
        return found

    async def balances(self, accounts: Sequence[Account]) -> tuple[int, Sequence[int]]:
        await asyncio.sleep(self.slow_s)
        return await super().balances(accounts)

    async def query(self, keys: Sequence[tuple[UUID, int]]) -> Sequence[Answer | None]:
        await asyncio.sleep(self.slow_s)
        return await super().query(keys)

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        if self.mute:
            raise Unreachable("nothing reaches the core")
        answers: list[Answer] = list(await super().ask(questions))
        return [Unknown("not heard")] * len(answers) if self.deaf else answers


@dataclass
class World:
    gate: Gate
    core: Deaf
    audit: Audit
    database: str
    alerts: list[Alert] = field(default_factory=list)

    async def corrupt(self, statement: str, *values: object) -> None:
        """As a superuser can, past every rule of the engine's own role."""
        # In a thread: it may have to wait for a row that the engine holds.
        await asyncio.to_thread(self._corrupt, statement, values)

    def _corrupt(self, statement: str, values: tuple[object, ...]) -> None:
        options = f"-c search_path={SCHEMA},tidegate"
        with psycopg.connect(self.database, autocommit=True, options=options) as connection:
            changed = connection.execute(statement, values)
            assert changed.rowcount > 0, "nothing was corrupted"

    async def found(self, said: str, *, full: bool = True) -> None:
        """The audit finds it, tells somebody once, and halts."""
        report = await self.audit.run(full=full)
        assert not report.ok
        assert report.halted
        assert any(said in violation for violation in report.violations), report.violations
        assert [a.alarm for a in self.alerts if a.alarm is Alarm.HALT] == [Alarm.HALT]
        again = await self.audit.run(full=full)
        assert again.violations == report.violations
        assert len([a for a in self.alerts if a.alarm is Alarm.HALT]) == 1

    async def traffic(self) -> None:
        """Every way a transfer can go: both ways, refused, rolled back from either side."""
        await endow(self.gate, BASE)
        for number, part in enumerate(parts(BASE)):
            said = await self.gate.engine.transfer(request_of(part, number), 20)
            assert isinstance(said, Receipt)
            assert said.transfer.state == part.state

    async def some_transfer(self, state: str) -> UUID:
        statement = "SELECT id FROM transfers WHERE state = %(state)s LIMIT 1"
        [(id_,)] = await self.gate.store.run(statement, {"state": state})
        assert isinstance(id_, UUID)
        return id_


@asynccontextmanager
async def world(database: str, directory: Path) -> AsyncIterator[World]:
    core = await Core.open(RealDisk(directory), bytes(range(16)))
    running = asyncio.ensure_future(core.run())
    alerts: list[Alert] = []
    async with PostgresStore(database, SCHEMA) as store:

        async def marks() -> Mark | None:
            async with store.transaction() as tx:
                return await recall(tx, CORE)

        client = Deaf(CORE, connect_to(core), Caller(SCHEMA, "test"), marks)
        engine_parts: Parts[Any] = Parts(
            store=store,
            flows=FLOWS,
            outside=[client],
            local=[Ledger(LEDGER)],
            clock=time.monotonic,
            dice=random.Random(5),
            alert=alerts.append,
            scan_s=0.2,
        )
        async with Engine(engine_parts) as engine:
            gate = Gate(engine, store, Ledger(LEDGER), client, dict(await store.assets()))
            audit = Audit(store, client, FLOWS, alerts.append)
            yield World(gate, client, audit, database, alerts)
            await audit.close()
        await client.close()
    core.stop()
    await running


Play = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture
def play(database: str, tmp_path: Path) -> Play:
    async def whole(scene: Callable[[World], Awaitable[None]]) -> None:
        async with world(database, tmp_path) as made:
            await scene(made)

    return lambda scene: asyncio.run(whole(scene))


def test_after_mixed_traffic_all_is_well_and_the_report_is_as_printed(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        for full in (True, False):
            report = await world.audit.run(full=full)
            assert msgspec.json.decode(msgspec.json.encode(report)) == {
                "ok": True,
                "halted": False,
                "assets": {
                    "USDT": {
                        "funding": "2940.000000",
                        "spot": "1560.000000",
                        "held": "0.000000",
                        "in_flight": "0.000000",
                        "external": "4500.000000",
                        "gap": "0",
                    }
                },
                "violations": [],
            }

    play(scene)


def test_suspense_is_shown_when_there_is_any(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        await world.gate.deposit(Crossing("FUNDING", "USDT", "5", "into-disabled"), BASE + 2)
        report = await world.audit.run()
        assert report.ok
        assert report.assets["USDT"].suspense == "5.000000"
        assert report.assets["USDT"].gap == "0"

    play(scene)


@pytest.mark.parametrize("full", [True, False])
def test_a_corrupted_balance_row_is_found_and_halts(play: Play, full: bool) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        assert (await world.audit.run(full=full)).ok
        await world.corrupt(
            "UPDATE ledger_accounts SET available = available + 1 WHERE owner = %s AND book = %s",
            BASE,
            FUNDING,
        )
        await world.found("off by 1 smallest units", full=full)
        refused = await world.gate.engine.transfer(request_of(parts(BASE)[0], 99), 1)
        assert not isinstance(refused, Receipt)

    play(scene)


def test_two_balances_whose_errors_cancel_are_found(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        for owner, change in ((BASE, 1), (BASE + 1, -1)):
            await world.corrupt(
                "UPDATE ledger_accounts SET available = available + %s"
                " WHERE owner = %s AND book = 'FUNDING'",
                change,
                owner,
            )
        await world.found(f"owner {BASE}, asset {ASSET}: the books are off by 1")
        report = await world.audit.run()
        assert f"account FUNDING of {BASE}, asset {ASSET}: it does not" in "".join(
            report.violations
        )
        assert report.assets["USDT"].gap == "0"

    play(scene)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE ledger_operations SET balance_after = 7 WHERE {id} AND version = 0", "follow"),
        ("UPDATE ledger_operations SET delta = delta - 1 WHERE {id} AND version = 0", "follow"),
        ("UPDATE ledger_operations SET amount = 1 WHERE {id}", "is about something else"),
        (
            "UPDATE ledger_operations SET result = 'rejected', reason = 'X', delta = 0 WHERE {id}",
            "ledger holds rejected under 0, not done",
        ),
        ("DELETE FROM ledger_operations WHERE {id}", "ledger holds nothing under 0, not done"),
        ("UPDATE history SET actor = 'me' WHERE {id} AND version = 1", "is not what was hashed"),
        ("UPDATE history SET at = at + interval '1 us' WHERE {id}", "is not what was hashed"),
        ("DELETE FROM history WHERE {id} AND version = 0", "its history has 1 answers"),
        ("DELETE FROM history WHERE {id}", "its history has 0 answers"),
        ("UPDATE transfers SET head_hash = 'x' WHERE id = %s", "its head is not the hash"),
        ("UPDATE transfers SET state = 'ROLLED_BACK' WHERE id = %s", "leads to COMMITTED"),
        ("UPDATE transfers SET state = 'ROLLED_BACK' WHERE id = %s", "its money is at target"),
        ("UPDATE transfers SET version = version + 1 WHERE id = %s", "its version is 3"),
        ("UPDATE transfers SET flow = 'none' WHERE id = %s", "there is no flow none here"),
        ("UPDATE transfers SET parties = parties - 'target' WHERE id = %s", "nobody plays target"),
        ("DELETE FROM transfers WHERE id = %s", "does not exist"),
        ("DELETE FROM cids WHERE {id}", "its key does not lead to it"),
    ],
)
@pytest.mark.slow
def test_a_corrupted_row_is_found_and_halts(play: Play, statement: str, said: str) -> None:
    async def scene(world: World) -> None:
        await world.gate.deposit(Crossing("FUNDING", "USDT", "50", "d"), BASE)
        party, target = Party(LEDGER, FUNDING, BASE), Party(CORE, "SPOT", BASE)
        wanted = {"source": party, "target": target}
        done = await world.gate.engine.transfer(
            Request(BASE, "internal_transfer", wanted, ASSET, 5), 20
        )
        assert isinstance(done, Receipt)
        assert done.transfer.state == "COMMITTED"
        await world.gate.store.halt("so that nobody picks it up", "test")
        await world.corrupt(statement.replace("{id}", "transfer_id = %s"), done.transfer.id)
        await world.found(said)

    play(scene)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE transfers SET state = 'FAILED' WHERE id = %s", "leads to COMMITTED"),
        ("UPDATE ledger_operations SET balance_after = 7 WHERE transfer_id = %s", "follow"),
    ],
)
def test_what_is_new_and_corrupted_is_found_by_the_next_incremental_audit(
    play: Play, statement: str, said: str
) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        assert (await world.audit.run(full=False)).ok
        done = await world.gate.engine.transfer(request_of(parts(BASE)[0], 70), 20)
        assert isinstance(done, Receipt)
        await world.corrupt(statement, done.transfer.id)
        await world.found(said, full=False)

    play(scene)


@pytest.mark.parametrize("full", [True, False])
def test_a_credit_in_the_core_that_no_transfer_asked_for_is_found(play: Play, full: bool) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        assert (await world.audit.run(full=full)).ok
        spot = Party(CORE, "SPOT", BASE)
        planted = Question(UUID(int=5 << 90), 0, Verb.CREDIT, spot, ASSET, 3)
        await world.core.ask([planted])
        await world.found("is of no transfer that we know", full=full)
        report = await world.audit.run(full=full)
        assert report.assets["USDT"].gap == "0.000003"

    play(scene)


def test_planted_operations_that_cancel_are_found_by_the_next_audit(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        assert (await world.audit.run(full=False)).ok
        spot = Party(CORE, "SPOT", BASE)
        for number, verb in ((1, Verb.CREDIT), (2, Verb.DEBIT)):
            await world.core.ask([Question(UUID(int=number << 90), 0, verb, spot, ASSET, 3)])
        await world.found("is of no transfer that we know", full=False)

    play(scene)


def test_an_operation_under_a_finished_transfers_next_key_is_found(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        id_ = await world.some_transfer("COMMITTED")
        [row] = await world.gate.store.find([id_])
        spot = Party(CORE, "SPOT", BASE)
        planted = Question(id_, row.version, Verb.CREDIT, spot, ASSET, row.amount)
        await world.core.ask([planted])
        await world.found("moved money under 2, and no answer says so")

    play(scene)


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_leg_that_was_done_and_not_heard_is_no_violation(play: Play, way: str) -> None:
    async def scene(world: World) -> None:
        await endow(world.gate, BASE)
        assert (await world.audit.run(full=False)).ok
        world.core.deaf = True
        part = next(p for p in parts(BASE) if p.way == way)
        said = await world.gate.engine.transfer(request_of(part, 1), 0.3)
        assert isinstance(said, Receipt)
        assert said.transfer.lane == CORE
        for full in (True, False):
            report = await world.audit.run(full=full)
            assert report.ok, report.violations
            # The core has it already, or has given it already: on the way in it has arrived.
            in_flight = {"in": "0.000000", "out": f"{part.amount}.000000"}[way]
            assert report.assets["USDT"].in_flight == in_flight
            assert report.assets["USDT"].gap == "0"
        world.core.deaf = False
        assert (await world.gate.engine.wait(said.transfer, 20)).state == "COMMITTED"
        report = await world.audit.run(full=False)
        assert report.assets["USDT"].in_flight == "0.000000"
        assert world.audit.read["transfers"] == 1

    play(scene)


def test_money_on_its_way_is_counted(play: Play) -> None:
    async def scene(world: World) -> None:
        await endow(world.gate, BASE)
        world.core.mute = True
        said = await world.gate.engine.transfer(request_of(parts(BASE)[0], 1), 0.1)
        assert isinstance(said, Receipt)
        for full in (True, False):
            report = await world.audit.run(full=full)
            assert report.ok, report.violations
            assert report.assets["USDT"].in_flight == "100.000000"
            assert report.assets["USDT"].gap == "0"

    play(scene)


async def _nowhere() -> Any:
    raise ConnectionRefusedError("nobody is there")


def test_an_incremental_audit_reads_only_what_is_new(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        await world.audit.run(full=False)
        await world.audit.run(full=False)
        assert world.audit.read["transfers"] == 0
        assert world.audit.read["keys"] == 0
        said = await world.gate.engine.transfer(request_of(parts(BASE)[0], 50), 20)
        assert isinstance(said, Receipt)
        await world.audit.run(full=False)
        assert dict(world.audit.read) == {
            "transfers": 1,
            "history": 2,
            "operations": 1,
            "keys": 2,
            "owners": 1,
        }
        await world.audit.run()
        assert world.audit.read["transfers"] == 6 + 6 + 1

    play(scene)


def test_a_stream_of_operations_that_was_lost_is_taken_up_again(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        assert (await world.audit.run(full=False)).ok
        ear = world.audit._ear
        assert ear is not None
        assert ear._stream is not None
        await ear._stream.aclose()
        said = await world.gate.engine.transfer(request_of(parts(BASE)[0], 60), 20)
        assert isinstance(said, Receipt)
        for _ in range(2):
            report = await world.audit.run(full=False)
            assert report.ok, report.violations

    play(scene)


def test_a_store_without_a_core_is_audited_by_the_answers_it_was_given(play: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        alone = Audit(world.gate.store, None, FLOWS, world.alerts.append)
        report = await alone.run()
        assert report.ok, report.violations
        assert report.assets["USDT"].other == "1560.000000"

    play(scene)


class Load:
    """Owners who move money about, some of whom may not, as long as somebody looks."""

    owners = range(1, 21)

    def __init__(self, world: World) -> None:
        self.world, self.dice = world, random.Random(3)
        self.count, self.looks = 0, 0

    async def endow(self) -> None:
        gate = self.world.gate
        for owner in self.owners:
            for account in ("FUNDING", "SPOT", "FUTURE"):
                await gate.deposit(Crossing(account, "USDT", "100", f"d{account}"), owner)
        await self.world.core.set_status(1, "SPOT", ASSET, CoreStatus.DISABLED)
        assert await gate.ledger.set_status(gate.store, Account(2, FUNDING, ASSET), Status.DISABLED)

    async def one(self) -> None:
        owner = self.dice.choice(self.owners)
        books = (Party(LEDGER, FUNDING, owner), Party(CORE, "SPOT", owner))
        pair = self.dice.sample((*books, Party(CORE, "FUTURE", owner)), 2)
        amount = self.dice.choice((1, UNIT, 1_000 * UNIT))
        wanted = dict(zip(("source", "target"), pair, strict=True))
        request = Request(owner, "internal_transfer", wanted, ASSET, amount, f"l{next(_cids)}")
        said = await self.world.gate.engine.transfer(request, 30)
        assert isinstance(said, Receipt)
        assert said.transfer.lane is None

    async def run(self) -> None:
        while self.count < 2_000 or self.looks < 20:
            await asyncio.gather(*(self.one() for _ in range(50)))
            self.count += 50


@pytest.mark.slow
@pytest.mark.parametrize("slow_s", [0.0, 0.01])
def test_beside_load_no_audit_sees_anything_wrong(
    play: Play, slow_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many pages, between which the world goes on.
    monkeypatch.setattr(tidegate.engine.audit, "MAX_OWNERS", 3)
    monkeypatch.setattr(tidegate.engine.audit, "PAGE", 300)

    async def scene(world: World) -> None:
        load = Load(world)
        await load.endow()
        world.core.slow_s = slow_s  # So that much happens between any two things that it reads.
        loading = asyncio.ensure_future(load.run())
        while not loading.done():
            # `look` and not `run`, which would look again before it says anything.
            look = await world.audit.look(full=load.looks % 5 == 4)
            assert look.problems == []
            load.looks += 1
            await asyncio.sleep(0.02)
        await loading
        report = await world.audit.run()
        assert report.ok, report.violations
        assert not report.halted
        assert report.assets["USDT"].gap == "0"
        assert report.assets["USDT"].in_flight == "0.000000"
        assert world.audit.read["transfers"] >= 2_000
        states = await world.gate.store.run("SELECT DISTINCT state FROM transfers", {})
        assert {row[0] for row in states} >= {"COMMITTED", "FAILED", "ROLLED_BACK"}

    play(scene)


def test_it_goes_on_when_the_core_cannot_be_reached_and_says_so_once(play: Play) -> None:
    async def scene(world: World) -> None:
        world.core._connect = _nowhere
        await world.core.close()
        looping = asyncio.ensure_future(world.audit.audit_forever(0.001))
        for _ in range(1_000):
            if any("could not be made" in a.cause for a in world.alerts):
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert not looping.done()
        looping.cancel()
        assert len([a for a in world.alerts if "could not be made" in a.cause]) == 1
        assert not await world.gate.store.halted()

    play(scene)
