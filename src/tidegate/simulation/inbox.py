"""The inbox in the simulation: programs put requests there, and workers that fail take them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec.structs import replace

from tidegate.core.ids import id_time_us
from tidegate.core.ports import Behind, FlowChecksums, InboxRequest, LockTimeout, nothing
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
    from tidegate.simulation.store import NodeStore
    from tidegate.simulation.world import World

FORMS = forms_of(
    {FUNDING: AccountType(LEDGER, FUNDING), SPOT: AccountType(CORE, SPOT)},
    {"A": Asset(ASSET, "A", 0)},
)
FLOWS = ("internal_transfer", "deposit", "external_withdrawal")
LOOK_S = 0.25
EXPIRING, EXPIRES_S = 0.15, 2.0


def forms(flows: Iterable[str]) -> Mapping[str, Form]:
    """Of the flows that a worker knows."""
    return {flow: FORMS[flow] for flow in flows if flow in FLOWS}


def in_words(wish: Request) -> Request:
    """The same wish, as a program spells it that names no parties."""
    books = {role: party.book for role, party in wish.parties.items()}
    if wish.flow == "internal_transfer":
        terms = {"from": books["source"], "to": books["target"]}
    else:
        terms = {"account": books["target" if wish.flow == "deposit" else "source"]}
    return replace(wish, terms=terms)


class NodeInbox(MemoryInbox):
    """Of one worker: each call is lost before or after it is done, or the worker dies."""

    def __init__(self, store: "NodeStore") -> None:
        super().__init__(store)
        self._reached = store

    async def claim(self, flows: FlowChecksums, limit: int) -> Sequence[InboxRequest]:
        fault = await self._reached.reach("inbox claim")
        claimed = await super().claim(flows, limit)
        await self._reached.returned(fault)
        return claimed

    async def take(
        self, tx: TwinTransaction, ids: Sequence[UUID], behind: Behind = nothing
    ) -> Sequence[UUID]:
        await self._reached.reach("take")
        return await super().take(tx, ids, behind)

    async def decide(self, tx: TwinTransaction, outcomes: Mapping[UUID, str | None]) -> None:
        await self._reached.reach("decide")
        await super().decide(tx, outcomes)

    async def postpone(self, ids: Sequence[UUID], reason: str, delay_s: float) -> None:
        await self._reached.reach("inbox")
        await super().postpone(ids, reason, delay_s)

    async def forget(self, older_s: float, limit: int) -> int:
        await self._reached.reach("inbox")
        return await super().forget(older_s, limit)


class InboxAuditor:
    """Each request becomes one transfer under its id, or is refused; by one transaction."""

    def __init__(self, blame: Callable[[str], None]) -> None:
        self._blame = blame
        self.asked: set[UUID] = set()
        self.outcomes: dict[UUID, str] = {}
        self._made: set[UUID] = set()

    def committed(self, written: Mapping[tuple[str, Any], Any], at_us: int) -> None:
        for (table, id_), row in written.items():
            if table == INBOX and row.outcome is not None:
                if id_ in self.outcomes:
                    self._blame(f"{id_} of the inbox was decided twice")
                self.outcomes[id_] = row.outcome
                expires_us = row.request.expires_us
                if row.outcome == "created" and expires_us is not None and expires_us <= at_us:
                    self._blame(f"{id_} was made after it had expired")
                if (row.outcome == "created") is not ((TRANSFERS, id_) in written):
                    self._blame(f"{id_} of the inbox is {row.outcome}, and that is not true")
            elif self.asked and table == TRANSFERS and id_ in self.asked and id_ not in self._made:
                self._made.add(id_)
                if (INBOX, id_) not in written:
                    self._blame(f"{id_} was made, and the inbox does not say so")


class Programs:
    """Who writes requests into the database, each in a transaction of its own."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.expiring = EXPIRING  # How often a request expires soon.

    async def ask(self, wish: Request) -> UUID | str | None:
        """The id that it has become, why it was refused, or nothing if its key is another's."""
        world, dice = self.world, self.world.dice
        while True:
            try:
                id_ = await self._put(wish)
                break
            except LockTimeout:
                await sleep(dice.random())
        if id_ is None:
            return None
        for node in world.living():
            if node.engine is not None and dice.random() < 0.3:
                node.engine.hint([NAME])
        while (found := self._outcome(id_)) is None:
            await sleep(LOOK_S)
        return found

    def _outcome(self, id_: UUID) -> UUID | str | None:
        row = self.world.tables.rows[INBOX].get(id_)
        if id_ in self.world.auditor.lives:
            return id_
        return None if row is None else row.refusal

    def refused(self, wish: Request) -> bool:
        """Whether its key stands for a request that was refused, which is for ever."""
        _, id_ = self.world.tables.rows[CIDS].get((wish.owner, wish.key), (b"", None))
        row = self.world.tables.rows[INBOX].get(id_)
        return row is not None and row.refusal is not None

    def _expiry_us(self, now_us: int) -> int | None:
        """Some expire soon: before they are claimed, or between their claim and the commit."""
        dice = self.world.dice
        if dice.random() >= self.expiring:
            return None
        self.world.meddling["inbox expiry"] += 1
        return now_us + round(dice.random() * EXPIRES_S * 1_000_000)

    async def _put(self, wish: Request) -> UUID | None:
        """As request_transfer does. It may be rolled back at first, with all that it did."""
        world, dice = self.world, self.world.dice
        now_us = round(world.database_time() * 1_000_000)
        tx = TwinTransaction(world.tables, now_us, 2.0)
        at_ms = id_time_us(now_us, world.tables.floor) // 1000
        id_ = UUID(int=at_ms << 80 | dice.getrandbits(80))
        try:
            key = wish.owner, wish.key or str(id_)
            if not await tx.insert(CIDS, key, (wish.fingerprint(), id_)):
                fingerprint, known = tx.get(CIDS, key)
                return known if fingerprint == wish.fingerprint() else None
            asked = InboxRequest(
                *(id_, wish.owner, wish.flow, wish.asset_id, wish.amount, wish.terms or {}),
                *(wish.space, wish.cid, self._expiry_us(now_us)),
                expired=False,
                attempts=0,
            )
            tx.put(INBOX, id_, MemoryInboxRow(asked, now_us))
            await sleep(dice.random() * 0.5)
            if dice.random() < 0.1:
                raise LockTimeout("rolled back")
            world.meddling["inbox"] += 1
            world.inbox.asked.add(id_)
            tx.commit()
            return id_
        finally:
            tx.end()
