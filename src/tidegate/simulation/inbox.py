"""The inbox in the simulation: programs insert requests, and workers with faults process them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec.structs import replace

from tidegate.core.ids import id_time_us
from tidegate.core.ports import AfterLock, FlowChecksums, InboxRequest, LockTimeout, no_action
from tidegate.core.request import AccountType, Asset, Request
from tidegate.engine.inbox_reader import NAME, Form
from tidegate.engine.request_forms import forms_of
from tidegate.simulation.auditor import CORE, LEDGER
from tidegate.simulation.loop import sleep
from tidegate.simulation.workload import ASSET, SPOT
from tidegate.store.inbox import INBOX, MemoryInbox, MemoryInboxRow
from tidegate.store.memory_store import CIDS
from tidegate.store.memory_tables import TRANSFERS
from tidegate.store.memory_transaction import TwinTransaction
from tidegate.systems.ledger import FUNDING

if TYPE_CHECKING:
    from tidegate.simulation.store import WorkerStore
    from tidegate.simulation.world import World

FORMS = forms_of(
    {FUNDING: AccountType(LEDGER, FUNDING), SPOT: AccountType(CORE, SPOT)},
    {"A": Asset(ASSET, "A", 0)},
)
FLOWS = ("internal_transfer", "deposit", "external_withdrawal")
POLL_S = 0.25
EXPIRING_SHARE, EXPIRES_S = 0.15, 2.0


def forms(flows: Iterable[str]) -> Mapping[str, Form]:
    """The request forms of the flows that a worker knows."""
    return {flow: FORMS[flow] for flow in flows if flow in FLOWS}


def with_book_names(request: Request) -> Request:
    """The same request as a program writes it: with book names instead of parties."""
    books = {role: party.book for role, party in request.parties.items()}
    if request.flow == "internal_transfer":
        terms = {"from": books["source"], "to": books["target"]}
    else:
        terms = {"account": books["target" if request.flow == "deposit" else "source"]}
    return replace(request, terms=terms)


class WorkerInbox(MemoryInbox):
    """The inbox of one worker. A call or its reply may be lost, or the worker may die in it."""

    def __init__(self, store: "WorkerStore") -> None:
        super().__init__(store)
        self._worker_store = store

    async def claim(self, flows: FlowChecksums, limit: int) -> Sequence[InboxRequest]:
        fault = await self._worker_store.reach("inbox claim")
        claimed = await super().claim(flows, limit)
        await self._worker_store.returned(fault)
        return claimed

    async def take(
        self, tx: TwinTransaction, ids: Sequence[UUID], after_lock: AfterLock = no_action
    ) -> Sequence[UUID]:
        await self._worker_store.reach("take")
        return await super().take(tx, ids, after_lock)

    async def decide(self, tx: TwinTransaction, outcomes: Mapping[UUID, str | None]) -> None:
        await self._worker_store.reach("decide")
        await super().decide(tx, outcomes)

    async def postpone(self, ids: Sequence[UUID], reason: str, delay_s: float) -> None:
        await self._worker_store.reach("inbox")
        await super().postpone(ids, reason, delay_s)

    async def forget(self, older_s: float, limit: int) -> int:
        await self._worker_store.reach("inbox")
        return await super().forget(older_s, limit)


class InboxAuditor:
    """Checks that one transaction either creates each request's transfer or refuses it."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self.requested: set[UUID] = set()
        self.outcomes: dict[UUID, str] = {}
        self._created: set[UUID] = set()

    def committed(self, written: Mapping[tuple[str, Any], Any], at_us: int) -> None:
        for (table, id_), row in written.items():
            if table == INBOX and row.outcome is not None:
                if id_ in self.outcomes:
                    self._report(f"{id_} of the inbox was decided twice")
                self.outcomes[id_] = row.outcome
                expires_us = row.request.expires_us
                if row.outcome == "created" and expires_us is not None and expires_us <= at_us:
                    self._report(f"{id_} was created after it had expired")
                if (row.outcome == "created") is not ((TRANSFERS, id_) in written):
                    self._report(f"{id_} of the inbox is recorded as {row.outcome} but is not")
            elif table == TRANSFERS and id_ in self.requested and id_ not in self._created:
                self._created.add(id_)
                if (INBOX, id_) not in written:
                    self._report(f"{id_} was created, but its inbox row was not updated")


class Programs:
    """Programs that insert requests into the inbox, each in a transaction of its own."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.expiring = EXPIRING_SHARE  # The share of requests that expire soon.

    async def request_transfer(self, request: Request) -> UUID | str | None:
        """The transfer's id, the refusal, or None if the key belongs to another request."""
        world, dice = self.world, self.world.dice
        while True:
            try:
                id_ = await self._insert(request)
                break
            except LockTimeout:
                await sleep(dice.random())
        if id_ is None:
            return None
        for worker in world.living():
            if worker.engine is not None and dice.random() < 0.3:
                worker.engine.hint([NAME])
        while (outcome := self._outcome(id_)) is None:
            await sleep(POLL_S)
        return outcome

    def _outcome(self, id_: UUID) -> UUID | str | None:
        row = self.world.tables.rows[INBOX].get(id_)
        if id_ in self.world.auditor.transfers:
            return id_
        return None if row is None else row.refusal

    def refused(self, request: Request) -> bool:
        """Whether the inbox has refused a request with this key. A refusal is final."""
        _, id_ = self.world.tables.rows[CIDS].get((request.owner, request.key), (b"", None))
        row = self.world.tables.rows[INBOX].get(id_)
        return row is not None and row.refusal is not None

    def _expiry_us(self, now_us: int) -> int | None:
        """Let some requests expire soon: before the claim, or between claim and commit."""
        dice = self.world.dice
        if dice.random() >= self.expiring:
            return None
        self.world.events["inbox expiry"] += 1
        return now_us + round(dice.random() * EXPIRES_S * 1_000_000)

    async def _insert(self, request: Request) -> UUID | None:
        """The twin of the SQL function request_transfer. The transaction may roll back first."""
        world, dice = self.world, self.world.dice
        now_us = round(world.database_time() * 1_000_000)
        tx = TwinTransaction(world.tables, now_us, 2.0)
        at_ms = id_time_us(now_us, world.tables.floor) // 1000
        id_ = UUID(int=at_ms << 80 | dice.getrandbits(80))
        try:
            key = request.owner, request.key or str(id_)
            if not await tx.insert(CIDS, key, (request.fingerprint(), id_)):
                fingerprint, known = tx.get(CIDS, key)
                return known if fingerprint == request.fingerprint() else None
            inbox_request = InboxRequest(
                *(
                    id_,
                    request.owner,
                    request.flow,
                    request.asset_id,
                    request.amount,
                    request.terms or {},
                ),
                *(request.space, request.cid, self._expiry_us(now_us)),
                expired=False,
                attempts=0,
            )
            tx.put(INBOX, id_, MemoryInboxRow(inbox_request, now_us))
            await sleep(dice.random() * 0.5)
            if dice.random() < 0.1:
                raise LockTimeout("rolled back")
            world.events["inbox"] += 1
            world.inbox.requested.add(id_)
            tx.commit()
            return id_
        finally:
            tx.end()
