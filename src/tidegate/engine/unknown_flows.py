"""Transfers of flows that this process does not know: not judged, and counted by their effects.

Another version, or a program with a flow of its own, works on them. What they did to the ledger and
to the core is taken as it is, so that the sums still show what is wrong with everything else.
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


def unknown(installed: FlowChecksums, ours: FlowChecksums) -> frozenset[str]:
    """The installed flows whose table is not one of ours."""
    return frozenset(name for name, known in installed.items() if ours.get(name) != known)


def effects(case: AuditCase, core: str | None) -> Effects:
    """What a transfer has done to the ledger, and to the core as its history has it."""
    found: Effects = Counter()
    kept = {operation.version for operation in case.operations}
    for operation in case.operations:
        account = operation.account
        found[account.owner, account.asset_id] += operation.delta + operation.held_delta
    for entry in (answered.entry for answered in case.history):
        units = UNITS.get(Verb(entry.verb), 0) if entry.verb in set(Verb) else 0
        if entry.version in kept or entry.answer != "done" or not _moved(entry.evidence):
            continue
        party = _asked(case, undo=entry.verb != Verb.CREDIT, core=core)
        if units and party is not None:
            found[party.owner, case.row.asset_id] += units * case.row.amount
    return found


def unrecorded(case: AuditCase, answer: Answer | None, core: str, position: int) -> Effects:
    """What the core has done under the open question, as far as it was read.

    The core knows three verbs. Where nothing has left the source, it was a debit; else money came
    back or arrived.
    """
    found: Effects = Counter()
    if not isinstance(answer, Done) or not _moved(answer.evidence):
        return found
    if int(answer.evidence["position"]) > position:
        return found
    gone = -sum(
        UNITS.get(Verb(kept.entry.verb), 0)
        for kept in case.history
        if kept.entry.answer == "done" and _moved(kept.entry.evidence)
    )
    party = _asked(case, undo=not gone, core=core) or _asked(case, undo=bool(gone), core=core)
    if party is not None:
        found[party.owner, case.row.asset_id] += case.row.amount * (1 if gone else -1)
    return found


def _moved(evidence: Mapping[str, str]) -> bool:
    return evidence.get("delta") != "0"


def _asked(case: AuditCase, *, undo: bool, core: str | None) -> Party | None:
    """Who was asked, if it was the core: the source, but for a credit."""
    for role, party in sorted(case.row.parties.items(), key=lambda item: item[0] != "target"):
        if (role == "source") == undo and party.system == core:
            return party
    return None
