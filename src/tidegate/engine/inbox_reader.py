"""Turns the requests in the inbox into transfers, each exactly once, or into refusals."""

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
from tidegate.engine.write_batch import BatchSource, Creation, WriteBatch, retry_delay_s, write

NAME = "inbox"  # Its name in the hints that wake the engine.
MAX_BATCH = 512
GATHER_S = 0.01  # Pause after a small batch, so that new requests gather into the next one.
# A flow whose systems this process does not have is left to other processes for this time.
SKIP_FLOW_S = 5.0
LACKS_SYSTEM = "the process that claimed the request does not have all of its systems"
POSTPONED_CAP_S, DOUBLINGS = 300.0, 9
LOCKED_CAP_S = 15.0  # For a request that waits for a locked row.
KEPT_S = 30 * 86_400.0  # How long a decided request is kept.
FORGET_EVERY_S, FORGOTTEN = 60.0, 1_000

Form: TypeAlias = Callable[[InboxRequest], CheckedRequest | Refusal]


class FormInvalid(Exception):
    """A form of a program is wrong. The request waits, and an alert is sent."""


class InboxReader(Generic[Tx]):
    """A loop that claims waiting requests. After a crash they are due again."""

    def __init__(
        self, context: EngineContext[Tx], forms: Mapping[str, Form], scan_s: float
    ) -> None:
        self._context, self._forms, self._scan_s = context, forms, scan_s
        self._tables = {flow: table for flow, table in context.tables.items() if flow in forms}
        self._skipped_until_s: dict[str, float] = {}  # By flow.
        self._work = Wakeup()
        self._stopping = False
        self._next_forget_s = 0.0

    def look(self) -> None:
        self._work.set()

    def stop(self) -> None:
        self._stopping = True
        self._work.set()

    async def run(self) -> None:
        failures = 0
        while not self._stopping:
            self._work.clear()
            try:
                taken = await self._take_batch()
                failures = 0
            except StoreUnavailable:
                failures, taken = failures + 1, 0
            if 0 < taken < MAX_BATCH and not self._stopping:
                await asyncio.sleep(GATHER_S)
            if taken < MAX_BATCH and not self._stopping:
                pause = retry_delay_s(failures, self._context.dice) if failures else self._scan_s
                await self._work.wait(pause)

    async def _take_batch(self) -> int:
        inbox, now_s = self._context.store.inbox, self._context.clock()
        if not 0 < self._next_forget_s - now_s <= FORGET_EVERY_S:
            self._next_forget_s = now_s + FORGET_EVERY_S
            await inbox.forget(KEPT_S, FORGOTTEN)
        skipped = self._skipped_until_s
        flows = {f: table for f, table in self._tables.items() if skipped.get(f, now_s) <= now_s}
        claimed = await inbox.claim(flows, MAX_BATCH)
        judged = [(row, self._judge(row)) for row in claimed]
        for row, result in judged:
            if isinstance(result, FormInvalid):
                await postpone(self._context, row, result)
        if unserved := [row for row, result in judged if self._lacks_systems(result)]:
            # Due at once for other processes. This one must not claim them first again.
            skipped.update({row.flow: now_s + SKIP_FLOW_S for row in unserved})
            ids = [row.id for row in unserved]
            await inbox.postpone(ids, LACKS_SYSTEM, 0.0)
        decided = [
            (row, result)
            for row, result in judged
            if not (isinstance(result, FormInvalid) or self._lacks_systems(result))
        ]
        if decided:
            await self._write(decided)
        return len(claimed)

    def _lacks_systems(self, result: Request | Refusal | FormInvalid) -> bool:
        if not isinstance(result, Request):
            return False
        return not self._context.request_kinds.has_systems(result)

    async def _write(self, decided: Sequence[tuple[InboxRequest, Request | Refusal]]) -> None:
        batch, creations = [], []
        for row, result in decided:
            if isinstance(result, Refusal):
                transfer, creation = refused_creation(row, result)
            else:
                transfer = transfer_of(result, self._context.flows[result.flow], row.id)
                creation = Creation(result, inbox_request=row)
            batch.append(transfer)
            creations.append(creation)
        await write(
            self._context, _InboxBatches(self._context), WriteBatch(batch, creations=creations)
        )

    def _judge(self, row: InboxRequest) -> Request | Refusal | FormInvalid:
        """The request to make, or why it is refused.

        If this process lacks one of its systems, another process checks the rest.
        """
        if row.expired:
            return Refusal.EXPIRED
        try:
            checked = self._forms[row.flow](row)
        except Exception as fault:  # noqa: BLE001  A program's code must not stop other requests.
            return FormInvalid(f"the form of flow {row.flow} raised {fault!r}")
        if isinstance(checked, CheckedRequest) and not _matches(checked.request, row):
            problem = "returned a request with another owner, flow, asset or amount"
            return FormInvalid(f"the form of flow {row.flow} {problem}")
        if isinstance(checked, Refusal) or checked.veto is not None:
            return checked if isinstance(checked, Refusal) else checked.veto or Refusal.FORBIDDEN
        request = replace(checked.request, cid=row.cid, space=row.space, expires_us=row.expires_us)
        if not self._context.request_kinds.has_systems(request):
            return request
        return self._context.request_kinds.refusal(request) or request


