"""The inbox's requests become transfers: each exactly once, or it is refused and says why."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeAlias

from msgspec.structs import replace

from tidegate.core.answers import Alarm
from tidegate.core.kind import Transfer, TransferKind
from tidegate.core.ports import (
    BelowFloor,
    InboxRequest,
    LockTimeout,
    StoreFault,
    StoreUnavailable,
    Tx,
)
from tidegate.core.refusals import Refusal
from tidegate.core.request import CheckedRequest, Request, new_transfer, transfer_of
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.context import EngineContext
from tidegate.engine.wakeup import Wakeup
from tidegate.engine.write_batch import BatchSource, Creation, WriteBatch, pause_s, write

NAME = "inbox"  # By which hints name it.
MAX_BATCH = 512
GATHER_S = 0.01  # After some were taken, so that those who come meanwhile are taken together.
ELSEWHERE_S = 5.0  # For so long, flows for which this process lacked a system are left to others.
POSTPONED_CAP_S, DOUBLINGS = 300.0, 9
LOCKED_CAP_S = 15.0  # Of what waits for a row that somebody holds.
KEPT_S = 30 * 86_400.0  # How long a decided request is kept.
FORGET_EVERY_S, FORGOTTEN = 60.0, 1_000

Form: TypeAlias = Callable[[InboxRequest], CheckedRequest | Refusal]


class FormInvalid(Exception):
    """A program's form is wrong. Its request waits, and somebody is called."""


class InboxReader(Generic[Tx]):
    """One loop that takes what waits. A crash at any point leaves requests that are simply due."""

    def __init__(
        self, context: EngineContext[Tx], forms: Mapping[str, Form], scan_s: float
    ) -> None:
        self._context, self._forms, self._scan_s = context, forms, scan_s
        self._tables = {flow: table for flow, table in context.tables.items() if flow in forms}
        self._left_until_s: dict[str, float] = {}  # By flow.
        self._work = Wakeup()
        self._stopping = False
        self._next_forget_s = 0.0

    def look(self) -> None:
        self._work.ring()

    def stop(self) -> None:
        self._stopping = True
        self._work.ring()

    async def run(self) -> None:
        failures = 0
        while not self._stopping:
            self._work.silence()
            try:
                taken = await self._turn()
                failures = 0
            except StoreUnavailable:
                failures, taken = failures + 1, 0
            if 0 < taken < MAX_BATCH and not self._stopping:
                await asyncio.sleep(GATHER_S)
            if taken < MAX_BATCH and not self._stopping:
                pause = pause_s(failures, self._context.dice) if failures else self._scan_s
                await self._work.rest(pause)

    async def _turn(self) -> int:
        inbox, now_s = self._context.store.inbox, self._context.clock()
        if not 0 < self._next_forget_s - now_s <= FORGET_EVERY_S:
            self._next_forget_s = now_s + FORGET_EVERY_S
            await inbox.forget(KEPT_S, FORGOTTEN)
        left = self._left_until_s
        flows = {f: table for f, table in self._tables.items() if left.get(f, now_s) <= now_s}
        asked = await inbox.claim(flows, MAX_BATCH)
        judged = [(each, self._judge(each)) for each in asked]
        for each, said in judged:
            if isinstance(said, FormInvalid):
                await postpone(self._context, each, said)
        if elsewhere := [each for each, said in judged if self._is_elsewhere(said)]:
            # Due at once, but not for us: whoever has the system must not be outrun again.
            left.update({each.flow: now_s + ELSEWHERE_S for each in elsewhere})
            ids = [each.id for each in elsewhere]
            await inbox.postpone(ids, "a process lacked a system for it", 0.0)
        made = [
            (each, said)
            for each, said in judged
            if not (isinstance(said, FormInvalid) or self._is_elsewhere(said))
        ]
        if made:
            await self._write(made)
        return len(asked)

    def _is_elsewhere(self, said: Request | Refusal | FormInvalid) -> bool:
        return isinstance(said, Request) and not self._context.origins.has_systems(said)

    async def _write(self, made: Sequence[tuple[InboxRequest, Request | Refusal]]) -> None:
        batch, creations = [], []
        for asked, said in made:
            if isinstance(said, Refusal):
                transfer, creation = refused_creation(asked, said)
            else:
                transfer = transfer_of(said, self._context.flows[said.flow], asked.id)
                creation = Creation(said, asked=asked)
            batch.append(transfer)
            creations.append(creation)
        await write(
            self._context, _InboxBatches(self._context), WriteBatch(batch, creations=creations)
        )

    def _judge(self, asked: InboxRequest) -> Request | Refusal | FormInvalid:
        """As it is asked for, if it may be. What it lacks a system for is another's to judge."""
        if asked.expired:
            return Refusal.EXPIRED
        try:
            checked = self._forms[asked.flow](asked)
        except Exception as fault:  # noqa: BLE001  A program's code must not stop others.
            return FormInvalid(f"the form of {asked.flow} raised {fault!r}")
        if isinstance(checked, CheckedRequest) and not _is_about(checked.request, asked):
            return FormInvalid(f"the form of {asked.flow} made another request than was asked for")
        if isinstance(checked, Refusal) or checked.veto is not None:
            return checked if isinstance(checked, Refusal) else checked.veto or Refusal.FORBIDDEN
        request = replace(
            checked.request, cid=asked.cid, space=asked.space, expires_us=asked.expires_us
        )
        if not self._context.origins.has_systems(request):
            return request
        return self._context.origins.refusal(request) or request


