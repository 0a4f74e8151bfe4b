"""Ways to look for bugs about where money goes: sales with a fee, two halts, the audit's eyes."""

import asyncio
from collections.abc import Iterator
from enum import StrEnum
from uuid import UUID

from tests.simulation.searches import BUDGET, Brake, Search, Trial, found
from tidegate.core.account import Account
from tidegate.core.flow import Ask, End, Flow, Place, Verb
from tidegate.core.kind import GENESIS, Party
from tidegate.core.request import Request
from tidegate.core.transfer import HistoryEntry
from tidegate.engine.audit_rules import judge, ledger_found
from tidegate.flows import FLOWS
from tidegate.simulation.auditor import LEDGER
from tidegate.simulation.scenario import Scenario, run
from tidegate.simulation.workload import ASSET, OWNERS
from tidegate.store.audit_reads import AuditCase, AuditedRow, HistoryRow, LedgerRow
from tidegate.store.flow_checks import checksum
from tidegate.systems.ledger import FUNDING, SUSPENSE

SALES = 12


class Sale(StrEnum):
    HOLDING = "HOLDING"
    CAPTURING = "CAPTURING"
    PAYING = "PAYING"
    REFUNDING = "REFUNDING"
    PAID = "PAID"
    REFUSED = "REFUSED"


# Each step rests, so that what fails between two transactions fails here too.
SALE = Flow(
    "sale",
    first=Sale.HOLDING,
    rows={
        Sale.HOLDING: Ask(Place.SOURCE, "source", Verb.HOLD, Sale.CAPTURING, Sale.REFUSED),
        Sale.CAPTURING: Ask(Place.HELD, "source", Verb.CAPTURE, Sale.PAYING, rests=True),
        Sale.PAYING: Ask(
            Place.IN_FLIGHT, "target", Verb.CREDIT, Sale.PAID, Sale.REFUNDING, rests=True
        ),
        Sale.REFUNDING: Ask(Place.IN_FLIGHT, "source", Verb.REFUND, Sale.REFUSED),
        Sale.PAID: End(Place.TARGET),
        Sale.REFUSED: End(Place.SOURCE),
    },
    roles=frozenset({"fees"}),
)


def sales(scene: Scenario) -> None:
    """Money is held, captured and paid with a fee, into a book that may be disabled."""
    scene.world.tables.flows[SALE.name] = checksum(SALE)
    parties = {
        owner: {
            "source": Party(LEDGER, FUNDING, owner),
            "target": Party(LEDGER, SUSPENSE, owner),
            "fees": Party(LEDGER, "FEES", owner),
        }
        for owner in OWNERS
    }
    scene.wishes = [
        *scene.wishes[:4],
        *(
            Request(owner, "sale", parties[owner], ASSET, 10 + number, f"sale {number}", fee=number)
            for number in range(SALES)
            for owner in [OWNERS[number % len(OWNERS)]]
        ),
    ]


def sold() -> Search:
    def trials() -> Iterator[Trial]:
        for seed in range(BUDGET):
            result = run(seed, None, sales, {**FLOWS, SALE.name: SALE})
            yield found(f"seed {seed}, sales", result)

    return Search("sales", trials)


class TwoBrakes(Brake):
    """Two people halt for causes of their own. The first to resume ends only one of the halts."""

    def alter(self, scene: Scenario) -> None:
        self.scene, begin = scene, scene._begin
        scene.nodes, scene.spread_s = 1, 3.0
        self.halts: list[int] = []

        async def begun() -> None:
            await begin()
            loop, at_s = asyncio.get_running_loop(), 0.5 + scene.world.dice.random()
            for after_s, doing in ((0.0, self.stop), (0.5, self.stop), (1.0, self.go_on)):
                loop.call_later(at_s + after_s, doing)
            loop.call_later(at_s + 4.0, self.go_on)

        scene._begin = begun  # type: ignore[method-assign]

    def stop(self) -> None:
        assert self.scene is not None
        halts, cause = self.scene.world.tables.halts, f"cause {len(self.halts)}"
        self.halts.append(halts.add(cause, "people", 0))
        self.pulled_s = self.pulled_s or self.scene.world.loop.now_s

    def go_on(self) -> None:
        assert self.scene is not None
        self.scene.world.tables.halts.end([self.halts.pop()])
        if not self.halts:
            self.pulled_s = None


def twice_braked() -> Search:
    def trials() -> Iterator[Trial]:
        for seed in range(BUDGET):
            brakes = TwoBrakes()
            yield found(f"seed {seed}, halted twice", run(seed, brakes, brakes.alter))

    return Search("halted twice", trials)


ID, OWNER, MEMBERS = UUID(int=9), 1, ("member:1", "member:2")
PARTIES = {
    "source": Party(LEDGER, MEMBERS[0], OWNER),
    "target": Party(LEDGER, MEMBERS[1], OWNER),
    "fees": Party(LEDGER, "FEES", OWNER),
}
ELSEWHERE = {
    "another member": Account(OWNER, "member:3", ASSET),
    "another owner": Account(OWNER + 1, MEMBERS[1], ASSET),
    "the payer": Account(OWNER, MEMBERS[0], ASSET),
}


def paid(to: Account) -> AuditCase:
    """A sale that was paid, with all the operations that it needs; the credit is this account's."""
    steps = (
        (Sale.HOLDING, "hold", Sale.CAPTURING, Account(OWNER, MEMBERS[0], ASSET), (-5, 5)),
        (Sale.CAPTURING, "capture", Sale.PAYING, Account(OWNER, MEMBERS[0], ASSET), (0, -5)),
        (Sale.PAYING, "credit", Sale.PAID, to, (5, 0)),
    )
    history = [
        HistoryRow(HistoryEntry(version, (asked, reached), verb, "done"), 0, GENESIS)
        for version, (asked, verb, reached, _, _) in enumerate(steps)
    ]
    operations = [
        LedgerRow(ID, version, account, verb, 5, "done", *moved, 0)
        for version, (_, verb, _, account, moved) in enumerate(steps)
    ]
    row = AuditedRow(ID, OWNER, "sale", "PAID", None, 3, PARTIES, ASSET, 5, GENESIS, keyed=True)
    return AuditCase(row, history, operations)


def audited() -> Search:
    """Payments that went astray are put to the rules of the audit."""

    def trials() -> Iterator[Trial]:
        right = paid(Account(OWNER, MEMBERS[1], ASSET))
        problems = judge(right, SALE, ledger_found(right, LEDGER)).problems
        yield Trial("audit: the target", "; ".join(problems))
        for name, account in ELSEWHERE.items():
            astray = paid(account)
            problems = judge(astray, SALE, ledger_found(astray, LEDGER)).problems
            yield Trial(f"audit: {name}", "" if problems else f"{name} was paid unnoticed")

    return Search("audit", trials)


SALES_WORLD = sold()
TWICE_BRAKED = twice_braked()
AUDITED = audited()
