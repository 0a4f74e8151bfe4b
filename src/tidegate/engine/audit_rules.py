"""Whether a transfer is where its state says, and whether the books agree: pure rules."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import msgspec

from tidegate.core.account import Account
from tidegate.core.answers import Answer, Done, Rejected, Unknown
from tidegate.core.flow import ACTIONS, FEES, Ask, Flow, Place, Verb
from tidegate.core.kind import GENESIS, Party
from tidegate.core.money import format_amount
from tidegate.core.request import Asset
from tidegate.core.transfer import SUSPENSE as SUSPENDED
from tidegate.core.transfer import HistoryEntry, chained
from tidegate.core.wire import CoreEvent
from tidegate.store.audit_progress import AuditProgress
from tidegate.store.audit_reads import AuditCase, AuditedRow, FlowLeg, LedgerRow, TransferFacts
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE

# What a verb does to the sum of an account, in units of the amount.
UNITS = {
    Verb.DEBIT: -1,
    Verb.CREDIT: 1,
    Verb.REFUND: 1,
    Verb.HOLD: 0,
    Verb.CAPTURE: -1,
    Verb.RELEASE: 0,
}


class SystemRecord(NamedTuple):
    """What a system holds under one key."""

    result: str
    net: int  # What it added to the account, held money included.
    moved: bool
    local: bool = False  # Done in the transaction that recorded the answer.


class TransferVerdict(NamedTuple):
    problems: Sequence[str]
    in_flight: int  # What has left one system and has not arrived in another.


class AssetSums(msgspec.Struct, frozen=True, omit_defaults=True):
    """One asset, in decimals. The gap is nothing when all that came in is somewhere."""

    funding: str
    spot: str
    held: str
    in_flight: str
    external: str
    gap: str
    suspense: str | None = None
    other: str | None = None


class AuditReport(msgspec.Struct, frozen=True, omit_defaults=True):
    ok: bool
    halted: bool
    assets: dict[str, AssetSums]
    violations: list[str]
    # Transfers of flows that this process does not know, by flow. Others judge them.
    not_judged: dict[str, int] = {}


@dataclass
class AuditPass:
    """One audit, as far as it has come. Owner and asset are a key of sums."""

    full: bool
    at_us: int = 0
    position: int = 0
    core: Mapping[tuple[str, int], int] = field(default_factory=dict)
    books: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    elsewhere: Mapping[tuple[int, int], int] = field(default_factory=dict)
    in_flight: Counter[tuple[int, int]] = field(default_factory=Counter)
    unknown: frozenset[str] = frozenset()  # Flows that are installed and not ours.
    not_judged: Counter[str] = field(default_factory=Counter)  # Transfers of these.
    versions: dict[UUID, int] = field(default_factory=dict)  # Of those that are open.
    # What those that have ended took out of the systems that are read.
    taken: Counter[tuple[int, int]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    owners: set[int] = field(default_factory=set)
    ends: dict[Account, set[int]] = field(default_factory=dict)
    open: set[UUID] = field(default_factory=set)
    judged: set[UUID] = field(default_factory=set)
    since: Counter[tuple[int, int]] = field(default_factory=Counter)  # Done after the position.
    reached: AuditProgress | None = None  # How far a slice of the full audit has come.
    created: Mapping[UUID, int] = field(default_factory=dict)  # When, of what is new.
    read: Counter[str] = field(default_factory=Counter)

    def touch(self, case: AuditCase, *, old: bool) -> None:
        self.read["transfers"] += 1
        self.read["history"] += len(case.history)
        self.read["operations"] += len(case.operations)
        if self.full or old:
            return  # Every owner and every account will be looked at, in this look or in others.
        self.owners.update(party.owner for party in case.row.parties.values())
        for operation in case.operations:
            self.ends.setdefault(operation.account, set()).add(operation.balance_after)


def judge(
    case: AuditCase, flow: Flow, found: Mapping[tuple[str, int], SystemRecord]
) -> TransferVerdict:
    """Follow the money of one transfer by what the systems hold, and compare with its state.

    `found` is by system and version. The rules are the flow's own table: each verb takes money
    from one place to one other, and a state says where the money is.
    """
    row, problems = case.row, list(_history_problems(case, flow))
    place, net, answered = Place.SOURCE, 0, set()
    for kept in case.history:
        entry, ask = kept.entry, flow.asked(kept.entry.path)
        if ask is None or ask.verb not in ACTIONS:
            continue
        key = (row.parties[ask.role].system, entry.version)
        if key not in found and resolved(case):
            # A person may have named another party since this was answered.
            key = next((other for other in found if other[1] == entry.version), key)
        answered.add(key)
        effect = found.get(key)
        if effect is None or effect.result != entry.answer:
            holds = "nothing" if effect is None else effect.result
            problems.append(f"{key[0]} holds {holds} under {key[1]}, not {entry.answer}")
        elif effect.moved:
            action = ACTIONS[ask.verb]
            if place is not action.before:
                problems.append(f"the {ask.verb} under {key[1]} found the money at {place}")
            place = action.after[ask.role]
        net += 0 if effect is None else effect.net
    open_key = _open_key(case, flow)
    for key in found.keys() - answered:
        net += found[key].net
        # A system outside may have answered what the store has not recorded yet. Ours cannot.
        if found[key].moved and (found[key].local or key != open_key):
            problems.append(f"{key[0]} moved money under {key[1]}, and no answer says so")
    if row.state in flow.rows and flow.row(row.state).place is not place:
        problems.append(f"its money is at {place}")
    return TransferVerdict([finding(case, problem) for problem in problems], -net)


def finding(case: AuditCase, problem: str) -> str:
    return f"transfer {case.row.id} in {case.row.state}: {problem}"


def resolved(case: AuditCase) -> bool:
    """Whether a person has answered in the place of a system."""
    return any(kept.entry.actor for kept in case.history)


def _open_key(case: AuditCase, flow: Flow) -> tuple[str, int] | None:
    ask = flow.asked([case.row.state])
    return None if ask is None else (case.row.parties[ask.role].system, case.row.version)


def _history_problems(case: AuditCase, flow: Flow) -> Iterator[str]:
    row, entries = case.row, [kept.entry for kept in case.history]
    if row.state not in flow.rows:
        yield f"{row.flow} has no such state"
    elif flow.is_end(row.state) != (row.lane is None):
        yield f"its lane is {row.lane}"
    if [entry.version for entry in entries] != list(range(row.version)):
        yield f"its version is {row.version}, and its history has {len(entries)} answers"
    last = entries[-1].path[-1] if entries else flow.arrive(flow.first)[-1]
    if last != row.state:
        yield f"its history leads to {last}"
    if (case.history[-1].hash if entries else GENESIS) != row.head_hash:
        yield "its head is not the hash of its last answer"
    if not row.keyed:
        yield "its key does not lead to it"
    yield from _operation_problems(case, flow)


def _operation_problems(case: AuditCase, flow: Flow) -> Iterator[str]:
    """Each operation of the ledger is on the account of the party that was asked, and both entries
    of a credit with a fee are there, or neither is."""
    asks = {kept.entry.version: flow.asked(kept.entry.path) for kept in case.history}
    asks[case.row.version] = flow.asked([case.row.state])
    entries: dict[int, dict[int, LedgerRow]] = {}
    for operation in case.operations:
        entries.setdefault(operation.version, {})[operation.entry] = operation
    for version, found in entries.items():
        ask = asks.get(version)
        # Under a version that asks nothing there is nothing to compare; money that moved under it
        # is found by its key.
        if ask is not None and not _as_asked(case.row, ask, found):
            yield f"the ledger's operation {version} is about something else"
        elif len({operation.result for operation in found.values()}) > 1:
            yield f"the entries of the ledger's operation {version} differ in their result"


def _as_asked(row: AuditedRow, ask: Ask, found: Mapping[int, LedgerRow]) -> bool:
    verb, party = found[min(found)].verb, row.parties[ask.role]
    if ask.verb is Verb.REFUND and verb == Verb.CREDIT and SUSPENDED in row.parties:
        party = row.parties[SUSPENDED]  # It was re-pointed.
    elif verb != ask.verb:
        return False
    fee = row.fee if ask.verb is Verb.CREDIT and ask.role == "target" else 0
    expected = {0: (verb, Account(party.owner, party.book, row.asset_id), row.amount - fee)}
    if fee:
        fees = row.parties[FEES]
        expected[1] = (verb, Account(fees.owner, fees.book, row.asset_id), fee)
    return {n: (o.verb, o.account, o.amount) for n, o in found.items()} == expected


# Whom each verb of a core may have been asked of.
CORE_ROLES = {verb.name: tuple(action.after) for verb, action in ACTIONS.items()}


def core_fits(event: CoreEvent, core: str, row: TransferFacts) -> bool:
    """Whether an operation of a core is about its transfer: asset, amount, owner and book."""
    account = Party(core, event.book.name, event.owner)
    asked = (row.parties.get(role) for role in CORE_ROLES.get(event.verb.name, ()))
    return (event.asset_id, event.amount) == (row.asset_id, row.amount) and account in asked


def broken_chain(case: AuditCase) -> Iterator[str]:
    """The first answer that its hash does not vouch for, if there is one."""
    row = case.row
    head = GENESIS
    for entry, at_us, hashed in case.history:
        head = chained(head, row.id, row.flow, entry, at_us)
        if head != hashed:
            yield finding(case, f"answer {entry.version} is not what was hashed")
            return


def ledger_found(case: AuditCase, ledger: str) -> dict[tuple[str, int], SystemRecord]:
    """By key: the entries of one operation together."""
    found: dict[tuple[str, int], SystemRecord] = {}
    for o in case.operations:
        net, moved = o.delta + o.held_delta, o.delta != 0 or o.held_delta != 0
        if (other := found.get((ledger, o.version))) is not None:
            net, moved = net + other.net, moved or other.moved
        found[ledger, o.version] = SystemRecord(o.result, net, moved, local=True)
    return found


class ExpectedRecord(NamedTuple):
    """One key of one system, and what the history says of it, if it says anything."""

    row: AuditedRow
    system: str
    version: int
    verb: Verb | None
    entry: HistoryEntry | None

    def by_history(self) -> SystemRecord:
        assert self.entry is not None
        return self._found(self.entry.answer, self.entry.evidence)

    def by_answer(self, answer: Answer | None, position: int) -> SystemRecord | None:
        """As the core holds it at a position."""
        match answer:
            case Done(evidence) | Rejected(_, evidence):
                if int(evidence["position"]) > position:
                    return None
                return self._found("done" if isinstance(answer, Done) else "rejected", evidence)
            case None if self.entry is not None and self.entry.actor:
                return self.by_history()
            case Unknown() if self.entry is not None:
                # Retired: it is there no more, and was looked at when it was.
                return self.by_history()
        return None

    def _found(self, result: str, evidence: Mapping[str, str]) -> SystemRecord:
        moved = result == "done" and evidence.get("delta") != "0" and self.verb in ACTIONS
        change = 0 if self.verb is None else UNITS.get(self.verb, 0) * self.row.amount
        # An end asks nothing: what is done under its version is somebody else's doing.
        moved = moved or (result == "done" and self.verb is None)
        return SystemRecord(result, change if moved else 0, moved)


def unreadable(case: AuditCase, flow: Flow | None) -> str | None:
    """Why a transfer cannot be judged at all, if so."""
    if flow is None:
        return f"there is no flow {case.row.flow} here"
    paths = [*(kept.entry.path for kept in case.history), (case.row.state,)]
    roles = {ask.role for path in paths if (ask := flow.asked(path)) is not None}
    roles |= {"source", FEES} if case.row.fee else {"source"}
    if missing := roles - case.row.parties.keys():
        return f"nobody plays {', '.join(sorted(missing))}"
    return None


def legs(flows: Mapping[str, Flow]) -> Sequence[FlowLeg]:
    """Which state asks which role to move what; a birth's answer is kept under its first state."""
    found = []
    for flow in flows.values():
        for state in flow.rows:
            ask = flow.asked(flow.arrive(state))
            if ask is not None and UNITS.get(ask.verb):
                found.append(FlowLeg(flow.name, str(state), ask.role, UNITS[ask.verb]))
    return found