def _is_about(request: Request, asked: InboxRequest) -> bool:
    """A form names parties. Whose request it is, and of how much, was granted and reserved."""
    made = (request.owner, request.flow, request.asset_id, request.amount)
    return made == (asked.owner, asked.flow, asked.asset_id, asked.amount)


def refused_creation(asked: InboxRequest, refusal: Refusal) -> tuple[Transfer, Creation]:
    """A request that becomes no transfer. It goes the same way, so that its refusal is written
    under the same locks, and one that cannot be written holds up no other.
    """
    request = Request(asked.owner, asked.flow, {}, asked.asset_id, asked.amount)
    kind = TransferKind(asked.flow, "", None, (), asked.asset_id).but()
    return new_transfer(request, kind, asked.id), Creation(request, asked=asked, refusal=refusal)


class _InboxBatches(BatchSource, Generic[Tx]):
    """The inbox's batches: what cannot be written waits longer each time."""

    def __init__(self, context: EngineContext[Tx]) -> None:
        self._context = context

    async def still_open(self, work: WriteBatch) -> WriteBatch:
        return work._replace(doubts=())  # Whether it was decided is seen when it is locked.

    async def failed(self, work: WriteBatch, fault: Exception) -> None:
        asked = [creation.asked for creation in work.creations if creation.asked is not None]
        if isinstance(fault, LockTimeout):
            # Somebody holds a row that these need. Claimed again at once, they would only wait.
            delay_s = min(2.0 ** min(asked[0].attempts, DOUBLINGS), LOCKED_CAP_S)
            await self._context.store.inbox.postpone([a.id for a in asked], str(fault), delay_s)
        elif isinstance(fault, StoreFault) and fault.retryable:
            raise fault
        elif isinstance(fault, BelowFloor):
            refused = [refused_creation(each, Refusal.TOO_LATE) for each in asked]
            batch, creations = [t for t, _ in refused], [c for _, c in refused]
            await write(self._context, self, WriteBatch(batch, creations=creations))
        else:
            for each in asked:
                await postpone(self._context, each, fault)


async def postpone(context: EngineContext[Tx], asked: InboxRequest, fault: Exception) -> None:
    """It waits longer each time, and somebody is called."""
    cause = f"a request of the inbox cannot be decided: {asked.id}: {fault}"
    context.alert(Alert(Alarm.PAGE, AlertCode.REQUEST_REFUSED, cause))
    delay_s = min(2.0 ** min(asked.attempts, DOUBLINGS), POSTPONED_CAP_S)
    await context.store.inbox.postpone([asked.id], str(fault), delay_s)
