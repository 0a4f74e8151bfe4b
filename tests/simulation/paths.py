"""Every path through every flow, with the refusals on it and the end state that it must reach."""

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
from tidegate.simulation.audited_transfer import AuditedTransfer
from tidegate.simulation.auditor import CORE, LEDGER
from tidegate.simulation.effects import plain, reachable
from tidegate.simulation.faults import FaultPlan
from tidegate.simulation.limits_auditor import DailyAllowance
from tidegate.simulation.scenario import LIVENESS_S, NEARLY_FULL, Scenario, run
from tidegate.simulation.variants import SeedVariant
from tidegate.simulation.workload import ASSET, MEMBERS, SPOT, Behaviour
from tidegate.simulation.world import World, until
from tidegate.systems.guild import payment
from tidegate.systems.guild.memory import THROTTLES, MemberThrottle
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, LedgerStatus
from tidegate.systems.ledger.memory import ACCOUNTS

OWNER, AMOUNT = 1, 10
GUILD_FLOWS = ("pool_transfer", "member_transfer")
POLL_S, COOLDOWN_S = 0.05, 3.0
# Rarely, because a fault in a scan that finds nothing tests little.
SCAN_S = 5.0
END_POLL_S = 1.0  # A long interval, because nothing happens during most of a plan.
LIFE_S = 3.0  # Of a transfer that must expire.


@dataclass(frozen=True)
class Path:
    """One transfer and the end state that it must reach, whatever fails.

    Some accounts are disabled before it starts. They are made active again when it has ended, so
    that late operations are not refused, or after a number of refusals, so that it can continue.
    """

    flow: str
    name: str
    roles: Mapping[str, str]  # The book of each role.
    end: str
    disabled: tuple[str, ...] = ()
    fills_up: bool = False  # The source is filled after its debit, so that no refund fits.
    refusals: int = 0  # The accounts are made active after so many refusals that change no state.
    reversible: bool = True  # Whether the core's client declares that it can undo a debit.
    amount: int = AMOUNT
    cools: bool = False  # The payer has a cooldown that starts with the first approval.
    inbox: bool = False  # A program requests it by the inbox.
    daily: DailyAllowance | None = None  # The owner's daily limits.
    rounds: int = 0  # The accounts are made active after so many new rounds of checks.

    @property
    def workers(self) -> int:
        """Only one flow needs plans with two workers, as the others ask the same questions."""
        return 2 if self.flow == "internal_transfer" else 1

    def __str__(self) -> str:
        return f"{self.flow}: {self.name}"

    def prepare(self, scene: Scenario) -> None:
        """Make this transfer the only request of a scenario."""
        parties = {role: party(book) for role, book in self.roles.items()}
        if self.flow in GUILD_FLOWS:
            needed = {"allowance", *(("checks",) if self.flow == "pool_transfer" else ())}
            parties |= {role: p for role, p in payment(OWNER, 1, 2).items() if role in needed}
        # A transfer that must be paid does not expire, however often workers die.
        life_s = LIFE_S if self.end == "REJECTED" else LIVENESS_S
        lives_s = life_s if self.flow == "pool_transfer" else None
        request = Request(OWNER, self.flow, parties, ASSET, self.amount, "cid", lives_s=lives_s)
        scene.requests, scene.owners = [request], (OWNER,)
        scene.workers, scene.poll_s = self.workers, END_POLL_S
        served = frozenset(party.system for party in parties.values())
        scene.world.variant = SeedVariant(
            scan_s=SCAN_S,
            reversible=self.reversible,
            systems=served,
            inbox=self.inbox,
            daily=self.daily,
        )
        scene.behaviour = Behaviour(filled_owners=frozenset({OWNER} if self.fills_up else ()))
        if self.inbox:
            scene.clients.inbox_share = 1.0
        AccountSwitch(self, scene)