def gaps(look: AuditPass) -> Iterator[str]:
    for asset_id, sums in sorted(totals(look).items()):
        if gap := sums.total():
            yield f"asset {asset_id}: the books of all systems are off by {gap} smallest units"


def totals(look: AuditPass) -> Mapping[int, Counter[str]]:
    """Where the money of each asset is. What came in is negative, so that all sum to nothing."""
    sums: dict[int, Counter[str]] = {}
    names = {FUNDING: "funding", OUTSIDE: "external", SUSPENSE: "suspense"}
    for (book, asset_id), (available, held) in look.books.items():
        sums.setdefault(asset_id, Counter())[names.get(book, "other")] += available
        sums[asset_id]["external" if book == OUTSIDE else "held"] += held
    for (book, asset_id), amount in look.core.items():
        sums.setdefault(asset_id, Counter())["spot" if book == "SPOT" else "other"] += amount
    for (_, asset_id), amount in look.in_flight.items():
        sums.setdefault(asset_id, Counter())["in_flight"] += amount
    for (_, asset_id), amount in (*look.elsewhere.items(), *look.taken.items()):
        sums.setdefault(asset_id, Counter())["other"] += amount
    return sums


def report(look: AuditPass, assets: Iterable[Asset], *, halted: bool) -> AuditReport:
    known = {asset.id: asset for asset in assets}
    shown = {}
    for asset_id, sums in sorted(totals(look).items()):
        if any(sums.values()):
            asset = known.get(asset_id)
            code = asset.code if asset else f"asset {asset_id}"
            shown[code] = _shown(sums, asset.decimals if asset else 0)
    return AuditReport(not look.problems, halted, shown, look.problems, dict(look.not_judged))


def _shown(sums: Counter[str], decimals: int) -> AssetSums:
    gap, other, suspense = sums.total(), sums["other"], sums["suspense"]
    return AssetSums(
        funding=format_amount(sums["funding"], decimals),
        spot=format_amount(sums["spot"], decimals),
        held=format_amount(sums["held"], decimals),
        in_flight=format_amount(sums["in_flight"], decimals),
        external=format_amount(-sums["external"], decimals),
        gap=format_amount(gap, decimals) if gap else "0",
        suspense=format_amount(suspense, decimals) if suspense else None,
        other=format_amount(other, decimals) if other else None,
    )
