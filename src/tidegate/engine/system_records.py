"""Reads what each system has recorded under the keys of audited transfers."""

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from tidegate.core.flow import Flow
from tidegate.core.wire import MAX_OPERATIONS
from tidegate.engine.account_checks import chunks
from tidegate.engine.audit_rules import (
    AuditPass,
    ExpectedRecord,
    SystemRecord,
    has_resolution,
    ledger_records,
)
from tidegate.store.audit_reads import AuditCase
from tidegate.systems.trading import TradingCoreClient


class SystemRecords:
    """Reads the ledger's records from the audited cases, and the core's by queries to it."""

    def __init__(
        self, core: TradingCoreClient | None, flows: Mapping[str, Flow], ledger: str
    ) -> None:
        self._core, self._flows, self._ledger = core, flows, ledger

    async def read(
        self, cases: Sequence[AuditCase], found: AuditPass
    ) -> Mapping[UUID, dict[tuple[str, int], SystemRecord]]:
        """For each transfer: by system and version, what the system has recorded."""
        records = {case.row.id: ledger_records(case, self._ledger) for case in cases}
        in_core: list[ExpectedRecord] = []
        for case in cases:
            for key in self._keys(case):
                if self._core is not None and key.system == self._core.name:
                    in_core.append(key)
                elif key.entry is not None and (key.system != self._ledger or key.entry.actor):
                    # A system that cannot be read is taken to hold what the history contains. So
                    # is an answer given by an operator. If it is wrong, the sums show it.
                    records[case.row.id].setdefault((key.system, key.version), key.by_history())
        for keys in chunks(in_core, MAX_OPERATIONS):
            assert self._core is not None
            found.read["keys"] += len(keys)
            answers = await self._core.query([(key.row.id, key.version) for key in keys])
            for key, answer in zip(keys, answers, strict=True):
                if (record := key.by_answer(answer, found.position)) is not None:
                    records[key.row.id][key.system, key.version] = record
        return records

    def _keys(self, case: AuditCase) -> Iterator[ExpectedRecord]:
        """Every key under which a system may have recorded something of a transfer."""
        row, flow = case.row, self._flows[case.row.flow]
        for answered in case.history:
            entry = answered.entry
            if (ask := flow.first_ask(entry.path)) is not None:
                system = row.parties[ask.role].system
                yield ExpectedRecord(row, system, entry.version, ask.verb, entry)
                core = None if self._core is None else self._core.name
                if core is not None and system != core and has_resolution(case):
                    yield ExpectedRecord(row, core, entry.version, ask.verb, None)
        # Under the next version, only the system that the state asks may have recorded anything.
        ask = flow.first_ask([row.state])
        for system in {party.system for party in row.parties.values()}:
            yield ExpectedRecord(row, system, row.version, None if ask is None else ask.verb, None)
