"""An audited world: traffic of every kind, an unreliable core, and rows to corrupt."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

import psycopg
from msgspec.structs import replace

from tests.conftest import SCHEMA
from tests.crash.scenes import endow, parts, request_of
from tests.engine.watched_gate import open_gate
from tidegate.core.account import Account
from tidegate.core.answers import Alarm, Answer, Unknown, Unreachable
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.transfer import Question
from tidegate.engine.alerts import Alert
from tidegate.engine.audit import Audit
from tidegate.engine.gate import Gate
from tidegate.engine.pending_request import Receipt
from tidegate.flows import FLOWS
from tidegate.systems.trading import CoreTotals, TradingCoreClient
from tidegate.trading_core.disk import RealDisk

BASE = 101


class UnreliableCore(TradingCoreClient):
    """The client of the core. On demand it loses answers, is unreachable, or reads slowly."""

    loses_answers = False
    unreachable = False
    credits_instead: Party | None = None  # The party that the core credits instead of the target.
    slow_s = 0.0

    async def totals(self) -> CoreTotals:
        await asyncio.sleep(self.slow_s)
        totals = await super().totals()
        await asyncio.sleep(self.slow_s)
        return totals

    async def balances(self, accounts: Sequence[Account]) -> tuple[int, Sequence[int]]:
        await asyncio.sleep(self.slow_s)
        return await super().balances(accounts)

    async def query(self, keys: Sequence[tuple[UUID, int]]) -> Sequence[Answer | None]:
        await asyncio.sleep(self.slow_s)
        return await super().query(keys)

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        if self.unreachable:
            raise Unreachable("the core is unreachable")
        if self.credits_instead is not None:
            party = self.credits_instead
            questions = [replace(q, party=party) if q.verb is Verb.CREDIT else q for q in questions]
        answers: list[Answer] = list(await super().ask(questions))
        return [Unknown("answer lost")] * len(answers) if self.loses_answers else answers


@dataclass
class World:
    gate: Gate
    core: UnreliableCore
    audit: Audit
    database: str
    alerts: list[Alert] = field(default_factory=list)

    async def corrupt(self, statement: str, *values: object) -> None:
        """Change rows as a superuser, who may do what the engine's role may not."""
        # In a thread, because it may wait for a row that the engine has locked.
        await asyncio.to_thread(self._corrupt, statement, values)

    def _corrupt(self, statement: str, values: tuple[object, ...]) -> None:
        options = f"-c search_path={SCHEMA},tidegate"
        with psycopg.connect(self.database, autocommit=True, options=options) as connection:
            changed = connection.execute(statement, values)
            assert changed.rowcount > 0, "nothing was corrupted"

    async def expect_violation(self, text: str, *, full: bool = True) -> None:
        """The audit reports this violation, sends one alert, and halts."""
        report = await self.audit.run(full=full)
        assert not report.ok
        assert report.halted
        assert any(text in violation for violation in report.violations), report.violations
        assert [a.alarm for a in self.alerts if a.alarm is Alarm.HALT] == [Alarm.HALT]
        again = await self.audit.run(full=full)
        assert again.violations == report.violations
        assert len([a for a in self.alerts if a.alarm is Alarm.HALT]) == 1

    async def traffic(self) -> None:
        """Transfers of every kind: both directions, refused, rolled back from either side."""
        await endow(self.gate, BASE)
        for number, part in enumerate(parts(BASE)):
            receipt = await self.gate.engine.transfer(request_of(part, number), 20)
            assert isinstance(receipt, Receipt)
            assert receipt.transfer.state == part.state

    async def some_transfer(self, state: str) -> UUID:
        statement = "SELECT id FROM transfers WHERE state = %(state)s LIMIT 1"
        [(id_,)] = await self.gate.store.run(statement, {"state": state})
        assert isinstance(id_, UUID)
        return id_


@asynccontextmanager
async def world(database: str, directory: Path) -> AsyncIterator[World]:
    alerts: list[Alert] = []
    async with open_gate(database, RealDisk(directory), UnreliableCore, alerts.append, 0.2) as gate:
        assert isinstance(gate.core, UnreliableCore)
        audit = Audit(gate.store, gate.core, FLOWS, alerts.append)
        yield World(gate, gate.core, audit, database, alerts)
        await audit.close()


Scene: TypeAlias = Callable[[World], Awaitable[None]]
Play: TypeAlias = Callable[[Scene], None]


def player(database: str, directory: Path) -> Play:
    async def run(scene: Scene) -> None:
        async with world(database, directory) as audited:
            await scene(audited)

    return lambda scene: asyncio.run(run(scene))
