"""The audit: whether the books of all systems agree, and each transfer is where it says it is.

It reads the store at one moment, then the trading core at one position after it. What had ended
at that moment has all its operations in the core before that position, and is judged exactly.
What was still open, or not yet born, is counted by its operations on both sides: so that the sums
agree at any moment, however many answers are on their way.
"""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeVar
from uuid import UUID

from tidegate.core.answers import Alarm, Unreachable
from tidegate.core.flow import Flow
from tidegate.core.ports import Account, StoreFault
from tidegate.core.wire import MAX_OPERATIONS, Event
from tidegate.engine.alerts import Alert
from tidegate.engine.verdicts import (
    Found,
    Look,
    Report,
    Wanted,
    broken_chain,
    gaps,
    judge,
    ledger_found,
    legs,
    report,
    resolved,
    told,
    unreadable,
)
from tidegate.store.auditing import FIRST, Brake, Case, Moment, moment, pull_brake, seen
from tidegate.store.postgres import PostgresStore
from tidegate.systems.trading import Totals, Trading

PAGE = 500  # Transfers read at once: judging them takes a few hundredths of a second.
MAX_OWNERS = 2_000
MAX_VIOLATIONS = 100
EVENTS_S = 30.0
# A birth commits within this time after its id was made, or the next full audit finds it.
SLACK_US = 60 * 1_000_000
MISSES = 10  # Audits in a row that could not be made, until somebody is called.
LAST = UUID(int=2**128 - 1)

_T = TypeVar("_T")


class Scope(NamedTuple):
    """What the audit may take for granted of the set-up."""

    ledger: str = "ledger"
    others: bool = False  # Systems take part that cannot be read: their answers are counted.
    owners_alone: bool = True  # No transfer moves money from one owner to another.


class Memory(NamedTuple):
    """What an audit leaves to the next: what it need not read again."""

    floor: UUID
    open: frozenset[UUID]
    judged: frozenset[UUID]


class Ear:
    """Follows the operations of a core. Each belongs to a transfer that exists, or is strange."""

    def __init__(self, store: PostgresStore, core: Trading) -> None:
        self._store, self._core = store, core
        self._stream: AsyncGenerator[tuple[int, Sequence[Event]], None] | None = None
        self._reached = 0
        self._ahead: Sequence[Event] = ()
        self._strange: dict[tuple[UUID, int], Event] = {}

    async def hear(self, upto: int, begin: int) -> AsyncIterator[Event]:
        """What was done up to a position, since the last time; the first time, since `begin`."""
        if self._stream is None:
            self._stream, self._reached, self._ahead = self._core.follow(begin), begin, ()
        while self._ahead or self._reached < upto:
            if not self._ahead:
                self._reached, self._ahead = await self._next(begin)
            cut = bisect_right(self._ahead, upto, key=lambda event: event.position)
            await self._compare(self._ahead[:cut])
            events, self._ahead = self._ahead[:cut], self._ahead[cut:]
            for event in events:
                yield event
            if self._ahead:
                break

    async def _next(self, begin: int) -> tuple[int, Sequence[Event]]:
        """The next piece. A stream that was lost meanwhile is taken up again, once."""
        for _ in range(2):
            if self._stream is None:
                self._stream = self._core.follow(max(begin, self._reached))
            try:
                async with asyncio.timeout(EVENTS_S):
                    return await anext(self._stream)
            except (Unreachable, TimeoutError, StopAsyncIteration) as lost:
                self._stream, why = None, lost
        raise Unreachable(f"the core's operations cannot be followed: {why}") from why

    async def _compare(self, events: Sequence[Event]) -> None:
        rows = await seen(self._store, list({event.transfer_id for event in events}))
        for event in events:
            version, *rest = rows.get(event.transfer_id, (-1, 0, 0))
            fits = event.version <= version and rest == [event.asset_id, event.amount]
            if not fits and len(self._strange) < MAX_VIOLATIONS:
                self._strange[event.transfer_id, event.version] = event

    def strange(self) -> Iterator[str]:
        for (id_, version), event in self._strange.items():
            yield (
                f"the core's operation {event.position} ({event.verb.name.lower()} of "
                f"{event.amount} under {id_}, {version}) is of no transfer that we know"
            )

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None


