"""The audit: whether the books of all systems agree, and each transfer is where it says it is.

It reads the store at one moment, then the trading core at one position after it. What had ended
at that moment has all its operations in the core before that position, and is judged exactly.
What was still open, or not yet born, is counted by its operations on both sides: so that the sums
agree at any moment, however many answers are on their way.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple
from uuid import UUID

from tidegate.core.account import Account
from tidegate.core.answers import Alarm, Unreachable
from tidegate.core.flow import Flow
from tidegate.core.ports import StoreFault
from tidegate.core.wire import MAX_OPERATIONS, CoreEvent
from tidegate.engine.account_checks import MAX_OWNERS, judge_accounts, pieces, unfounded
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.audit_rules import (
    AuditPass,
    AuditReport,
    ExpectedRecord,
    SystemRecord,
    broken_chain,
    finding,
    gaps,
    judge,
    ledger_found,
    legs,
    report,
    resolved,
    unreadable,
)
from tidegate.engine.audit_slices import PAGE, AuditSlice, slice_of
from tidegate.engine.event_reader import MAX_VIOLATIONS, EventReader
from tidegate.engine.unknown_flows import effects, unknown, unrecorded
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

# A birth commits within this time after its transaction began, or the next full audit finds it.
SLACK_US = 60 * 1_000_000
MISSES = 10  # Audits in a row that could not be made, until somebody is called.


class AuditScope(NamedTuple):
    """What the audit may take for granted of the set-up."""

    ledger: str = "ledger"
    others: bool = False  # Systems take part that cannot be read: their answers are counted.
    owners_alone: bool = True  # No transfer moves money from one owner to another.


class AuditMemory(NamedTuple):
    """What an audit leaves to the next: what it need not read again."""

    since_us: int  # What was created before that was there to be judged.
    open: frozenset[UUID]
    judged: frozenset[UUID]
    unknown: frozenset[str] = frozenset()
    taken: Mapping[tuple[int, int], int] = {}  # By ended transfers of unknown flows.


class Audit:
    """One at a time; `full` from the first transfer on, else what is new since the last one."""

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
        self._ear = None if core is None else EventReader(store, core)
        self._memory: AuditMemory | None = None
        self._told: frozenset[str] = frozenset()
        self._missed = 0  # In a row.
        self._turn = asyncio.Lock()
        self.read: Counter[str] = Counter()  # What the last look has read, so far.
        self.last: AuditReport | None = None

    async def run(self, *, full: bool = True, sweep_s: float | None = None) -> AuditReport:
        """Look; whatever is wrong stays wrong, so look again; then pull the brake.

        With `sweep_s`, a slice of what is old is judged too, so that all is within that time.
        """
        async with self._turn:
            part = None
            if sweep_s is not None:
                part = slice_of(await audit_progress.current(self._store, sweep_s), sweep_s)
            found = await self.look(full=full, part=part)
            if found.problems:
                # Of unknown flows everything counts: what was counted before may be too little.
                full = full or bool(found.unknown)
                found = await self.look(full=full, part=part)
            while found.problems and not await self._halt(found):
                found = await self.look(full=full, part=part)
            if not found.problems:
                self._told = frozenset()
                if part is not None:
                    reached = found.reached or part.begun
                    for id_, *where in await audit_progress.advance(
                        self._store, part.begun, reached
                    ):
                        cause = "no list of held transfers named it; it is due now"
                        lane, state = where
                        self._alert(
                            Alert(Alarm.PAGE, AlertCode.TRANSFER_STUCK, cause, lane, id_, state)
                        )
                if full:
                    await audit_progress.verified(self._store, found.at_us)
            assets = await self._store.assets()
            halted = await self._store.halted()
            self.last = report(found, assets.values(), halted=halted)
            return self.last

    async def run_next(self, sweep_s: float | None = None) -> None:
        """One round of what runs beside the service: judge what is new, and a slice of the old."""
        try:
            await self.run(full=False, sweep_s=sweep_s)
            self._missed = 0
        except (Unreachable, StoreFault) as fault:
            self._missed += 1
            if self._missed == MISSES:
                cause = f"{self._missed} audits in a row could not be made: {fault}"
                self._alert(Alert(Alarm.PAGE, AlertCode.AUDIT_MISSED, cause))
            raise

    async def close(self) -> None:
        if self._ear is not None:
            await self._ear.close()

    async def _halt(self, found: AuditPass) -> bool:
        """Not if somebody has resumed since: what was found may be what has been set right."""
        problems = found.problems
        reason = f"{problems[0]} ({len(problems)} found)"
        brake = await halt_for_audit(self._store, reason, found.at_us)
        if brake is HaltOutcome.RELEASED:
            return False
        if brake is HaltOutcome.PULLED or not self._told.issuperset(problems):
            self._told = frozenset(problems)
            cause = f"the audit found {len(problems)} violations: {problems[0]}"
            self._alert(Alert(Alarm.HALT, AlertCode.BOOKS_DISAGREE, cause))
        return True

    async def look(self, *, full: bool, part: AuditSlice | None = None) -> AuditPass:
        """Judge, and tell nobody. A slice of what is old may be judged besides."""
        look = AuditPass(full)
        self.read = look.read
        before = await self._totals()
        async with audit_snapshot(self._store) as then:
            look.at_us = then.at_us
            await self._compare_flows(then, look)
            look.books = await then.books()
            look.position, look.core = await self._totals()
            later: dict[UUID, list[CoreEvent]] = {}
            async for event in self._events(look.position, before.position):
                if event.position > before.position:
                    later.setdefault(event.transfer_id, []).append(event)
            if self._scope.others or self._core is None:
                known = {n: flow for n, flow in self._flows.items() if n not in look.unknown}
                look.elsewhere = await then.elsewhere(legs(known), self._readable())
            await self._judge_open(then, look, later)
            await self._judge_ended(then, look)
            await judge_accounts(then, look)
            if self._scope.owners_alone:
                await self._judge_owners(then, look)
            if part is not None:
                look.reached = await self._judge_slice(then, look, part)
        look.problems += [*gaps(look), *(self._ear.orphans() if self._ear else ())]
        if not look.problems:
            since_us = then.at_us - SLACK_US
            recent = frozenset(id_ for id_ in look.judged if look.created.get(id_, 0) >= since_us)
            judged = frozenset(look.open), recent
            self._memory = AuditMemory(since_us, *judged, look.unknown, look.taken)
        look.problems = look.problems[:MAX_VIOLATIONS]
        return look

    async def _compare_flows(self, then: AuditSnapshot, look: AuditPass) -> None:
        """Which flows others know and we do not. They are read in full once, then what is new."""
        look.unknown, memory = unknown(await then.flows(), self._tables), self._memory
        before = frozenset() if memory is None else memory.unknown
        if look.unknown - before:
            look.full = True
            names = ", ".join(sorted(look.unknown))
            cause = f"transfers of flow {names} are not judged here: another version knows them"
            self._alert(Alert(Alarm.NONE, AlertCode.FLOW_UNKNOWN, cause))
        elif memory is not None and not look.full:
            look.taken.update(memory.taken)

    async def _totals(self) -> CoreTotals:
        return CoreTotals(0, {}) if self._core is None else await self._core.totals()

    def _readable(self) -> Sequence[str]:
        return [self._scope.ledger, *([] if self._core is None else [self._core.name])]

    async def _events(self, upto: int, begin: int) -> AsyncIterator[CoreEvent]:
        if self._ear is not None:
            async with aclosing(self._ear.hear(upto, begin)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event

    async def _judge_open(
        self, then: AuditSnapshot, look: AuditPass, later: dict[UUID, list[CoreEvent]]
    ) -> None:
        """Count what is in flight: by what both systems did, and not by states."""
        after = FIRST
        while ids := await then.open_ids(after, PAGE):
            after = ids[-1]
            look.open.update(ids)
            for case, in_flight in await self._judge(then, look, ids):
                row = case.row
                done = sum(e.delta for e in later.pop(row.id, ()) if e.version > row.version)
                look.in_flight[row.parties["source"].owner, row.asset_id] += in_flight - done
        for id_ in look.versions.keys() & later.keys():
            for event in later.pop(id_):
                if event.version > look.versions[id_]:
                    look.in_flight[event.owner, event.asset_id] -= event.delta
        born = await then.known(list(later)) if later else frozenset()
        for id_ in later.keys() - born:
            for event in later[id_]:
                look.owners.add(event.owner)
                look.in_flight[event.owner, event.asset_id] -= event.delta

    async def _judge_ended(self, then: AuditSnapshot, look: AuditPass) -> None:
        since_us = then.at_us - SLACK_US
        memory = self._memory or AuditMemory(since_us, frozenset(), frozenset())
        # If the clock was put back, what is new looks older than the last audit.
        fresh = await then.fresh(min(since_us, memory.since_us), then.at_us + SLACK_US)
        look.created = {id_: created_us for id_, _, created_us in fresh}
        if not look.full:
            ended = [id_ for id_, end, _ in fresh if end]
            ids = {*ended, *(memory.open - look.open)} - memory.judged
            look.judged |= memory.judged
            for piece in pieces(sorted(ids), PAGE):
                await self._judge_ends(then, look, piece)
            return
        after = FIRST
        while page := await then.ids(after, PAGE):
            await self._judge_range(then, look, (after, page[-1][0]))
            after = page[-1][0]
            await self._judge_ends(then, look, [id_ for id_, end in page if end])
        await self._judge_range(then, look, (after, LAST))

    async def _judge_ends(
        self, then: AuditSnapshot, look: AuditPass, ids: Sequence[UUID], *, old: bool = False
    ) -> None:
        look.judged.update(() if old else ids)
        for case, in_flight in await self._judge(then, look, ids, old=old):
            if in_flight:
                look.problems.append(finding(case, f"{in_flight} of it went missing"))
            if look.full or old:
                look.problems += broken_chain(case)

    async def _judge_slice(
        self, then: AuditSnapshot, look: AuditPass, part: AuditSlice
    ) -> AuditProgress:
        """Transfers by their ids, and owners with their accounts, as a full audit judges them."""
        reached = part.begun
        for _ in range(part.pages if reached.id != LAST else 0):
            page = await then.ids(reached.id, PAGE)
            upto = page[-1][0] if len(page) == PAGE else LAST
            await self._judge_range(then, look, (reached.id, upto))
            await self._judge_ends(then, look, [id_ for id_, end in page if end], old=True)
            reached = reached._replace(id=upto, transfers=reached.transfers + len(page))
            if upto == LAST:
                break
        limit = min(part.owners, MAX_OPERATIONS // max(len(look.core), 1))
        held = await then.owners(reached.owner, limit)
        owners = sorted({owner for owner, _ in held})
        if owners and self._scope.owners_alone:
            await self._judge_piece(look, (owners, held))
        if suspects := await then.suspects(owners):
            look.problems += map(unfounded, await then.accounts(suspects))
        upto_owner = owners[-1] if len(owners) == limit else LAST_OWNER
        return reached._replace(owner=upto_owner, owners=reached.owners + len(owners))

    async def _judge_range(
        self, then: AuditSnapshot, look: AuditPass, span: tuple[UUID, UUID]
    ) -> None:
        for id_ in await then.strays(*span):
            look.problems.append(f"transfer {id_} has answers or operations, and does not exist")

    async def _judge(
        self, then: AuditSnapshot, look: AuditPass, ids: Sequence[UUID], *, old: bool = False
    ) -> list[tuple[AuditCase, int]]:
        """Each transfer against its state; with it, what it has in flight."""
        cases, judged = [], []
        strangers: list[AuditCase] = []
        for case in await then.cases(ids) if ids else ():
            look.touch(case, old=old)
            if case.row.flow in look.unknown:
                strangers += [] if old else [case]  # What is old was counted when it was new.
            elif problem := unreadable(case, self._flows.get(case.row.flow)):
                look.problems.append(finding(case, problem))
            else:
                cases.append(case)
        await self._count_unknown(strangers, look)
        found = await self._found(cases, look)
        for case in cases:
            verdict = judge(case, self._flows[case.row.flow], found[case.row.id])
            look.problems += verdict.problems
            judged.append((case, verdict.in_flight))
        return judged

    async def _count_unknown(self, cases: Sequence[AuditCase], look: AuditPass) -> None:
        core = None if self._core is None else self._core.name
        for case in cases:
            look.not_judged[case.row.flow] += 1
            ended = case.row.lane is None
            (look.taken if ended else look.in_flight).subtract(effects(case, core))
            if ended and look.full:
                look.problems += broken_chain(case)
        for piece in pieces([case for case in cases if case.row.lane is not None], MAX_OPERATIONS):
            look.versions |= {case.row.id: case.row.version for case in piece}
            if self._core is not None:
                answers = await self._core.query([(c.row.id, c.row.version) for c in piece])
                for case, answer in zip(piece, answers, strict=True):
                    done = unrecorded(case, answer, self._core.name, look.position)
                    look.in_flight.subtract(done)

    async def _found(
        self, cases: Sequence[AuditCase], look: AuditPass
    ) -> Mapping[UUID, dict[tuple[str, int], SystemRecord]]:
        """What each system holds under each key of the transfers."""
        found = {case.row.id: ledger_found(case, self._scope.ledger) for case in cases}
        wanted: list[ExpectedRecord] = []
        for case in cases:
            for key in self._keys(case):
                if self._core is not None and key.system == self._core.name:
                    wanted.append(key)
                elif key.entry is not None and (
                    key.system != self._scope.ledger or key.entry.actor
                ):
                    # What cannot be looked up is as the history has it, and so is what a person
                    # has answered: the sums will tell.
                    found[case.row.id].setdefault((key.system, key.version), key.by_history())
        for piece in pieces(wanted, MAX_OPERATIONS):
            assert self._core is not None
            look.read["keys"] += len(piece)
            answers = await self._core.query([(key.row.id, key.version) for key in piece])
            for key, answer in zip(piece, answers, strict=True):
                if (effect := key.by_answer(answer, look.position)) is not None:
                    found[key.row.id][key.system, key.version] = effect
        return found

    def _keys(self, case: AuditCase) -> Iterator[ExpectedRecord]:
        """Every key under which a system may hold something of a transfer."""
        row, flow = case.row, self._flows[case.row.flow]
        for kept in case.history:
            if (ask := flow.asked(kept.entry.path)) is not None:
                system = row.parties[ask.role].system
                yield ExpectedRecord(row, system, kept.entry.version, ask.verb, kept.entry)
                if self._core is not None and system != self._core.name and resolved(case):
                    yield ExpectedRecord(row, self._core.name, kept.entry.version, ask.verb, None)
        # Under the next version, only the system that the state asks may hold anything.
        ask = flow.asked([row.state])
        for system in {party.system for party in row.parties.values()}:
            yield ExpectedRecord(row, system, row.version, None if ask is None else ask.verb, None)

    async def _judge_owners(self, then: AuditSnapshot, look: AuditPass) -> None:
        """Each owner's books sum to nothing, together with what is in flight."""
        limit = min(MAX_OWNERS, MAX_OPERATIONS // max(len(look.core), 1))
        if not look.full:
            for owners in pieces(sorted(look.owners), limit):
                held = await then.owners_named(owners)
                await self._judge_piece(look, (owners, held))
            return
        after = -(2**63)
        while held := await then.owners(after, limit):
            owners = sorted({owner for owner, _ in held})
            after = owners[-1]
            await self._judge_piece(look, (owners, held))

    async def _judge_piece(
        self,
        look: AuditPass,
        piece: tuple[Sequence[int], Mapping[tuple[int, int], int]],
    ) -> None:
        since = look.since
        owners, sums, position = piece[0], Counter(piece[1]), look.position
        if self._core is not None and look.core:
            accounts = [Account(o, book, asset) for o in owners for book, asset in look.core]
            position, amounts = await self._core.balances(accounts)
            for account, amount in zip(accounts, amounts, strict=True):
                sums[account.owner, account.asset_id] += amount
        for key in sums:
            sums[key] += look.in_flight[key] + look.elsewhere.get(key, 0) + look.taken[key]
        look.read["owners"] += len(owners)
        if position > look.position and (since or any(sums.values())):
            # The core has gone on meanwhile: what it did is taken off again.
            async for event in self._events(position, look.position):
                since[event.owner, event.asset_id] += event.delta
        for key, total in sums.items():
            if gap := total - since[key]:
                problem = f"owner {key[0]}, asset {key[1]}: the books are off by {gap}"
                look.problems.append(f"{problem} smallest units")
