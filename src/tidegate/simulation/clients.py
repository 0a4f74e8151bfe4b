"""Clients that request transfers and repeat each request until they get an outcome."""

from uuid import UUID

from tidegate.core.kind import Transfer
from tidegate.core.ports import StoreFault
from tidegate.core.refusals import Refusal
from tidegate.core.request import CheckedRequest, Request
from tidegate.engine.engine import Engine
from tidegate.engine.pending_request import Receipt
from tidegate.simulation.inbox import FLOWS, Programs, with_book_names
from tidegate.simulation.loop import done_within, sleep
from tidegate.simulation.store import SimTransaction
from tidegate.simulation.world import SimWorker, World
from tidegate.store.inbox import INBOX

CLIENT_S = 5.0
DAILY = (Refusal.DAILY_LIMIT_EXCEEDED, Refusal.DAILY_AMOUNT_EXCEEDED)


class Clients:
    """All clients of a world, and the transfer id that each of them received."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.transfer_ids: dict[tuple[int, str | None], UUID] = {}
        self.timeout_s = CLIENT_S
        self.inbox_share = 0.4  # The share of requests made by programs, if workers read the inbox.
        self.programs = Programs(world)

    async def request_transfer(self, request: Request, delay_s: float) -> None:
        """Repeat the request under one cid until there is an outcome, even if workers die."""
        world, dice = self.world, self.world.dice
        await sleep(delay_s)
        if world.variant.inbox and request.flow in FLOWS:
            request = with_book_names(request)
            if dice.random() < self.inbox_share:
                await self._request_by_inbox(request)
                return
        waits = dice.random() < 0.5
        while True:
            living = [worker for worker in world.living() if worker.engine is not None]
            reply = await self._attempt(dice.choice(living), request, waits) if living else None
            if isinstance(reply, Receipt) and reply.transfer.id not in world.auditor.transfers:
                reply = None  # Accepted but not created yet: ask again under the same cid.
            if isinstance(reply, Receipt):
                self._note_id(request, reply.transfer.id)
                if request.amount != reply.transfer.amount:
                    world.auditor.report(f"{request.cid} got a transfer of another amount")
                return
            if reply is Refusal.IDEMPOTENCY_MISMATCH:
                world.events["mismatch"] += 1
                return
            if reply in DAILY:
                world.limits.refused_by_limit(request)
                return
            if isinstance(reply, Refusal) and self.programs.refused(request):
                world.limits.refused(request)
                return
            await sleep(dice.random())

    async def _request_by_inbox(self, request: Request) -> None:
        outcome = await self.programs.request_transfer(request)
        if outcome is None:
            self.world.events["mismatch"] += 1
        elif isinstance(outcome, UUID):
            self._note_id(request, outcome)
        elif outcome in DAILY:
            self.world.limits.refused_by_limit(request)
        else:
            self.world.limits.refused(request)

    def _note_id(self, request: Request, id_: UUID) -> None:
        first = self.transfer_ids.setdefault((request.owner, request.cid), id_)
        if first != id_:
            self.world.auditor.report(f"{request.cid} became {first} and {id_}")

    async def _attempt(
        self, worker: SimWorker, request: Request, waits: bool
    ) -> Receipt | Refusal | None:
        """One call. The client has its own timeout, because a dead worker never answers."""
        engine = worker.engine
        assert engine is not None
        if not waits:
            work = engine.submit(request)
        elif request.cid is None or request.owner % 2:
            work = engine.transfer(request)
        else:
            work = self._twice(engine, request)
        doubts = worker.doubts
        task = self.world.loop.create_task(work, context=worker.context)
        done = await done_within(task, self.timeout_s)
        if not worker.alive or not done or isinstance(task.exception(), StoreFault):
            return None
        reply: Receipt | Refusal = task.result()
        if isinstance(reply, Receipt) and doubts == worker.doubts:
            self._check_acceptance(reply.transfer)
        return reply

    def _check_acceptance(self, transfer: Transfer) -> None:
        """No COMMIT is in doubt, so an accepted transfer exists or waits in the inbox."""
        tables = self.world.tables
        if (
            transfer.id not in self.world.auditor.transfers
            and transfer.id not in tables.rows[INBOX]
        ):
            self.world.auditor.report(f"{transfer.id} was accepted but does not exist")

    async def _twice(self, engine: Engine[SimTransaction], request: Request) -> Receipt | Refusal:
        """The same request twice in one batch: both must get the same reply."""
        replies = await engine.transfer_all([CheckedRequest(request), CheckedRequest(request)])
        for reply in replies:
            if isinstance(reply, StoreFault):
                raise reply
        first, second = [
            reply.transfer.id if isinstance(reply, Receipt) else reply for reply in replies
        ]
        if first != second:
            self.world.auditor.report(f"{request.cid} is {first} and {second} in one batch")
        assert not isinstance(replies[0], StoreFault)
        return replies[0]
