"""A world to simulate in: a database, a venue, processes that die, and a network that lies."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tidegate.core.answers import Answer, Unknown, Unreachable
from tidegate.core.flow import Flow
from tidegate.core.ports import Account, StoreUnavailable
from tidegate.core.transfer import Question, Transfer
from tidegate.engine.alerts import Alert
from tidegate.engine.engine import Engine, Parts
from tidegate.store.memory import MemoryStore, Tables, Twin
from tidegate.systems.ledger import MemoryLedger, Status
from tidegate.systems.ledger.judge import Balance, Judgement, Operation

CALL_TIMEOUT_S = 2.0


@dataclass
class Faults:
    """Probabilities of what goes wrong, thrown anew for each seed."""

    request_lost: float = 0.0
    reply_lost: float = 0.0
    slow: float = 0.0
    twice_later: float = 0.0
    raises: float = 0.0
    raises_after: float = 0.0
    in_doubt: float = 0.0
    store_refuses: float = 0.0
    commit_reply_lost: float = 0.0
    commit_late: float = 0.0
    kill: float = 0.0

    @classmethod
    def thrown(cls, dice: random.Random) -> "Faults":
        """Each fault is off in half of the seeds, so that rare ones are not drowned by others."""
        names = cls.__dataclass_fields__
        return cls(**{name: dice.choice((0.0, dice.random() * 0.25)) for name in names})


class Venue:
    """An outside system with the contract of one: decides each key once and for ever."""

    def __init__(self) -> None:
        self.accounts: dict[Account, Balance] = {}
        self.operations: dict[UUID, list[Operation]] = defaultdict(list)
        self.effects: list[tuple[UUID, str, int]] = []

    def execute(self, questions: Sequence[Question]) -> list[Answer]:
        for question in questions:
            account = Account(question.party.owner, question.party.book, question.asset_id)
            self.accounts.setdefault(account, Balance(0, 0, Status.ACTIVE))
        ids = dict.fromkeys(q.transfer_id for q in questions)
        known = [operation for id_ in ids for operation in self.operations[id_]]
        judgement = Judgement(self.accounts, known)
        answers = [judgement.judge(question) for question in questions]
        for operation in judgement.written:
            self.operations[operation.transfer_id].append(operation)
            if operation.moved:
                effect = (operation.transfer_id, operation.verb, operation.delta)
                self.effects.append(effect)
        return answers


class Node:
    """One process of ours. Once dead it does nothing more, and runs none of its `finally`."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.open: dict[Twin, None] = {}  # In the order of their beginning.
        self.engine: Engine[Twin] = Engine(
            Parts(
                store=NodeStore(self),
                flows=world.flows,
                outside=[Client(self)],
                local=[MemoryLedger()],
                clock=world.clock,
                dice=random.Random(world.dice.random()),
                alert=world.alerts.append,
                scan_s=0.5,
            )
        )

    async def start(self) -> None:
        await self.engine.__aenter__()

    def kill(self) -> None:
        """The server notices: what was not committed is rolled back, or is just landing."""
        self.alive = False
        for tx in list(self.open):
            tx.end()

    async def gate(self) -> None:
        """Every way out of a process leads through here: time passes, and the dead stop."""
        await asyncio.sleep(self.world.dice.random() * 0.01)
        if self.alive and self.world.throw("kill", share=0.1):
            self.world.die(self)
        if not self.alive:
            await self.world.grave()


