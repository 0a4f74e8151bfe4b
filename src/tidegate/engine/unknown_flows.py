"""Counts the effects of transfers whose flow this process does not know, without judging them.

Another version, or a program with its own flow, works on such transfers. Their effects on the
ledger and on the core are accepted as they are, so that the sums still show any other problem.
"""

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from tidegate.core.answers import Answer, Done
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.ports import FlowChecksums
from tidegate.engine.audit_rules import UNITS
from tidegate.store.audit_reads import AuditCase

Effects: TypeAlias = Counter[tuple[int, int]]  # By owner and asset.


def unknown_flows(installed: FlowChecksums, known: FlowChecksums) -> frozenset[str]:
    """The installed flows whose table differs from the one that this process knows."""
    return frozenset(name for name, checksum in installed.items() if known.get(name) != checksum)


def recorded_effects(case: AuditCase, core: str | None) -> Effects:
    """The transfer's effects on the ledger by its operations, and on the core by its history."""
    effects: Effects = Counter()
    in_ledger = {operation.version for operation in case.operations}
    for operation in case.operations:
        account = operation.account
        effects[account.owner, account.asset_id] += operation.delta + operation.held_delta
    for entry in (answer.entry for answer in case.history):
        units = UNITS.get(Verb(entry.verb), 0) if entry.verb in set(Verb) else 0
        if entry.version in in_ledger or entry.answer != "done" or not _moved(entry.evidence):
            continue
        party = _core_party(case, source=entry.verb != Verb.CREDIT, core=core)
        if units and party is not None:
            effects[party.owner, case.row.asset_id] += units * case.row.amount
    return effects


def open_effects(case: AuditCase, answer: Answer | None, core: str, position: int) -> Effects:
    """The core's effect under the open question, if it was done up to the log position.

    The core knows three verbs. If no money has left the source yet, the question was a debit.
    Otherwise it was a refund or a credit.
    """
    effects: Effects = Counter()
    if not isinstance(answer, Done) or not _moved(answer.evidence):
        return effects
    if int(answer.evidence["position"]) > position:
        return effects
    debited = -sum(
        UNITS.get(Verb(answered.entry.verb), 0)
        for answered in case.history
        if answered.entry.answer == "done" and _moved(answered.entry.evidence)
    )
    party = _core_party(case, source=not debited, core=core)
    party = party or _core_party(case, source=bool(debited), core=core)
    if party is not None:
        effects[party.owner, case.row.asset_id] += case.row.amount * (1 if debited else -1)
    return effects


def _moved(evidence: Mapping[str, str]) -> bool:
    return evidence.get("delta") != "0"


def _core_party(case: AuditCase, *, source: bool, core: str | None) -> Party | None:
    """The source, or else the target before any other role, if that party is in the core."""
    for role, party in sorted(case.row.parties.items(), key=lambda item: item[0] != "target"):
        if (role == "source") == source and party.system == core:
            return party
    return None
