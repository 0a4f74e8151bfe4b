"""Searches for bugs in where money moves: sales with a fee, two halts, and the audit's rules."""

import asyncio
from collections.abc import Iterator
from enum import StrEnum
from uuid import UUID

from tests.simulation.searches import BUDGET, Halt, Search, Trial, trial_of
from tidegate.core.account import Account
from tidegate.core.flow import Ask, End, Flow, Place, Verb
from tidegate.core.kind import GENESIS, Party
from tidegate.core.request import Request
from tidegate.core.transfer import HistoryEntry
from tidegate.engine.audit_rules import judge, ledger_records
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


# Each step rests, so that faults between two transactions are possible here, too.
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
    """Money is held, captured and paid with a fee to a book that may be disabled."""
    scene.world.tables.flows[SALE.name] = checksum(SALE)
    parties = {
        owner: {
            "source": Party(LEDGER, FUNDING, owner),
            "target": Party(LEDGER, SUSPENSE, owner),
            "fees": Party(LEDGER, "FEES", owner),
        }
        for owner in OWNERS
    }
    scene.requests = [
        *scene.requests[:4],
        *(
            Request(owner, "sale", parties[owner], ASSET, 10 + number, f"sale {number}", fee=number)
            for number in range(SALES)
            for owner in [OWNERS[number % len(OWNERS)]]
        ),
    ]


def sale_search() -> Search:
    def trials() -> Iterator[Trial]:
        for seed in range(BUDGET):
            result = run(seed, None, sales, {**FLOWS, SALE.name: SALE})
            yield trial_of(f"seed {seed}, sales", result)

    return Search("sales", trials)


class TwoHalts(Halt):
    """Two operators halt for different reasons. The first resume ends only one of the halts."""

    def alter(self, scene: Scenario) -> None:
        self.scene, begin = scene, scene._begin
        scene.workers, scene.spread_s = 1, 3.0
        self.halts: list[int] = []

        async def begin_and_disturb() -> None:
            await begin()
            loop, at_s = asyncio.get_running_loop(), 0.5 + scene.world.dice.random()
            for after_s, step in ((0.0, self.halt), (0.5, self.halt), (1.0, self.resume)):
                loop.call_later(at_s + after_s, step)
            loop.call_later(at_s + 4.0, self.resume)

        scene._begin = begin_and_disturb  # type: ignore[method-assign]

    def halt(self) -> None:
        assert self.scene is not None
        halts, reason = self.scene.world.tables.halts, f"reason {len(self.halts)}"
        self.halts.append(halts.add(reason, "people", 0))
        self.halted_s = self.halted_s or self.scene.world.loop.now_s

    def resume(self) -> None:
        assert self.scene is not None
        self.scene.world.tables.halts.end([self.halts.pop()])
        if not self.halts:
            self.halted_s = None


def twice_halted() -> Search:
    def trials() -> Iterator[Trial]:
        for seed in range(BUDGET):
            halts = TwoHalts()
            yield trial_of(f"seed {seed}, halted twice", run(seed, halts, halts.alter))

    return Search("halted twice", trials)


ID, OWNER, MEMBERS = UUID(int=9), 1, ("member:1", "member:2")
PARTIES = {
    "source": Party(LEDGER, MEMBERS[0], OWNER),
    "target": Party(LEDGER, MEMBERS[1], OWNER),
    "fees": Party(LEDGER, "FEES", OWNER),
}
WRONG_ACCOUNTS = {
    "another member": Account(OWNER, "member:3", ASSET),
    "another owner": Account(OWNER + 1, MEMBERS[1], ASSET),
    "the payer": Account(OWNER, MEMBERS[0], ASSET),
}


def paid(to: Account) -> AuditCase:
    """A paid sale with all its operations. The credit goes to the given account."""
    steps = (
        (Sale.HOLDING, "hold", Sale.CAPTURING, Account(OWNER, MEMBERS[0], ASSET), (-5, 5)),
        (Sale.CAPTURING, "capture", Sale.PAYING, Account(OWNER, MEMBERS[0], ASSET), (0, -5)),
        (Sale.PAYING, "credit", Sale.PAID, to, (5, 0)),
    )
    history = [
        HistoryRow(HistoryEntry(version, (state, next_state), verb, "done"), 0, GENESIS)
        for version, (state, verb, next_state, _, _) in enumerate(steps)
    ]
    operations = [
        LedgerRow(ID, version, account, verb, 5, "done", *moved, 0)
        for version, (_, verb, _, account, moved) in enumerate(steps)
    ]
    row = AuditedRow(ID, OWNER, "sale", "PAID", None, 3, PARTIES, ASSET, 5, GENESIS, keyed=True)
    return AuditCase(row, history, operations)


def audit_search() -> Search:
    """The audit's rules judge payments to wrong accounts."""

    def trials() -> Iterator[Trial]:
        correct = paid(Account(OWNER, MEMBERS[1], ASSET))
        problems = judge(correct, SALE, ledger_records(correct, LEDGER)).problems
        yield Trial("audit: the target", "; ".join(problems))
        for name, account in WRONG_ACCOUNTS.items():
            wrong = paid(account)
            problems = judge(wrong, SALE, ledger_records(wrong, LEDGER)).problems
            yield Trial(f"audit: {name}", "" if problems else f"a payment to {name} was not found")

    return Search("audit", trials)


SALES_WORLD = sale_search()
TWICE_HALTED = twice_halted()
AUDIT = audit_search()
