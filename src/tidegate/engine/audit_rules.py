"""Pure audit rules: is each transfer's money where its state places it, and do the sums agree."""

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
from tidegate.core.transfer import HistoryEntry, entry_hash
from tidegate.core.wire import CoreEvent
from tidegate.store.audit_progress import AuditProgress
from tidegate.store.audit_reads import AuditCase, AuditedRow, FlowLeg, LedgerRow, TransferFacts
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE

# The effect of a verb on the total of an account, in multiples of the amount.
UNITS = {
    Verb.DEBIT: -1,
    Verb.CREDIT: 1,
    Verb.REFUND: 1,
    Verb.HOLD: 0,
    Verb.CAPTURE: -1,
    Verb.RELEASE: 0,
}


class SystemRecord(NamedTuple):
    """What a system has recorded under one key."""

    result: str
    net: int  # The change of the account, held money included.
    moved: bool
    local: bool = False  # Written in the transaction that recorded the answer.


class TransferVerdict(NamedTuple):
    problems: Sequence[str]
    in_flight: int  # The amount that has left one system and has not arrived in another.


class AssetSums(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sums of one asset, as decimals. The gap is 0 if all deposited money is accounted for."""

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
    # By flow: the transfers of flows that this process does not know. Other processes judge them.
    not_judged: dict[str, int] = {}


@dataclass
class AuditPass:
    """The findings of one audit pass so far. Sums are keyed by owner and asset."""

    full: bool
    at_us: int = 0
    position: int = 0
    core: Mapping[tuple[str, int], int] = field(default_factory=dict)
    books: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    # Money in systems that the audit cannot read.
    other_systems: Mapping[tuple[int, int], int] = field(default_factory=dict)
    in_flight: Counter[tuple[int, int]] = field(default_factory=Counter)
    unknown: frozenset[str] = frozenset()  # Installed flows that this process does not know.
    not_judged: Counter[str] = field(default_factory=Counter)  # Transfers of these flows.
    versions: dict[UUID, int] = field(default_factory=dict)  # Of the open transfers of these flows.
    # What ended transfers of these flows took out of the ledger and the core.
    unknown_net: Counter[tuple[int, int]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    owners: set[int] = field(default_factory=set)
    # Per account: the balances after the operations that were read.
    balances: dict[Account, set[int]] = field(default_factory=dict)
    open: set[UUID] = field(default_factory=set)
    judged: set[UUID] = field(default_factory=set)
    core_changes: Counter[tuple[int, int]] = field(default_factory=Counter)  # After the position.
    reached: AuditProgress | None = None  # The progress of the sweep after this slice.
    created_us: Mapping[UUID, int] = field(default_factory=dict)  # Of recent transfers.
    read: Counter[str] = field(default_factory=Counter)  # How many rows and keys were read.

    def count(self, case: AuditCase, *, old: bool) -> None:
        """Count what was read, and note which owners and accounts must be checked."""
        self.read["transfers"] += 1
        self.read["history"] += len(case.history)
        self.read["operations"] += len(case.operations)
        if self.full or old:
            return  # Every owner and account is checked anyway, in this pass or in others.
        self.owners.update(party.owner for party in case.row.parties.values())
        for operation in case.operations:
            self.balances.setdefault(operation.account, set()).add(operation.balance_after)


def judge(
    case: AuditCase, flow: Flow, records: Mapping[tuple[str, int], SystemRecord]
) -> TransferVerdict:
    """Follow the money of one transfer by the systems' records, and compare it with the state.

    `records` is keyed by system and version. The rules come from the table of the flow: each verb
    moves money from one place to another, and each state has a place where the money is.
    """
    row, problems = case.row, list(_history_problems(case, flow))
    place, net, answered = Place.SOURCE, 0, set()
    for answer in case.history:
        entry, ask = answer.entry, flow.first_ask(answer.entry.path)
        if ask is None or ask.verb not in ACTIONS:
            continue
        key = (row.parties[ask.role].system, entry.version)
        if key not in records and has_resolution(case):
            # An operator may have named another party since this answer.
            key = next((other for other in records if other[1] == entry.version), key)
        answered.add(key)
        record = records.get(key)
        if record is None or record.result != entry.answer:
            recorded = "nothing" if record is None else f'"{record.result}"'
            problems.append(
                f"system {key[0]} has recorded {recorded} under version {key[1]}, "
                f'but the history contains "{entry.answer}"'
            )
        elif record.moved:
            action = ACTIONS[ask.verb]
            if place is not action.before:
                problems.append(
                    f"the {ask.verb} of version {key[1]} was done while the money was at {place}"
                )
            place = action.after[ask.role]
        net += 0 if record is None else record.net
    open_key = _open_key(case, flow)
    for key in records.keys() - answered:
        net += records[key].net
        # An external system may have answered before the store has recorded the answer. The ledger
        # cannot: it answers in the transaction that records the answer.
        if records[key].moved and (records[key].local or key != open_key):
            problems.append(
                f"system {key[0]} moved money under version {key[1]}, "
                "but the history contains no such answer"
            )
    if row.state in flow.rows and (expected := flow.row(row.state).place) is not place:
        problems.append(f"the money is at {place}, but the state requires it at {expected}")
    return TransferVerdict([finding(case, problem) for problem in problems], -net)


def finding(case: AuditCase, problem: str) -> str:
    return f"transfer {case.row.id} in {case.row.state}: {problem}"


def has_resolution(case: AuditCase) -> bool:
    """Whether an operator has answered a question instead of the system."""
    return any(answer.entry.actor for answer in case.history)


def _open_key(case: AuditCase, flow: Flow) -> tuple[str, int] | None:
    ask = flow.first_ask([case.row.state])
    return None if ask is None else (case.row.parties[ask.role].system, case.row.version)


def _history_problems(case: AuditCase, flow: Flow) -> Iterator[str]:
    row, entries = case.row, [answer.entry for answer in case.history]
    if row.state not in flow.rows:
        yield f"flow {row.flow} has no such state"
    elif flow.is_end(row.state) != (row.lane is None):
        yield f"the lane is {row.lane}, which does not fit the state"
    if [entry.version for entry in entries] != list(range(row.version)):
        yield f"the version is {row.version}, but the history has {len(entries)} answers"
    last = entries[-1].path[-1] if entries else flow.arrive(flow.first)[-1]
    if last != row.state:
        yield f"the history leads to state {last}"
    if (case.history[-1].hash if entries else GENESIS) != row.head_hash:
        yield "the head hash is not the hash of the last answer"
    if not row.keyed:
        yield "the key (cid) does not lead to this transfer"
    yield from _operation_problems(case, flow)


def _operation_problems(case: AuditCase, flow: Flow) -> Iterator[str]:
    """Check that each ledger operation is on the account of the party that was asked, and that a
    credit with a fee has both of its entries, or neither.
    """
    asks = {answer.entry.version: flow.first_ask(answer.entry.path) for answer in case.history}
    asks[case.row.version] = flow.first_ask([case.row.state])
    entries: dict[int, dict[int, LedgerRow]] = {}
    for operation in case.operations:
        entries.setdefault(operation.version, {})[operation.entry] = operation
    for version, found in entries.items():
        ask = asks.get(version)
        # A version that asks nothing has nothing to compare with. Money that moved under it is
        # found by its key.
        if ask is not None and not _as_asked(case.row, ask, found):
            yield f"the ledger operation of version {version} does not match its transfer"
        elif len({operation.result for operation in found.values()}) > 1:
            yield f"the entries of the ledger operation of version {version} differ in their result"


def _as_asked(row: AuditedRow, ask: Ask, found: Mapping[int, LedgerRow]) -> bool:
    verb, party = found[min(found)].verb, row.parties[ask.role]
    if ask.verb is Verb.REFUND and verb == Verb.CREDIT and SUSPENDED in row.parties:
        party = row.parties[SUSPENDED]  # The refund was redirected to the suspense book.
    elif verb != ask.verb:
        return False
    fee = row.fee if ask.verb is Verb.CREDIT and ask.role == "target" else 0
    expected = {0: (verb, Account(party.owner, party.book, row.asset_id), row.amount - fee)}
    if fee:
        fees = row.parties[FEES]
        expected[1] = (verb, Account(fees.owner, fees.book, row.asset_id), fee)
    return {n: (o.verb, o.account, o.amount) for n, o in found.items()} == expected


# For each verb of a core: the roles that may be asked to do it.
CORE_ROLES = {verb.name: tuple(action.after) for verb, action in ACTIONS.items()}


def core_fits(event: CoreEvent, core: str, row: TransferFacts) -> bool:
    """Whether a core operation matches its transfer: asset, amount, owner and book."""
    account = Party(core, event.book.name, event.owner)
    asked = (row.parties.get(role) for role in CORE_ROLES.get(event.verb.name, ()))
    return (event.asset_id, event.amount) == (row.asset_id, row.amount) and account in asked


def broken_chain(case: AuditCase) -> Iterator[str]:
    """The first answer in the history whose hash does not match, if any."""
    row = case.row
    head = GENESIS
    for entry, at_us, hashed in case.history:
        head = entry_hash(head, row.id, row.flow, entry, at_us)
        if head != hashed:
            yield finding(case, f"answer {entry.version} does not match its hash")
            return


def ledger_records(case: AuditCase, ledger: str) -> dict[tuple[str, int], SystemRecord]:
    """The ledger's records by key. The entries of one operation become one record."""
    records: dict[tuple[str, int], SystemRecord] = {}
    for operation in case.operations:
        net = operation.delta + operation.held_delta
        moved = operation.delta != 0 or operation.held_delta != 0
        if (other := records.get((ledger, operation.version))) is not None:
            net, moved = net + other.net, moved or other.moved
        record = SystemRecord(operation.result, net, moved, local=True)
        records[ledger, operation.version] = record
    return records


class ExpectedRecord(NamedTuple):
    """One key of one system, with its entry in the history if there is one."""

    row: AuditedRow
    system: str
    version: int
    verb: Verb | None
    entry: HistoryEntry | None

    def by_history(self) -> SystemRecord:
        assert self.entry is not None
        return self._record(self.entry.answer, self.entry.evidence)

    def by_answer(self, answer: Answer | None, position: int) -> SystemRecord | None:
        """What the core had recorded at a log position."""
        match answer:
            case Done(evidence) | Rejected(_, evidence):
                if int(evidence["position"]) > position:
                    return None
                return self._record("done" if isinstance(answer, Done) else "rejected", evidence)
            case None if self.entry is not None and self.entry.actor:
                return self.by_history()
            case Unknown() if self.entry is not None:
                # The core has retired the operation. It was audited before that.
                return self.by_history()
        return None

    def _record(self, result: str, evidence: Mapping[str, str]) -> SystemRecord:
        moved = result == "done" and evidence.get("delta") != "0" and self.verb in ACTIONS
        change = 0 if self.verb is None else UNITS.get(self.verb, 0) * self.row.amount
        # An end asks nothing: an operation under its version was not asked for by this transfer.
        moved = moved or (result == "done" and self.verb is None)
        return SystemRecord(result, change if moved else 0, moved)


def unreadable(case: AuditCase, flow: Flow | None) -> str | None:
    """Why a transfer cannot be judged; None if it can."""
    if flow is None:
        return f"this process does not know the flow {case.row.flow}"
    paths = [*(answer.entry.path for answer in case.history), (case.row.state,)]
    roles = {ask.role for path in paths if (ask := flow.first_ask(path)) is not None}
    roles |= {"source", FEES} if case.row.fee else {"source"}
    if missing := roles - case.row.parties.keys():
        return f"no party has the role {', '.join(sorted(missing))}"
    return None


def legs(flows: Mapping[str, Flow]) -> Sequence[FlowLeg]:
    """For each state that moves money: the role that is asked, and the units that it moves.

    The answer to a creation is stored under the first state.
    """
    found = []
    for flow in flows.values():
        for state in flow.rows:
            ask = flow.first_ask(flow.arrive(state))
            if ask is not None and UNITS.get(ask.verb):
                found.append(FlowLeg(flow.name, str(state), ask.role, UNITS[ask.verb]))
    return found


def gaps(found: AuditPass) -> Iterator[str]:
    for asset_id, sums in sorted(totals(found).items()):
        if gap := sums.total():
            yield (
                f"asset {asset_id}: the sum over all systems is off by {gap} smallest units "
                "(it must be 0)"
            )


def totals(found: AuditPass) -> Mapping[int, Counter[str]]:
    """How much of each asset is in which books. Deposits are negative, so that the sum is 0."""
    sums: dict[int, Counter[str]] = {}
    names = {FUNDING: "funding", OUTSIDE: "external", SUSPENSE: "suspense"}
    for (book, asset_id), (available, held) in found.books.items():
        sums.setdefault(asset_id, Counter())[names.get(book, "other")] += available
        sums[asset_id]["external" if book == OUTSIDE else "held"] += held
    for (book, asset_id), amount in found.core.items():
        sums.setdefault(asset_id, Counter())["spot" if book == "SPOT" else "other"] += amount
    for (_, asset_id), amount in found.in_flight.items():
        sums.setdefault(asset_id, Counter())["in_flight"] += amount
    for (_, asset_id), amount in (*found.other_systems.items(), *found.unknown_net.items()):
        sums.setdefault(asset_id, Counter())["other"] += amount
    return sums


def report(found: AuditPass, assets: Iterable[Asset], *, halted: bool) -> AuditReport:
    known = {asset.id: asset for asset in assets}
    reported = {}
    for asset_id, sums in sorted(totals(found).items()):
        if any(sums.values()):
            asset = known.get(asset_id)
            code = asset.code if asset else f"asset {asset_id}"
            reported[code] = _asset_sums(sums, asset.decimals if asset else 0)
    not_judged = dict(found.not_judged)
    return AuditReport(not found.problems, halted, reported, found.problems, not_judged)


def _asset_sums(sums: Counter[str], decimals: int) -> AssetSums:
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
