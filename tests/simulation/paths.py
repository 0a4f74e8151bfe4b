"""Every way through every flow, with what stands in the way, and the end that it must come to."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from tidegate.core import wire
from tidegate.core.account import Account
from tidegate.core.flow import Edge, Flow
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.core.wire import CoreVerb
from tidegate.simulation.auditor import CORE, LEDGER, AuditedTransfer
from tidegate.simulation.effects import plain, reachable
from tidegate.simulation.faults import FaultPlan
from tidegate.simulation.limits_auditor import DailyAllowance
from tidegate.simulation.scenario import BRIMFUL, LIVENESS_S, Scenario, run
from tidegate.simulation.variants import SeedVariant
from tidegate.simulation.workload import ASSET, MEMBERS, SPOT, Behaviour
from tidegate.simulation.world import World, until
from tidegate.systems.guild import payment
from tidegate.systems.guild.memory import THROTTLES, MemberThrottle
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, LedgerStatus
from tidegate.systems.ledger.memory import ACCOUNTS

OWNER, AMOUNT = 1, 10
GUILD_FLOWS = ("pool_transfer", "member_transfer")
LOOK_S, COOLING_S = 0.05, 3.0
# Seldom: a fault while a worker looks for what is due and finds nothing teaches little.
SCAN_S = 5.0
END_S = 1.0  # So often somebody looks for the end: most of a plan's time nothing happens.
LIFE_S = 3.0  # Of what is to expire.


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
    amount: int = AMOUNT
    cools: bool = False  # The payer has to cool down, from the first approval on, for a while.
    inbox: bool = False  # A program asks for it, in a transaction of its own.
    daily: DailyAllowance | None = None  # What the owner may move in a day.
    rounds: int = 0  # Rounds of checks that begin anew, after which people open what is shut.

    @property
    def workers(self) -> int:
        """The other flows ask the same questions: what one tries with two, they try with one."""
        return 2 if self.flow == "internal_transfer" else 1

    def __str__(self) -> str:
        return f"{self.flow}: {self.name}"

    def prepare(self, scene: Scenario) -> None:
        """To be the only thing that happens in a scene."""
        parties = {role: party(book) for role, book in self.roles.items()}
        if self.flow in GUILD_FLOWS:
            needed = {"allowance", *(("checks",) if self.flow == "pool_transfer" else ())}
            parties |= {role: p for role, p in payment(OWNER, 1, 2).items() if role in needed}
        # What is to be made does not expire on its way, however often somebody dies over it.
        life_s = LIFE_S if self.end == "REJECTED" else LIVENESS_S
        lives_s = life_s if self.flow == "pool_transfer" else None
        wish = Request(OWNER, self.flow, parties, ASSET, self.amount, "cid", lives_s=lives_s)
        scene.wishes, scene.owners = [wish], (OWNER,)
        scene.nodes, scene.look_s = self.workers, END_S
        served = frozenset(party.system for party in parties.values())
        scene.world.terms = SeedVariant(
            scan_s=SCAN_S,
            reversible=self.reversible,
            systems=served,
            inbox=self.inbox,
            daily=self.daily,
        )
        scene.mood = Behaviour(flooded=frozenset({OWNER} if self.flooded else ()))
        if self.inbox:
            scene.clients.by_inbox = 1.0
        Keeper(self, scene)


@dataclass
class Keeper:
    """Who shuts the accounts and opens them again."""

    path: Path
    scene: Scenario
    world: World = field(init=False)
    stays: set[int] = field(default_factory=set)  # The versions that were refused, and stayed.
    again: set[int] = field(default_factory=set)  # The versions at which checks began anew.
    opening: bool = False
    cooled: bool = False

    def __post_init__(self) -> None:
        self.world = self.scene.world
        self.begin, self.committed = self.scene._begin, self.world.auditor.committed
        self.scene._begin = self.begun  # type: ignore[method-assign]
        self.world.auditor.committed = self.watched  # type: ignore[method-assign]

    async def begun(self) -> None:
        await self.begin()
        await asyncio.gather(*(self.mark(book, LedgerStatus.DISABLED) for book in self.path.shut))

    def watched(
        self, written: Mapping[tuple[str, Any], Any], leased: frozenset[UUID], by: object
    ) -> None:
        self.committed(written, leased, by)
        if self.path.cools and not self.cooled:
            self.cool_down()
        if not self.opening and any(map(self.enough, self.world.auditor.lives.values())):
            self.opening = True
            self.world.later(self.open())

    def cool_down(self) -> None:
        if any(map(approved, self.world.auditor.lives.values())):
            self.cooled = True
            until_us = round((self.world.loop.now_s + COOLING_S) * 1_000_000)
            self.world.tables.rows[THROTTLES][OWNER, 1] = MemberThrottle(until_us)

    def enough(self, life: AuditedTransfer) -> bool:
        if life.refused:
            self.stays.add(life.version)
        if life.transfer.state == "CHECKING" and life.version > 0:
            self.again.add(life.version)
        often = len(self.stays) >= self.path.refusals > 0
        return life.transfer.lane is None or often or len(self.again) >= self.path.rounds > 0

    async def open(self) -> None:
        self.scene.mood.flooded = frozenset()
        await asyncio.gather(*(self.mark(book, LedgerStatus.ACTIVE) for book in self.path.shut))
        while self.held() > BRIMFUL:
            excess = self.world.auditor.endowed[OWNER, ASSET]
            self.world.core_move(CoreVerb.DEBIT, OWNER, ASSET, excess)
            await asyncio.sleep(LOOK_S)

    def held(self) -> int:
        return self.world.auditor.books[CORE, OWNER, SPOT, ASSET]

    async def mark(self, book: str, status: LedgerStatus) -> None:
        """Until it is so: the core may be down just now, and a row be locked."""
        if book == SPOT:
            while not self.is_marked(status):
                self.world.core_status(OWNER, ASSET, wire.AccountStatus[status])
                await asyncio.sleep(LOOK_S)
            return
        key = Account(OWNER, book, ASSET)
        await until(partial(self.scene._free, key), LOOK_S)
        rows = self.world.tables.rows[ACCOUNTS]
        rows[key] = rows[key]._replace(status=status)

    def is_marked(self, status: LedgerStatus) -> bool:
        core, spot = self.world.host.core, wire.account(wire.CoreBook.SPOT, ASSET, OWNER)
        return core is not None and core.book.status(spot) == wire.AccountStatus[status]


def approved(life: AuditedTransfer) -> bool:
    return life.transfer.state == "APPROVED"


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


def payments(flow: str, no: str) -> Iterator[Path]:
    """Between members; and out of the core, which may refuse what the ledger would not."""
    member, other = MEMBERS
    path = between(flow, member, other)
    yield path("done", "COMPLETED")
    yield path("over the limit", no, amount=501)
    yield path("target refuses", no, shut=(other,))
    path = between(flow, SPOT, other)
    yield path("done", "COMPLETED")
    refused = {"shut": (other,), "refusals": 1}
    yield path("refund refused at first", no, flooded=True, **refused)
    yield path("no refund, so target insisted on", "COMPLETED", reversible=False, **refused)


PATHS = (
    *internal(FUNDING, SPOT),
    *internal(SPOT, FUNDING),
    between("internal_transfer", FUNDING, SPOT)(
        "done, and the daily limit is used up", "COMMITTED", daily=DailyAllowance(1, AMOUNT)
    ),
    between("internal_transfer", FUNDING, SPOT)("from the inbox", "COMMITTED", inbox=True),
    between("internal_transfer", SPOT, FUNDING)(
        "from the inbox, source refuses", "FAILED", inbox=True, shut=(SPOT,)
    ),
    *deposits(FUNDING),
    *deposits(SPOT),
    between("deposit", OUTSIDE, FUNDING)(
        "source refuses twice at first", "COMPLETED", shut=(OUTSIDE,), refusals=2
    ),
    *withdrawals(FUNDING),
    *withdrawals(SPOT),
    *payments("pool_transfer", "REJECTED"),
    *payments("member_transfer", "REFUSED"),
    between("pool_transfer", MEMBERS[0], MEMBERS[1])(
        "source refuses", "REJECTED", shut=MEMBERS[:1]
    ),
    between("pool_transfer", SPOT, MEMBERS[1])(
        "source refuses at first", "COMPLETED", shut=(SPOT,), rounds=1
    ),
    between("pool_transfer", SPOT, MEMBERS[1])("source refuses for good", "REJECTED", shut=(SPOT,)),
    between("pool_transfer", MEMBERS[0], MEMBERS[1])(
        "cooling down when it was approved", "COMPLETED", cools=True
    ),
    between("member_transfer", MEMBERS[0], MEMBERS[1])(
        "source refuses", "REFUSED", shut=MEMBERS[:1]
    ),
)


def unwalked(flows: Iterable[Flow]) -> list[str]:
    """The answers that no path comes to although nothing fails. There must be none."""
    walked = set[tuple[str, Edge]]()
    for path in PATHS:
        walked.update(run(1, FaultPlan(), path.prepare).edges)
    return [
        f"{flow.name}: {'>'.join(edge.path)} {edge.answer}"
        for flow in flows
        for edge in reachable(flow)
        if (flow.name, plain(edge)) not in walked
    ]