class NodeStore(MemoryStore):
    """The shared tables, reached by one process over a connection that fails."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.world.clock, node.world.tables)
        self.node = node

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Twin]:
        await self._statement()
        tx = Twin(self.tables, self._now_us(), self.lock_s)
        self.node.open[tx] = None
        late = False
        try:
            yield tx
            await self.node.gate()
            late = self.node.world.throw("commit_late")
            if late:
                self.node.open.pop(tx, None)
                self.node.world.later(self._land(tx))
                raise StoreUnavailable("the connection was lost during COMMIT")
            if self.node.world.throw("store_refuses"):
                raise StoreUnavailable("the connection was lost before COMMIT")
            tx.commit()
            if self.node.world.throw("commit_reply_lost"):
                raise StoreUnavailable("the reply to COMMIT was lost")
            self.node.open.pop(tx, None)
            tx.end()
            await self.node.gate()
        finally:
            if not late:
                self.node.open.pop(tx, None)
                tx.end()

    async def _land(self, tx: Twin) -> None:
        """The backend of a client that has gone: it still holds its locks, and then commits."""
        await asyncio.sleep(self.node.world.dice.random() * 4)
        tx.commit()
        tx.end()

    async def _statement(self) -> None:
        await self.node.gate()
        if self.node.world.throw("store_refuses"):
            raise StoreUnavailable("the server closed the connection")

    async def claim(self, lane: str, limit: int) -> Sequence[Transfer]:
        await self._statement()
        claimed = await super().claim(lane, limit)
        await self.node.gate()
        return claimed

    async def look(self, keys: Sequence[tuple[int, str]]) -> tuple[int, bool, Sequence[Any]]:
        await self._statement()
        return await super().look(keys)

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        await self._statement()
        return await super().find(ids)

    async def release(self, transfers: Sequence[Transfer]) -> None:
        await self._statement()
        await super().release(transfers)


class Client:
    """A process's way to the venue: messages are lost, late, or delivered twice."""

    name = "venue"
    reversible = True

    def __init__(self, node: Node) -> None:
        self.node = node

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        world, node = self.node.world, self.node
        await node.gate()
        if world.throw("raises"):
            raise ValueError("the answer made no sense")
        if world.throw("twice_later"):
            world.later(self._again(questions))
        if world.throw("request_lost"):
            await asyncio.sleep(CALL_TIMEOUT_S)
            raise Unreachable("no answer in time")
        if world.throw("slow"):
            world.later(self._again(questions))
            await asyncio.sleep(CALL_TIMEOUT_S)
            raise Unreachable("no answer in time")
        answers = world.venue.execute(questions)
        await node.gate()
        if world.throw("raises_after"):
            raise ValueError("the answer could not be read")
        if world.throw("reply_lost"):
            await asyncio.sleep(CALL_TIMEOUT_S)
            raise Unreachable("no answer in time")
        return [Unknown("no word of this one") if world.throw("in_doubt") else a for a in answers]

    async def _again(self, questions: Sequence[Question]) -> None:
        """The network delivers it once more, up to 20 s later: perhaps after the end."""
        await asyncio.sleep(self.node.world.dice.random() * 20)
        self.node.world.venue.execute(questions)


@dataclass
class World:
    """Everything that outlives a process, and the dice of one seed."""

    dice: random.Random
    flows: dict[str, Flow]
    faults: Faults
    tables: Tables = field(default_factory=Tables)
    venue: Venue = field(default_factory=Venue)
    alerts: list[Alert] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    background: set[asyncio.Task[None]] = field(default_factory=set)
    graves: list[asyncio.Future[None]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def clock(self) -> float:
        return asyncio.get_running_loop().time()

    def throw(self, fault: str, share: float = 1.0) -> bool:
        chance: float = getattr(self.faults, fault)
        happens = self.dice.random() < chance * share
        self.counts[fault] += happens
        return happens

    def later(self, landing: Any) -> None:
        task = asyncio.ensure_future(landing)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    async def grave(self) -> None:
        """Waits for ever, and is kept, because a collected coroutine would run its `finally`."""
        rest: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.graves.append(rest)
        await rest

    def die(self, node: Node) -> None:
        node.kill()
        self.later(self.raise_node(f"{node.name}+"))

    async def raise_node(self, name: str) -> None:
        await asyncio.sleep(self.dice.random() * 3)
        node = Node(self, name)
        await node.start()
        self.nodes.append(node)

    def living(self) -> list[Node]:
        return [node for node in self.nodes if node.alive]


async def settled(world: World, owners: Iterable[int]) -> None:
    """Heal everything and wait until nothing is left to do: liveness within a bound."""
    world.faults = Faults()
    until_s = world.clock() + 120
    while world.clock() < until_s:
        await asyncio.sleep(1)
        rows = world.tables.rows["transfers"].values()
        if not world.background and all(row.transfer.lane is None for row in rows):
            return
    open_ = [row.transfer for row in world.tables.rows["transfers"].values() if row.transfer.lane]
    raise AssertionError(f"not ended after 120 s without faults: {open_[:3]}, {sorted(owners)}")
