"""The audit: checks that the books of all systems agree and that each transfer fits its state.

The audit takes a snapshot of the store, and then reads the trading core up to one log position
after it. A transfer that had ended in the snapshot has all its operations before that position, so
it is judged exactly. A transfer that was still open, or did not exist yet, is counted by its
operations in both systems. So the sums agree at any moment, however many answers are on their way.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple
from uuid import UUID

from tidegate.core.account import Account
from tidegate.core.answers import Alarm, Unreachable
from tidegate.core.flow import Flow
from tidegate.core.ports import StoreFault
from tidegate.core.wire import MAX_OPERATIONS, CoreEvent
from tidegate.engine.account_checks import (
    MAX_OWNERS,
    account_problem,
    chunks,
    judge_accounts,
)
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.audit_rules import (
    AuditPass,
    AuditReport,
    broken_chain,
    finding,
    gaps,
    judge,
    legs,
    report,
    unreadable,
)
from tidegate.engine.audit_slices import PAGE, AuditSlice, slice_of
from tidegate.engine.event_reader import MAX_VIOLATIONS, EventReader
from tidegate.engine.system_records import SystemRecords
from tidegate.engine.unknown_flows import open_effects, recorded_effects, unknown_flows
from tidegate.store import audit_progress
from tidegate.store.audit_progress import LAST_ID as LAST
from tidegate.store.audit_progress import LAST_OWNER, AuditProgress
from tidegate.store.audit_reads import (
    FIRST,
    AuditCase,
    AuditSnapshot,
    HaltOutcome,
    audit_snapshot,
    halt_for_audit,
)
from tidegate.store.flow_checks import checksums
from tidegate.store.postgres import PostgresStore
from tidegate.systems.trading import CoreTotals, TradingCoreClient

# A creation that commits later than this after its transaction began is only seen by a full audit.
SLACK_US = 60 * 1_000_000
MAX_FAILURES = 10  # After so many failed audits in a row an alert is sent.


class AuditScope(NamedTuple):
    """What the audit may assume about the installation."""

    ledger: str = "ledger"
    # Some systems cannot be read. Their answers in the history are counted instead.
    unreadable_systems: bool = False
    single_owner: bool = True  # No transfer moves money from one owner to another.


class AuditMemory(NamedTuple):
    """What one audit passes to the next, so that the next one reads only what is new."""

    since_us: int  # All transfers created before this time were visible to the last audit.
    open: frozenset[UUID]
    judged: frozenset[UUID]
    unknown: frozenset[str] = frozenset()
    # The effects of ended transfers of unknown flows.
    unknown_net: Mapping[tuple[int, int], int] = {}


class Audit:
    """Runs one audit at a time: a full one, or an incremental one of what is new since the last."""

    def __init__(
        self,
        store: PostgresStore,
        core: TradingCoreClient | None,
        flows: Mapping[str, Flow],
        alert: Callable[[Alert], None],
        scope: AuditScope | None = None,
    ) -> None:
        self._store, self._core, self._flows, self._alert = store, core, flows, alert
        self._tables = checksums(flows.values())
        self._scope = scope or AuditScope()
        self._events = None if core is None else EventReader(store, core)
        self._memory: AuditMemory | None = None
        self._records = SystemRecords(core, flows, self._scope.ledger)
        self._reported: frozenset[str] = frozenset()
        self._failures = 0  # In a row.
        self._lock = asyncio.Lock()
        self.read: Counter[str] = Counter()  # What the latest pass has read so far.
        self.last: AuditReport | None = None

    async def run(self, *, full: bool = True, sweep_s: float | None = None) -> AuditReport:
        """Audit. If a problem is found, audit again, and halt if it is still found.

        With `sweep_s`, a slice of the old transfers is judged too, so that all are judged within
        that time.
        """
        async with self._lock:
            part = None
            if sweep_s is not None:
                part = slice_of(await audit_progress.current(self._store, sweep_s), sweep_s)
            found = await self.run_pass(full=full, part=part)
            if found.problems:
                # With unknown flows the second pass is full: the effects that were remembered
                # from earlier audits may be incomplete.
                full = full or bool(found.unknown)
                found = await self.run_pass(full=full, part=part)
            while found.problems and not await self._halt(found):
                found = await self.run_pass(full=full, part=part)
            if not found.problems:
                self._reported = frozenset()
                if part is not None:
                    await self._advance(part, found.reached or part.start)
                if full:
                    await audit_progress.verified(self._store, found.at_us)
            assets = await self._store.assets()
            halted = await self._store.halted()
            self.last = report(found, assets.values(), halted=halted)
            return self.last

    async def _advance(self, part: AuditSlice, reached: AuditProgress) -> None:
        """Store the progress of the sweep. Report transfers that no engine would have asked."""
        rescued = await audit_progress.advance(self._store, part.start, reached)
        for id_, lane, state in rescued:
            cause = "the transfer was in no handover list, so no engine would have asked its system"
            cause += "; it is due now"
            self._alert(Alert(Alarm.PAGE, AlertCode.TRANSFER_STUCK, cause, lane, id_, state))

    async def run_next(self, sweep_s: float | None = None) -> None:
        """One round in the background: judge what is new and a slice of what is old."""
        try:
            await self.run(full=False, sweep_s=sweep_s)
            self._failures = 0
        except (Unreachable, StoreFault) as fault:
            self._failures += 1
            if self._failures == MAX_FAILURES:
                cause = f"{self._failures} audits in a row have failed: {fault}"
                self._alert(Alert(Alarm.PAGE, AlertCode.AUDIT_MISSED, cause))
            raise

    async def close(self) -> None:
        if self._events is not None:
            await self._events.close()

    async def _halt(self, found: AuditPass) -> bool:
        """Halt, unless an operator has resumed since the pass: the problem may be repaired."""
        problems = found.problems
        reason = f"{problems[0]} ({_violations(len(problems))} found)"
        outcome = await halt_for_audit(self._store, reason, found.at_us)
        if outcome is HaltOutcome.RESUMED:
            return False
        if outcome is HaltOutcome.HALTED or not self._reported.issuperset(problems):
            self._reported = frozenset(problems)
            cause = f"the audit found {_violations(len(problems))}; Tidegate is halted; the first "
            cause += f"violation is: {problems[0]}"
            self._alert(Alert(Alarm.HALT, AlertCode.BOOKS_DISAGREE, cause))
        return True

    async def run_pass(self, *, full: bool, part: AuditSlice | None = None) -> AuditPass:
        """Audit once, without alerts and without a halt. `part` is a slice of old transfers."""
        found = AuditPass(full)
        self.read = found.read
        before = await self._totals()
        async with audit_snapshot(self._store) as snapshot:
            found.at_us = snapshot.at_us
            await self._compare_flows(snapshot, found)
            found.books = await snapshot.books()
            found.position, found.core = await self._totals()
            later: dict[UUID, list[CoreEvent]] = {}
            async for event in self._read_events(found.position, before.position):
                if event.position > before.position:
                    later.setdefault(event.transfer_id, []).append(event)
            if self._scope.unreadable_systems or self._core is None:
                known = {n: flow for n, flow in self._flows.items() if n not in found.unknown}
                found.other_systems = await snapshot.elsewhere(legs(known), self._readable())
            await self._judge_open(snapshot, found, later)
            await self._judge_ended(snapshot, found)
            await judge_accounts(snapshot, found)
            if self._scope.single_owner:
                await self._judge_owners(snapshot, found)
            if part is not None:
                found.reached = await self._judge_slice(snapshot, found, part)
        found.problems += [*gaps(found), *(self._events.mismatches() if self._events else ())]
        if not found.problems:
            since_us = snapshot.at_us - SLACK_US
            created_us = found.created_us
            recent = frozenset(id_ for id_ in found.judged if created_us.get(id_, 0) >= since_us)
            self._memory = AuditMemory(
                since_us, frozenset(found.open), recent, found.unknown, found.unknown_net
            )
        found.problems = found.problems[:MAX_VIOLATIONS]
        return found

    async def _compare_flows(self, snapshot: AuditSnapshot, found: AuditPass) -> None:
        """Note the flows that this process does not know. A new one makes this audit a full one."""
        found.unknown = unknown_flows(await snapshot.flows(), self._tables)
        memory = self._memory
        before = frozenset() if memory is None else memory.unknown
        if found.unknown - before:
            found.full = True
            names = ", ".join(sorted(found.unknown))
            cause = f"this process does not know the flow {names}, so its audit does not judge "
            cause += "these transfers"
            self._alert(Alert(Alarm.NONE, AlertCode.FLOW_UNKNOWN, cause))
        elif memory is not None and not found.full:
            found.unknown_net.update(memory.unknown_net)

    async def _totals(self) -> CoreTotals:
        return CoreTotals(0, {}) if self._core is None else await self._core.totals()

    def _readable(self) -> Sequence[str]:
        return [self._scope.ledger, *([] if self._core is None else [self._core.name])]

    async def _read_events(self, upto: int, begin: int) -> AsyncIterator[CoreEvent]:
        if self._events is not None:
            async with aclosing(self._events.read(upto, begin)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event

    async def _judge_open(
        self, snapshot: AuditSnapshot, found: AuditPass, later: dict[UUID, list[CoreEvent]]
    ) -> None:
        """Count the money in flight by the operations of both systems, not by states."""
        after = FIRST
        while ids := await snapshot.open_ids(after, PAGE):
            after = ids[-1]
            found.open.update(ids)
            for case, in_flight in await self._judge(snapshot, found, ids):
                row = case.row
                done = sum(e.delta for e in later.pop(row.id, ()) if e.version > row.version)
                found.in_flight[row.parties["source"].owner, row.asset_id] += in_flight - done
        for id_ in found.versions.keys() & later.keys():
            for event in later.pop(id_):
                if event.version > found.versions[id_]:
                    found.in_flight[event.owner, event.asset_id] -= event.delta
        existing = await snapshot.known(list(later)) if later else frozenset()
        for id_ in later.keys() - existing:
            for event in later[id_]:
                found.owners.add(event.owner)
                found.in_flight[event.owner, event.asset_id] -= event.delta

    async def _judge_ended(self, snapshot: AuditSnapshot, found: AuditPass) -> None:
        since_us = snapshot.at_us - SLACK_US
        memory = self._memory or AuditMemory(since_us, frozenset(), frozenset())
        # If the clock was set back, new transfers have a time before the last audit.
        recent = await snapshot.fresh(min(since_us, memory.since_us), snapshot.at_us + SLACK_US)
        found.created_us = {id_: created_us for id_, _, created_us in recent}
        if not found.full:
            ended = [id_ for id_, end, _ in recent if end]
            ids = {*ended, *(memory.open - found.open)} - memory.judged
            found.judged |= memory.judged
            for page_ids in chunks(sorted(ids), PAGE):
                await self._judge_ends(snapshot, found, page_ids)
            return
        after = FIRST
        while page := await snapshot.ids(after, PAGE):
            await self._judge_range(snapshot, found, (after, page[-1][0]))
            after = page[-1][0]
            await self._judge_ends(snapshot, found, [id_ for id_, end in page if end])
        await self._judge_range(snapshot, found, (after, LAST))

    async def _judge_ends(
        self, snapshot: AuditSnapshot, found: AuditPass, ids: Sequence[UUID], *, old: bool = False
    ) -> None:
        found.judged.update(() if old else ids)
        for case, in_flight in await self._judge(snapshot, found, ids, old=old):
            if in_flight:
                found.problems.append(finding(case, f"{in_flight} smallest units are missing"))
            if found.full or old:
                found.problems += broken_chain(case)

    async def _judge_slice(
        self, snapshot: AuditSnapshot, found: AuditPass, part: AuditSlice
    ) -> AuditProgress:
        """Judge one slice of all transfers and owners as a full audit does."""
        reached = part.start
        for _ in range(part.pages if reached.id != LAST else 0):
            page = await snapshot.ids(reached.id, PAGE)
            upto = page[-1][0] if len(page) == PAGE else LAST
            await self._judge_range(snapshot, found, (reached.id, upto))
            await self._judge_ends(snapshot, found, [id_ for id_, end in page if end], old=True)
            reached = reached._replace(id=upto, transfers=reached.transfers + len(page))
            if upto == LAST:
                break
        limit = min(part.owners, MAX_OPERATIONS // max(len(found.core), 1))
        held = await snapshot.owners(reached.owner, limit)
        owners = sorted({owner for owner, _ in held})
        if owners and self._scope.single_owner:
            await self._judge_sums(found, (owners, held))
        if suspects := await snapshot.suspects(owners):
            found.problems += map(account_problem, await snapshot.accounts(suspects))
        upto_owner = owners[-1] if len(owners) == limit else LAST_OWNER
        return reached._replace(owner=upto_owner, owners=reached.owners + len(owners))

    async def _judge_range(
        self, snapshot: AuditSnapshot, found: AuditPass, span: tuple[UUID, UUID]
    ) -> None:
        for id_ in await snapshot.strays(*span):
            found.problems.append(f"transfer {id_} has answers or operations, but does not exist")

    async def _judge(
        self, snapshot: AuditSnapshot, found: AuditPass, ids: Sequence[UUID], *, old: bool = False
    ) -> list[tuple[AuditCase, int]]:
        """Compare each transfer with its state. Return it with the amount that it has in flight."""
        cases, judged = [], []
        unknown_cases: list[AuditCase] = []
        for case in await snapshot.cases(ids) if ids else ():
            found.count(case, old=old)
            if case.row.flow in found.unknown:
                unknown_cases += [] if old else [case]  # An old one was counted when it was new.
            elif problem := unreadable(case, self._flows.get(case.row.flow)):
                found.problems.append(finding(case, problem))
            else:
                cases.append(case)
        await self._count_unknown(unknown_cases, found)
        records = await self._records.read(cases, found)
        for case in cases:
            verdict = judge(case, self._flows[case.row.flow], records[case.row.id])
            found.problems += verdict.problems
            judged.append((case, verdict.in_flight))
        return judged

    async def _count_unknown(self, cases: Sequence[AuditCase], found: AuditPass) -> None:
        core = None if self._core is None else self._core.name
        for case in cases:
            found.not_judged[case.row.flow] += 1
            ended = case.row.lane is None
            counts = found.unknown_net if ended else found.in_flight
            counts.subtract(recorded_effects(case, core))
            if ended and found.full:
                found.problems += broken_chain(case)
        open_cases = [case for case in cases if case.row.lane is not None]
        for batch in chunks(open_cases, MAX_OPERATIONS):
            found.versions |= {case.row.id: case.row.version for case in batch}
            if self._core is not None:
                answers = await self._core.query([(c.row.id, c.row.version) for c in batch])
                for case, answer in zip(batch, answers, strict=True):
                    done = open_effects(case, answer, self._core.name, found.position)
                    found.in_flight.subtract(done)

    async def _judge_owners(self, snapshot: AuditSnapshot, found: AuditPass) -> None:
        """Check that the books of each owner and the money in flight sum to 0."""
        limit = min(MAX_OWNERS, MAX_OPERATIONS // max(len(found.core), 1))
        if not found.full:
            for owners in chunks(sorted(found.owners), limit):
                held = await snapshot.owners_named(owners)
                await self._judge_sums(found, (owners, held))
            return
        after = -(2**63)
        while held := await snapshot.owners(after, limit):
            owners = sorted({owner for owner, _ in held})
            after = owners[-1]
            await self._judge_sums(found, (owners, held))

    async def _judge_sums(
        self, found: AuditPass, held: tuple[Sequence[int], Mapping[tuple[int, int], int]]
    ) -> None:
        """Check the owners in `held`, given what they hold in the ledger."""
        core_changes, position = found.core_changes, found.position
        owners, sums = held[0], Counter(held[1])
        if self._core is not None and found.core:
            accounts = [Account(o, book, asset) for o in owners for book, asset in found.core]
            position, amounts = await self._core.balances(accounts)
            for account, amount in zip(accounts, amounts, strict=True):
                sums[account.owner, account.asset_id] += amount
        for key in sums:
            sums[key] += found.in_flight[key] + found.unknown_net[key]
            sums[key] += found.other_systems.get(key, 0)
        found.read["owners"] += len(owners)
        if position > found.position and (core_changes or any(sums.values())):
            # The core has processed more operations meanwhile. Their effect is subtracted.
            async for event in self._read_events(position, found.position):
                core_changes[event.owner, event.asset_id] += event.delta
        for key, total in sums.items():
            if gap := total - core_changes[key]:
                problem = f"owner {key[0]}, asset {key[1]}: the sum of the books is off by {gap}"
                found.problems.append(f"{problem} smallest units (it must be 0)")


def _violations(number: int) -> str:
    return "1 violation" if number == 1 else f"{number} violations"