def _matches(request: Request, row: InboxRequest) -> bool:
    """A form may choose the parties only. Owner, flow, asset and amount were authorised before."""
    returned = (request.owner, request.flow, request.asset_id, request.amount)
    return returned == (row.owner, row.flow, row.asset_id, row.amount)


def refused_creation(row: InboxRequest, refusal: Refusal) -> tuple[Transfer, Creation]:
    """A refused request as a creation without a transfer.

    It is written like the others: under the same locks, and if it cannot be written, it delays no
    other request.
    """
    request = Request(row.owner, row.flow, {}, row.asset_id, row.amount)
    kind = TransferKind(row.flow, "", None, (), row.asset_id).replace()
    creation = Creation(request, inbox_request=row, refusal=refusal)
    return new_transfer(request, kind, row.id), creation


class _InboxBatches(BatchSource, Generic[Tx]):
    """The batches of the inbox. A request that cannot be written waits longer each time."""

    def __init__(self, context: EngineContext[Tx]) -> None:
        self._context = context

    async def still_open(self, work: WriteBatch) -> WriteBatch:
        return work._replace(doubts=())  # The lock shows whether a request was decided.

    async def failed(self, work: WriteBatch, fault: Exception) -> None:
        rows = [c.inbox_request for c in work.creations if c.inbox_request is not None]
        if isinstance(fault, LockTimeout):
            # They need a locked row. If they were claimed again at once, they would wait again.
            delay_s = min(2.0 ** min(rows[0].attempts, DOUBLINGS), LOCKED_CAP_S)
            await self._context.store.inbox.postpone([row.id for row in rows], str(fault), delay_s)
        elif isinstance(fault, StoreFault) and fault.retryable:
            raise fault
        elif isinstance(fault, BelowFloor):
            refused = [refused_creation(row, Refusal.TOO_LATE) for row in rows]
            batch, creations = [t for t, _ in refused], [c for _, c in refused]
            await write(self._context, self, WriteBatch(batch, creations=creations))
        else:
            for row in rows:
                await postpone(self._context, row, fault)


async def postpone(context: EngineContext[Tx], row: InboxRequest, fault: Exception) -> None:
    """Send an alert, and delay the request, longer each time."""
    cause = f"the inbox request {row.id} cannot be decided: {fault}"
    context.alert(Alert(Alarm.PAGE, AlertCode.REQUEST_REFUSED, cause))
    delay_s = min(2.0 ** min(row.attempts, DOUBLINGS), POSTPONED_CAP_S)
    await context.store.inbox.postpone([row.id], str(fault), delay_s)