@dataclass
class AccountSwitch:
    """Disables the accounts of a path and makes them active again."""

    path: Path
    scene: Scenario
    world: World = field(init=False)
    refused_versions: set[int] = field(default_factory=set)  # Refused without a change of state.
    check_versions: set[int] = field(default_factory=set)  # Where a new round of checks began.
    activating: bool = False
    cooldown_set: bool = False

    def __post_init__(self) -> None:
        self.world = self.scene.world
        self.begin, self.committed = self.scene._begin, self.world.auditor.committed
        self.scene._begin = self.begin_disabled  # type: ignore[method-assign]
        self.world.auditor.committed = self.on_commit  # type: ignore[method-assign]

    async def begin_disabled(self) -> None:
        await self.begin()
        await self.set_statuses(LedgerStatus.DISABLED)

    def on_commit(
        self, written: Mapping[tuple[str, Any], Any], leased: frozenset[UUID], by: object
    ) -> None:
        self.committed(written, leased, by)
        if self.path.cools and not self.cooldown_set:
            self.set_cooldown()

        transfers = self.world.auditor.transfers.values()
        if not self.activating and any(map(self.is_due, transfers)):
            self.activating = True
            self.world.in_background(self.activate())

    def set_cooldown(self) -> None:
        if any(map(is_approved, self.world.auditor.transfers.values())):
            self.cooldown_set = True
            until_us = round((self.world.loop.now_s + COOLDOWN_S) * 1_000_000)
            self.world.tables.rows[THROTTLES][OWNER, 1] = MemberThrottle(until_us)

    def is_due(self, audited: AuditedTransfer) -> bool:
        """Whether it is time to make the accounts active again."""
        if audited.refused:
            self.refused_versions.add(audited.version)
        if audited.transfer.state == "CHECKING" and audited.version > 0:
            self.check_versions.add(audited.version)
        ended = audited.transfer.lane is None
        refused = len(self.refused_versions) >= self.path.refusals > 0
        return ended or refused or len(self.check_versions) >= self.path.rounds > 0

    async def activate(self) -> None:
        self.scene.behaviour.filled_owners = frozenset()
        await self.set_statuses(LedgerStatus.ACTIVE)
        while self.balance() > NEARLY_FULL:
            excess = self.world.auditor.granted[OWNER, ASSET]
            self.world.core_move(CoreVerb.DEBIT, OWNER, ASSET, excess)
            await asyncio.sleep(POLL_S)

    def balance(self) -> int:
        return self.world.auditor.books[CORE, OWNER, SPOT, ASSET]

    async def set_statuses(self, status: LedgerStatus) -> None:
        await asyncio.gather(*(self.set_status(book, status) for book in self.path.disabled))

    async def set_status(self, book: str, status: LedgerStatus) -> None:
        """Retry until it is set: the core may be down, or the row locked."""
        if book == SPOT:
            while not self.core_has(status):
                self.world.core_status(OWNER, ASSET, wire.AccountStatus[status])
                await asyncio.sleep(POLL_S)
            return
        key = Account(OWNER, book, ASSET)
        await until(partial(self.scene._is_unlocked, key), POLL_S)
        rows = self.world.tables.rows[ACCOUNTS]
        rows[key] = rows[key]._replace(status=status)

    def core_has(self, status: LedgerStatus) -> bool:
        core, spot = self.world.host.core, wire.account(wire.CoreBook.SPOT, ASSET, OWNER)
        return core is not None and core.book.status(spot) == wire.AccountStatus[status]


def is_approved(audited: AuditedTransfer) -> bool:
    return audited.transfer.state == "APPROVED"


def party(book: str) -> Party:
    return Party(CORE if book == SPOT else LEDGER, book, OWNER)


def between(flow: str, source: str, target: str) -> Callable[..., Path]:
    """A factory of the paths of a flow from one book to another."""
    roles = {"source": source, "target": target}
    if flow == "deposit":
        roles |= {"suspense": SUSPENSE}

    def path(name: str, end: str, **settings: Any) -> Path:
        return Path(flow, f"{source} to {target}, {name}", roles, end, **settings)

    return path


