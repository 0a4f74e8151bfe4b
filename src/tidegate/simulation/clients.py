"""Who asks for transfers, again and again, until somebody says what became of each."""

from uuid import UUID

from tidegate.core.kind import Transfer
from tidegate.core.ports import StoreFault
from tidegate.core.refusals import Refusal
from tidegate.core.request import CheckedRequest, Request
from tidegate.engine.engine import Engine
from tidegate.engine.pending_request import Receipt
from tidegate.simulation.inbox import FLOWS, Programs, in_words
from tidegate.simulation.loop import done_within, sleep
from tidegate.simulation.store import SimTransaction
from tidegate.simulation.world import SimWorker, World
from tidegate.store.inbox import INBOX

CLIENT_S = 5.0
DAILY = (Refusal.DAILY_LIMIT_EXCEEDED, Refusal.DAILY_AMOUNT_EXCEEDED)


class Clients:
    """All clients of a world, and what they were told."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.told: dict[tuple[int, str | None], UUID] = {}
        self.patience_s = CLIENT_S
        self.by_inbox = 0.4  # How often a program asks, where workers look into the inbox.
        self.programs = Programs(world)

    async def ask(self, wish: Request, delay_s: float) -> None:
        """Asks with one cid until somebody says what became of it, whoever dies meanwhile."""
        world, dice = self.world, self.world.dice
        await sleep(delay_s)
        if world.terms.inbox and wish.flow in FLOWS:
            wish = in_words(wish)
            if dice.random() < self.by_inbox:
                await self._by_inbox(wish)
                return
        waits = dice.random() < 0.5
        while True:
            living = [node for node in world.living() if node.engine is not None]
            said = await self._attempt(dice.choice(living), wish, waits) if living else None
            if isinstance(said, Receipt) and said.transfer.id not in world.auditor.lives:
                said = None  # Accepted, and not there yet: ask again under the same cid.
            if isinstance(said, Receipt):
                self._tell(wish, said.transfer.id)
                if wish.amount != said.transfer.amount:
                    world.auditor.blame(f"{wish.cid} is told of a transfer of another amount")
                return
            if said is Refusal.IDEMPOTENCY_MISMATCH:
                world.meddling["mismatch"] += 1
                return
            if said in DAILY:
                world.limits.told(wish)
                return
            if isinstance(said, Refusal) and self.programs.refused(wish):
                world.limits.turn_away(wish)
                return
            await sleep(dice.random())

    async def _by_inbox(self, wish: Request) -> None:
        outcome = await self.programs.ask(wish)
        if outcome is None:
            self.world.meddling["mismatch"] += 1
        elif isinstance(outcome, UUID):
            self._tell(wish, outcome)
        elif outcome in DAILY:
            self.world.limits.told(wish)
        else:
            self.world.limits.turn_away(wish)

    def _tell(self, wish: Request, id_: UUID) -> None:
        first = self.told.setdefault((wish.owner, wish.cid), id_)
        if first != id_:
            self.world.auditor.blame(f"{wish.cid} became {first} and {id_}")

    async def _attempt(
        self, node: SimWorker, wish: Request, waits: bool
    ) -> Receipt | Refusal | None:
        """The client's patience is its own: a process that dies says nothing any more."""
        engine = node.engine
        assert engine is not None
        if not waits:
            work = engine.submit(wish)
        elif wish.cid is None or wish.owner % 2:
            work = engine.transfer(wish)
        else:
            work = self._twice(engine, wish)
        doubts = node.doubts
        asked = self.world.loop.create_task(work, context=node.context)
        done = await done_within(asked, self.patience_s)
        if not node.alive or not done or isinstance(asked.exception(), StoreFault):
            return None
        said: Receipt | Refusal = asked.result()
        if isinstance(said, Receipt) and doubts == node.doubts:
            self._judge_acceptance(said.transfer)
        return said

    def _judge_acceptance(self, transfer: Transfer) -> None:
        """No COMMIT is in doubt: what is accepted is there, or it waits in the inbox."""
        tables = self.world.tables
        if transfer.id not in self.world.auditor.lives and transfer.id not in tables.rows[INBOX]:
            self.world.auditor.blame(f"{transfer.id} was accepted, and it is not there")

    async def _twice(self, engine: Engine[SimTransaction], wish: Request) -> Receipt | Refusal:
        """In one batch, as a client may that repeats itself: both are told the same."""
        said, again = await engine.transfer_all([CheckedRequest(wish), CheckedRequest(wish)])
        for each in (said, again):
            if isinstance(each, StoreFault):
                raise each
        assert not isinstance(said, StoreFault)
        told = [each.transfer.id if isinstance(each, Receipt) else each for each in (said, again)]
        if told[0] != told[1]:
            self.world.auditor.blame(f"{wish.cid} is {told[0]} and {told[1]} in one batch")
        return said
