"""Every way through every flow, with what stands in the way, and the end that it must come to."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from tidegate.core import wire
from tidegate.core.flow import Edge, Flow
from tidegate.core.ports import Account
from tidegate.core.request import Request
from tidegate.core.transfer import Party
from tidegate.core.wire import Verb
from tidegate.simulation.auditor import CORE, LEDGER, Life
from tidegate.simulation.effects import plain, reachable
from tidegate.simulation.fate import Plan
from tidegate.simulation.people import ASSET, SPOT, Mood
from tidegate.simulation.scenario import BRIMFUL, Scenario, run
from tidegate.simulation.world import Terms, World, until
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, Status
from tidegate.systems.ledger.memory import ACCOUNTS

OWNER, AMOUNT = 1, 10
LOOK_S = 0.05
# Seldom: a fault while a worker looks for what is due and finds nothing teaches little.
SCAN_S = 5.0


@dataclass(frozen=True)
class Path:
    """One transfer. Whatever fails on its way, it must come to the same end.

    Accounts are shut before it begins, and opened when it has ended or was refused so often:
    so that what comes late finds them open, and what was refused for the time being goes on.
    """

    flow: str
    name: str
    roles: Mapping[str, str]  # The book that plays each role.
    end: str
    shut: tuple[str, ...] = ()
    flooded: bool = False  # The source fills up after its debit, and takes nothing back.
    refusals: int = 0  # «No»s that nobody accepts, after which people open what is shut.
    reversible: bool = True  # Whether the core is said to be able to undo a debit.

    @property
    def workers(self) -> int:
        """The other flows ask the same questions: what one tries with two, they try with one."""
        return 2 if self.flow == "internal_transfer" else 1

    def __str__(self) -> str:
        return f"{self.flow}: {self.name}"

    def prepare(self, scene: Scenario) -> None:
        """To be the only thing that happens in a scene."""
        parties = {role: party(book) for role, book in self.roles.items()}
        scene.wishes = [Request(OWNER, self.flow, parties, ASSET, AMOUNT, "cid")]
        scene.nodes = self.workers
        scene.world.terms = Terms(scan_s=SCAN_S, reversible=self.reversible)
        scene.mood = Mood(flooded=frozenset({OWNER} if self.flooded else ()))
        Keeper(self, scene)


@dataclass
class Keeper:
    """Who shuts the accounts and opens them again."""

    path: Path
    scene: Scenario
    world: World = field(init=False)
    stays: set[int] = field(default_factory=set)  # The versions that were refused, and stayed.
    opening: bool = False

    def __post_init__(self) -> None:
        self.world = self.scene.world
        self.begin, self.committed = self.scene._begin, self.world.auditor.committed
        self.scene._begin = self.begun  # type: ignore[method-assign]
        self.world.auditor.committed = self.watched  # type: ignore[method-assign]

    async def begun(self) -> None:
        await self.begin()
        await asyncio.gather(*(self.mark(book, Status.DISABLED) for book in self.path.shut))

    def watched(
        self, written: Mapping[tuple[str, Any], Any], leased: frozenset[UUID], by: object
    ) -> None:
        self.committed(written, leased, by)
        if not self.opening and any(map(self.enough, self.world.auditor.lives.values())):
            self.opening = True
            self.world.later(self.open())

    def enough(self, life: Life) -> bool:
        if life.refused:
            self.stays.add(life.version)
        return life.transfer.lane is None or len(self.stays) >= self.path.refusals > 0

    async def open(self) -> None:
        self.scene.mood.flooded = frozenset()
        await asyncio.gather(*(self.mark(book, Status.ACTIVE) for book in self.path.shut))
        while self.held() > BRIMFUL:
            excess = self.world.auditor.endowed[OWNER, ASSET]
            self.world.core_move(Verb.DEBIT, OWNER, ASSET, excess)
            await asyncio.sleep(LOOK_S)

    def held(self) -> int:
        return self.world.auditor.books[CORE, OWNER, SPOT, ASSET]

    async def mark(self, book: str, status: Status) -> None:
        """Until it is so: the core may be down just now, and a row be locked."""
        if book == SPOT:
            while not self.is_marked(status):
                self.world.core_status(OWNER, ASSET, wire.Status[status])
                await asyncio.sleep(LOOK_S)
            return
        key = Account(OWNER, book, ASSET)
        await until(partial(self.scene._free, key), LOOK_S)
        rows = self.world.tables.rows[ACCOUNTS]
        rows[key] = rows[key]._replace(status=status)

    def is_marked(self, status: Status) -> bool:
        core, spot = self.world.host.core, wire.account(wire.Book.SPOT, ASSET, OWNER)
        return core is not None and core.book.status(spot) == wire.Status[status]


def party(book: str) -> Party:
    return Party(CORE if book == SPOT else LEDGER, book, OWNER)


def between(flow: str, source: str, target: str) -> Callable[..., Path]:
    """The paths of a flow from one book to another."""
    roles = {"source": source, "target": target}
    if flow == "deposit":
        roles |= {"suspense": SUSPENSE}

    def path(name: str, end: str, **terms: Any) -> Path:
        return Path(flow, f"{source} to {target}, {name}", roles, end, **terms)

    return path


def internal(source: str, target: str) -> Iterator[Path]:
    path = between("internal_transfer", source, target)
    yield path("done", "COMMITTED")
    yield path("source refuses", "FAILED", shut=(source,))
    yield path("target refuses", "ROLLED_BACK", shut=(target,))
    if source == SPOT:  # The ledger refuses no refund.
        refused = {"shut": (target,), "refusals": 1}
        yield path("refund refused at first", "ROLLED_BACK", flooded=True, **refused)
        yield path("no refund, so target insisted on", "COMMITTED", reversible=False, **refused)


def deposits(target: str) -> Iterator[Path]:
    path = between("deposit", OUTSIDE, target)
    yield path("done", "COMPLETED")
    yield path("target refuses", "SUSPENDED", shut=(target,))
    shut = target, SUSPENSE
    yield path("suspense refuses at first", "SUSPENDED", shut=shut, refusals=1)


def withdrawals(source: str) -> Iterator[Path]:
    path = between("external_withdrawal", source, OUTSIDE)
    yield path("done", "COMPLETED")
    yield path("source refuses", "FAILED", shut=(source,))
    yield path("target refuses", "RETURNED", shut=(OUTSIDE,))
    if source == SPOT:
        refused = {"shut": (OUTSIDE,), "refusals": 1}
        yield path("refund refused at first", "RETURNED", flooded=True, **refused)
        yield path("no refund, so target insisted on", "COMPLETED", reversible=False, **refused)


PATHS = (
    *internal(FUNDING, SPOT),
    *internal(SPOT, FUNDING),
    *deposits(FUNDING),
    *deposits(SPOT),
    between("deposit", OUTSIDE, FUNDING)(
        "source refuses twice at first", "COMPLETED", shut=(OUTSIDE,), refusals=2
    ),
    *withdrawals(FUNDING),
    *withdrawals(SPOT),
)


def unwalked(flows: Iterable[Flow]) -> list[str]:
    """The answers that no path comes to although nothing fails. There must be none."""
    walked = set[tuple[str, Edge]]()
    for path in PATHS:
        walked.update(run(1, Plan(), path.prepare).edges)
    return [
        f"{flow.name}: {'>'.join(edge.path)} {edge.answer}"
        for flow in flows
        for edge in reachable(flow)
        if (flow.name, plain(edge)) not in walked
    ]