class Audit:
    """One at a time; `full` from the first transfer on, else what is new since the last one."""

    def __init__(
        self,
        store: PostgresStore,
        core: Trading | None,
        flows: Mapping[str, Flow],
        alert: Callable[[Alert], None],
        scope: Scope | None = None,
    ) -> None:
        self._store, self._core, self._flows, self._alert = store, core, flows, alert
        self._scope = scope or Scope()
        self._ear = None if core is None else Ear(store, core)
        self._memory: Memory | None = None
        self._told: frozenset[str] = frozenset()
        self._turn = asyncio.Lock()
        self.read: Counter[str] = Counter()  # What the last look has read, so far.
        self.last: Report | None = None

    async def run(self, *, full: bool = True) -> Report:
        """Look; whatever is wrong stays wrong, so look again; then pull the brake."""
        async with self._turn:
            found = await self.look(full=full)
            if found.problems:
                found = await self.look(full=full)
            while found.problems and not await self._halt(found):
                found = await self.look(full=full)
            if not found.problems:
                self._told = frozenset()
            assets = await self._store.assets()
            halted = await self._store.halted()
            self.last = report(found, assets.values(), halted=halted)
            return self.last

    async def audit_forever(self, every_s: float = 30.0) -> None:
        missed = 0
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.run(full=False)
                missed = 0
            except (Unreachable, StoreFault) as fault:
                missed += 1
                if missed == MISSES:
                    cause = f"{missed} audits in a row could not be made: {fault}"
                    self._alert(Alert(Alarm.PAGE, cause))

    async def close(self) -> None:
        if self._ear is not None:
            await self._ear.close()

    async def _halt(self, found: Look) -> bool:
        """Not if somebody has resumed since: what was found may be what has been set right."""
        problems = found.problems
        reason = f"{problems[0]} ({len(problems)} found)"
        brake = await pull_brake(self._store, reason, found.at_us)
        if brake is Brake.RELEASED:
            return False
        if brake is Brake.PULLED or not self._told.issuperset(problems):
            self._told = frozenset(problems)
            cause = f"the audit found {len(problems)} violations: {problems[0]}"
            self._alert(Alert(Alarm.HALT, cause))
        return True

    async def look(self, *, full: bool) -> Look:
        """Judge, and tell nobody."""
        look = Look(full)
        self.read = look.read
        before = await self._totals()
        async with moment(self._store) as then:
            look.at_us = then.at_us
            look.books = await then.books()
            look.position, look.core = await self._totals()
            later: dict[UUID, list[Event]] = {}
            async for event in self._events(look.position, before.position):
                if event.position > before.position:
                    later.setdefault(event.transfer_id, []).append(event)
            if self._scope.others or self._core is None:
                look.elsewhere = await then.elsewhere(legs(self._flows), self._readable())
            await self._judge_open(then, look, later)
            await self._judge_ended(then, look)
            await self._judge_accounts(then, look)
            if self._scope.owners_alone:
                await self._judge_owners(then, look)
        look.problems += [*gaps(look), *(self._ear.strange() if self._ear else ())]
        if not look.problems:
            floor = _floor(then.at_us)
            recent = frozenset(id_ for id_ in look.judged if id_ > floor)
            self._memory = Memory(floor, frozenset(look.open), recent)
        look.problems = look.problems[:MAX_VIOLATIONS]
        return look

    async def _totals(self) -> Totals:
        return Totals(0, {}) if self._core is None else await self._core.totals()

    def _readable(self) -> Sequence[str]:
        return [self._scope.ledger, *([] if self._core is None else [self._core.name])]

    async def _events(self, upto: int, begin: int) -> AsyncIterator[Event]:
        if self._ear is not None:
            async with aclosing(self._ear.hear(upto, begin)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event

    async def _judge_open(self, then: Moment, look: Look, later: dict[UUID, list[Event]]) -> None:
        """Count what is in flight: by what both systems did, and not by states."""
        after = FIRST
        while ids := await then.open_ids(after, PAGE):
            after = ids[-1]
            look.open.update(ids)
            for case, in_flight in await self._judge(then, look, ids):
                row = case.row
                done = sum(e.delta for e in later.pop(row.id, ()) if e.version > row.version)
                look.in_flight[row.parties["source"].owner, row.asset_id] += in_flight - done
        born = await then.known(list(later)) if later else frozenset()
        for id_ in later.keys() - born:
            for event in later[id_]:
                look.owners.add(event.owner)
                look.in_flight[event.owner, event.asset_id] -= event.delta

    async def _judge_ended(self, then: Moment, look: Look) -> None:
        memory = self._memory or Memory(_floor(then.at_us), frozenset(), frozenset())
        skipped: frozenset[UUID] = frozenset()
        after = FIRST
        if not look.full:
            after, skipped = memory.floor, memory.judged | memory.open
            look.judged |= memory.judged
            for ids in _pieces(sorted(memory.open - look.open), PAGE):
                await self._judge_ends(then, look, ids)
        while page := await then.ids(after, PAGE):
            if look.full:
                await self._judge_range(then, look, (after, page[-1][0]))
            after = page[-1][0]
            await self._judge_ends(then, look, [i for i, end in page if end and i not in skipped])
        if look.full:
            await self._judge_range(then, look, (after, LAST))

    async def _judge_ends(self, then: Moment, look: Look, ids: Sequence[UUID]) -> None:
        look.judged.update(ids)
        for case, in_flight in await self._judge(then, look, ids):
            captured = any(kept.entry.verb == "capture" for kept in case.history)
            if in_flight and not captured:
                look.problems.append(told(case, f"{in_flight} of it went missing"))
            if look.full:
                look.problems += broken_chain(case)

    async def _judge_range(self, then: Moment, look: Look, span: tuple[UUID, UUID]) -> None:
        for id_ in await then.strays(*span):
            look.problems.append(f"transfer {id_} has answers or operations, and does not exist")

    async def _judge(self, then: Moment, look: Look, ids: Sequence[UUID]) -> list[tuple[Case, int]]:
        """Each transfer against its state; with it, what it has in flight."""
        cases, judged = [], []
        for case in await then.cases(ids) if ids else ():
            look.touch(case)
            if problem := unreadable(case, self._flows.get(case.row.flow)):
                look.problems.append(told(case, problem))
            else:
                cases.append(case)
        found = await self._found(cases, look)
        for case in cases:
            verdict = judge(case, self._flows[case.row.flow], found[case.row.id])
            look.problems += verdict.problems
            judged.append((case, verdict.in_flight))
        return judged

    async def _found(
        self, cases: Sequence[Case], look: Look
    ) -> Mapping[UUID, dict[tuple[str, int], Found]]:
        """What each system holds under each key of the transfers."""
        found = {case.row.id: ledger_found(case, self._scope.ledger) for case in cases}
        wanted: list[Wanted] = []
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
        for piece in _pieces(wanted, MAX_OPERATIONS):
            assert self._core is not None
            look.read["keys"] += len(piece)
            answers = await self._core.query([(key.row.id, key.version) for key in piece])
            for key, answer in zip(piece, answers, strict=True):
                if (effect := key.by_answer(answer, look.position)) is not None:
                    found[key.row.id][key.system, key.version] = effect
        return found

    def _keys(self, case: Case) -> Iterator[Wanted]:
        """Every key under which a system may hold something of a transfer."""
        row, flow = case.row, self._flows[case.row.flow]
        for kept in case.history:
            if (ask := flow.asked(kept.entry.path)) is not None:
                system = row.parties[ask.role].system
                yield Wanted(row, system, kept.entry.version, ask.verb, kept.entry)
                if self._core is not None and system != self._core.name and resolved(case):
                    yield Wanted(row, self._core.name, kept.entry.version, ask.verb, None)
        # Under the next version, only the system that the state asks may hold anything.
        ask = flow.asked([row.state])
        for system in {party.system for party in row.parties.values()}:
            yield Wanted(row, system, row.version, None if ask is None else ask.verb, None)

    async def _judge_accounts(self, then: Moment, look: Look) -> None:
        """Each account of the ledger follows from its operations."""
        suspects: list[int] | None = None
        if not look.full:
            owners = sorted({account.owner for account in look.ends})
            suspects = []
            for piece in _pieces(owners, MAX_OWNERS):
                for account, available in (await then.available(piece)).items():
                    # The last operation may be one that we have not read: then all are.
                    if available not in look.ends.get(account, {available}):
                        suspects.append(account.owner)
        if suspects is None or suspects:
            for owner, book, asset_id in await then.accounts(suspects):
                problem = f"account {book} of {owner}, asset {asset_id}"
                look.problems.append(f"{problem}: it does not follow from its operations")

    async def _judge_owners(self, then: Moment, look: Look) -> None:
        """Each owner's books sum to nothing, together with what is in flight."""
        since: Counter[tuple[int, int]] = Counter()
        limit = min(MAX_OWNERS, MAX_OPERATIONS // max(len(look.core), 1))
        if not look.full:
            for owners in _pieces(sorted(look.owners), limit):
                held = await then.owners_named(owners)
                await self._judge_piece(look, (owners, held), since)
            return
        after = -(2**63)
        while held := await then.owners(after, limit):
            owners = sorted({owner for owner, _ in held})
            after = owners[-1]
            await self._judge_piece(look, (owners, held), since)

    async def _judge_piece(
        self,
        look: Look,
        piece: tuple[Sequence[int], Mapping[tuple[int, int], int]],
        since: Counter[tuple[int, int]],
    ) -> None:
        owners, sums, position = piece[0], Counter(piece[1]), look.position
        if self._core is not None and look.core:
            accounts = [Account(o, book, asset) for o in owners for book, asset in look.core]
            position, amounts = await self._core.balances(accounts)
            for account, amount in zip(accounts, amounts, strict=True):
                sums[account.owner, account.asset_id] += amount
        for key in sums:
            sums[key] += look.in_flight[key] + look.elsewhere.get(key, 0)
        look.read["owners"] += len(owners)
        if position > look.position and (since or any(sums.values())):
            # The core has gone on meanwhile: what it did is taken off again.
            async for event in self._events(position, look.position):
                since[event.owner, event.asset_id] += event.delta
        for key, total in sums.items():
            if gap := total - since[key]:
                problem = f"owner {key[0]}, asset {key[1]}: the books are off by {gap}"
                look.problems.append(f"{problem} smallest units")


def _floor(at_us: int) -> UUID:
    return UUID(int=max((at_us - SLACK_US) // 1000, 0) << 80)


def _pieces(values: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (values[start : start + size] for start in range(0, len(values), size))