def internal(source: str, target: str) -> Iterator[Path]:
    path = between("internal_transfer", source, target)
    yield path("done", "COMMITTED")
    yield path("source refuses", "FAILED", disabled=(source,))
    yield path("target refuses", "ROLLED_BACK", disabled=(target,))
    if source == SPOT:  # The ledger never refuses a refund.
        refused = {"disabled": (target,), "refusals": 1}
        yield path("refund refused at first", "ROLLED_BACK", fills_up=True, **refused)
        yield path("no refund, so target insisted on", "COMMITTED", reversible=False, **refused)


def deposits(target: str) -> Iterator[Path]:
    path = between("deposit", OUTSIDE, target)
    yield path("done", "COMPLETED")
    yield path("target refuses", "SUSPENDED", disabled=(target,))
    disabled = target, SUSPENSE
    yield path("suspense refuses at first", "SUSPENDED", disabled=disabled, refusals=1)


def withdrawals(source: str) -> Iterator[Path]:
    path = between("external_withdrawal", source, OUTSIDE)
    yield path("done", "COMPLETED")
    yield path("source refuses", "FAILED", disabled=(source,))
    yield path("target refuses", "RETURNED", disabled=(OUTSIDE,))
    if source == SPOT:
        refused = {"disabled": (OUTSIDE,), "refusals": 1}
        yield path("refund refused at first", "RETURNED", fills_up=True, **refused)
        yield path("no refund, so target insisted on", "COMPLETED", reversible=False, **refused)


def payments(flow: str, refused_end: str) -> Iterator[Path]:
    """Payments between members, and from the core, which may refuse what the ledger never does."""
    member, other = MEMBERS
    path = between(flow, member, other)
    yield path("done", "COMPLETED")
    yield path("over the limit", refused_end, amount=501)
    yield path("target refuses", refused_end, disabled=(other,))
    path = between(flow, SPOT, other)
    yield path("done", "COMPLETED")
    refused = {"disabled": (other,), "refusals": 1}
    yield path("refund refused at first", refused_end, fills_up=True, **refused)
    yield path("no refund, so target insisted on", "COMPLETED", reversible=False, **refused)


PATHS = (
    *internal(FUNDING, SPOT),
    *internal(SPOT, FUNDING),
    between("internal_transfer", FUNDING, SPOT)(
        "done, and the daily limit is used up", "COMMITTED", daily=DailyAllowance(1, AMOUNT)
    ),
    between("internal_transfer", FUNDING, SPOT)("from the inbox", "COMMITTED", inbox=True),
    between("internal_transfer", SPOT, FUNDING)(
        "from the inbox, source refuses", "FAILED", inbox=True, disabled=(SPOT,)
    ),
    *deposits(FUNDING),
    *deposits(SPOT),
    between("deposit", OUTSIDE, FUNDING)(
        "source refuses twice at first", "COMPLETED", disabled=(OUTSIDE,), refusals=2
    ),
    *withdrawals(FUNDING),
    *withdrawals(SPOT),
    *payments("pool_transfer", "REJECTED"),
    *payments("member_transfer", "REFUSED"),
    between("pool_transfer", MEMBERS[0], MEMBERS[1])(
        "source refuses", "REJECTED", disabled=MEMBERS[:1]
    ),
    between("pool_transfer", SPOT, MEMBERS[1])(
        "source refuses at first", "COMPLETED", disabled=(SPOT,), rounds=1
    ),
    between("pool_transfer", SPOT, MEMBERS[1])(
        "source refuses for good", "REJECTED", disabled=(SPOT,)
    ),
    between("pool_transfer", MEMBERS[0], MEMBERS[1])(
        "cooling down when it was approved", "COMPLETED", cools=True
    ),
    between("member_transfer", MEMBERS[0], MEMBERS[1])(
        "source refuses", "REFUSED", disabled=MEMBERS[:1]
    ),
)


def missing_answers(flows: Iterable[Flow]) -> list[str]:
    """The answers that are on no path when nothing fails. There must be none."""
    covered = set[tuple[str, Edge]]()
    for path in PATHS:
        covered.update(run(1, FaultPlan(), path.prepare).edges)
    return [
        f"{flow.name}: {'>'.join(edge.path)} {edge.answer}"
        for flow in flows
        for edge in reachable(flow)
        if (flow.name, plain(edge)) not in covered
    ]
