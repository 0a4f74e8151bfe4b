"""The inbox's requests become transfers: each exactly once, or it is refused and says why."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeAlias

from msgspec.structs import replace

from tidegate.core.answers import Alarm
from tidegate.core.ports import BelowFloor, InboxRequest, StoreFault, StoreUnavailable, Tx
from tidegate.core.refusals import Refusal
from tidegate.core.request import Checked, Request, transfer_of
from tidegate.engine.alerts import Alert, Code
from tidegate.engine.bell import Bell
from tidegate.engine.context import Means
from tidegate.engine.settle import decide_requests
from tidegate.engine.write import Creation, Source, Work, pause_s, write

NAME = "inbox"  # By which hints name it.
MAX_BATCH = 512
GATHER_S = 0.01  # After some were taken, so that those who come meanwhile are taken together.
ELSEWHERE_S = 5.0  # For so long, flows for which this process lacked a system are left to others.
POSTPONED_CAP_S, DOUBLINGS = 300.0, 9
KEPT_S = 30 * 86_400.0  # How long a decided request is kept.
FORGET_EVERY_S, FORGOTTEN = 60.0, 1_000

Form: TypeAlias = Callable[[InboxRequest], Checked | Refusal]
Refuse: TypeAlias = Callable[[Sequence[tuple[InboxRequest, Refusal]]], Awaitable[None]]


class FormFault(Exception):
    """A program's form is wrong. Its request waits, and somebody is called."""


class InboxReader(Generic[Tx]):
    """One loop that takes what waits. A crash at any point leaves requests that are simply due."""

    def __init__(self, means: Means[Tx], forms: Mapping[str, Form], scan_s: float) -> None:
        self._means, self._forms, self._scan_s = means, forms, scan_s
        self._tables = {flow: table for flow, table in means.tables.items() if flow in forms}
        self._left_until_s: dict[str, float] = {}  # By flow.
        self._work = Bell()
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
                pause = pause_s(failures, self._means.dice) if failures else self._scan_s
                await self._work.rest(pause)

    async def _turn(self) -> int:
        inbox, now_s = self._means.store.inbox, self._means.clock()
        if not 0 < self._next_forget_s - now_s <= FORGET_EVERY_S:
            self._next_forget_s = now_s + FORGET_EVERY_S
            await inbox.forget(KEPT_S, FORGOTTEN)
        left = self._left_until_s
        flows = {f: table for f, table in self._tables.items() if left.get(f, now_s) <= now_s}
        asked = await inbox.claim(flows, MAX_BATCH)
        judged = [(each, self._judge(each)) for each in asked]
        for each, said in judged:
            if isinstance(said, FormFault):
                await postpone(self._means, each, said)
        if refused := [(each, said) for each, said in judged if isinstance(said, Refusal)]:
            await self._refuse(refused)
        made = [(each, said) for each, said in judged if isinstance(said, Request)]
        here = [(each, said) for each, said in made if self._means.origins.has_systems(said)]
        if elsewhere := [each for each, said in made if not self._means.origins.has_systems(said)]:
            # Due at once, but not for us: whoever has the system must not be outrun again.
            left.update({each.flow: now_s + ELSEWHERE_S for each in elsewhere})
            ids = [each.id for each in elsewhere]
            await inbox.postpone(ids, "a process lacked a system for it", 0.0)
        if here:
            await self._write(here)
        return len(asked)

    def _judge(self, asked: InboxRequest) -> Request | Refusal | FormFault:
        """As it is asked for, if it may be. What it lacks a system for is another's to judge."""
        if asked.expired:
            return Refusal.EXPIRED
        try:
            checked = self._forms[asked.flow](asked)
        except Exception as fault:  # noqa: BLE001  A program's code must not stop others.
            return FormFault(f"the form of {asked.flow} raised {fault!r}")
        if isinstance(checked, Checked) and not _is_about(checked.request, asked):
            return FormFault(f"the form of {asked.flow} made another request than was asked for")
        if isinstance(checked, Refusal) or checked.veto is not None:
            return checked if isinstance(checked, Refusal) else checked.veto or Refusal.FORBIDDEN
        request = replace(
            checked.request, cid=asked.cid, space=asked.space, expires_us=asked.expires_us
        )
        if not self._means.origins.has_systems(request):
            return request
        return self._means.origins.refusal(request) or request

    async def _refuse(self, refused: Sequence[tuple[InboxRequest, Refusal]]) -> None:
        """By halves, if it cannot be done together: one must not hold up the others."""
        try:
            await self._refuse_together(refused)
        except StoreFault as fault:
            if fault.retryable:
                raise
            if len(refused) == 1:
                await postpone(self._means, refused[0][0], fault)
                return
            half = len(refused) // 2
            await self._refuse(refused[:half])
            await self._refuse(refused[half:])

    async def _refuse_together(self, refused: Sequence[tuple[InboxRequest, Refusal]]) -> None:
        means = self._means
        async with means.store.transaction() as tx:
            ids = [asked.id for asked, _ in refused]
            undecided = frozenset(await means.store.inbox.take(tx, ids))
            still = [(asked, refusal) for asked, refusal in refused if asked.id in undecided]
            if still:
                await decide_requests(means, tx, (), still)

    async def _write(self, made: Sequence[tuple[InboxRequest, Request]]) -> None:
        flows = self._means.flows
        batch = [transfer_of(request, flows[request.flow], asked.id) for asked, request in made]
        creations = [Creation(request, asked=asked) for asked, request in made]
        source = _Requests(self._means, self._refuse)
        await write(self._means, source, Work(batch, creations=creations))


def _is_about(request: Request, asked: InboxRequest) -> bool:
    """A form names parties. Whose request it is, and of how much, was granted and reserved."""
    made = (request.owner, request.flow, request.asset_id, request.amount)
    return made == (asked.owner, asked.flow, asked.asset_id, asked.amount)


class _Requests(Source, Generic[Tx]):
    """The inbox's batches: what cannot be written waits longer each time."""

    def __init__(self, means: Means[Tx], refuse: Refuse) -> None:
        self._means, self._refuse = means, refuse

    async def still_open(self, work: Work) -> Work:
        return work._replace(doubts=())  # Whether it was decided is seen when it is locked.

    async def failed(self, work: Work, fault: Exception) -> None:
        if isinstance(fault, StoreFault) and fault.retryable:
            raise fault
        for creation in work.creations:
            assert creation.asked is not None
            if isinstance(fault, BelowFloor):
                await self._refuse([(creation.asked, Refusal.TOO_LATE)])
                continue
            await postpone(self._means, creation.asked, fault)


async def postpone(means: Means[Tx], asked: InboxRequest, fault: Exception) -> None:
    """It waits longer each time, and somebody is called."""
    cause = f"a request of the inbox cannot be decided: {asked.id}: {fault}"
    means.alert(Alert(Alarm.PAGE, Code.REQUEST_REFUSED, cause))
    delay_s = min(2.0 ** min(asked.attempts, DOUBLINGS), POSTPONED_CAP_S)
    await means.store.inbox.postpone([asked.id], str(fault), delay_s)
