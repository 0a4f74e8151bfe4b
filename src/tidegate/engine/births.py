"""Births: concurrent requests become transfers together, each exactly once."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeAlias
from uuid import UUID

import msgspec

from tidegate.core.answers import Alarm
from tidegate.core.ports import Birth, CidTaken, Known, StoreFault, StoreUnavailable, Tx
from tidegate.core.refusals import Refusal
from tidegate.core.request import Checked, Request, recheck, transfer_of
from tidegate.core.transfer import Move, Transfer, lane_of
from tidegate.engine.alerts import Alert
from tidegate.engine.gathering import MANY, Gathering
from tidegate.engine.rings import Slots
from tidegate.engine.step import Means, announce, be_witnessed, pause_s, settle
from tidegate.engine.tray import Tray

MAX_WAITING = 10_000
MAX_BATCH = 1024
IN_FLIGHT = 2
MAX_TAKEN = 16  # Races lost in a row; more, and it is no race but a key that cannot be found.
LOOKS = 3  # A session that died while it was idle is found out by using it.
HORIZON_S = 24 * 3600  # For how long systems remember operations, at the least.


class Receipt(msgspec.Struct, frozen=True):
    """The transfer that a request became, now or the first time it was made."""

    transfer: Transfer
    duplicate: bool = False


class Answering(Protocol):
    """Where an answer goes: a future of its own, or a place on a tray of many."""

    def done(self) -> bool: ...
    def set_result(self, said: Receipt | Refusal, /) -> None: ...
    def set_exception(self, fault: StoreFault, /) -> None: ...


Follow: TypeAlias = Callable[[Answering, Receipt], None]
Said: TypeAlias = Receipt | Refusal | StoreFault  # Of one among many, whose fault is its own.


@dataclass(slots=True, eq=False)
class Newborn:
    """One request on its way. Its id is fixed before the first try, and the same in all later."""

    request: Request
    answer: Answering
    fingerprint: bytes
    veto: Refusal | None = None
    follow: Follow | None = None  # Of one who would rather be answered at the end.
    local: bool = False  # Its first question is for a system of our own database.
    id: UUID | None = None
    followers: list["Newborn"] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, str]:
        return self.request.owner, self.request.cid or str(self.id)


class Delivery(NamedTuple):
    """What one transaction brought into the world, and what it turned away."""

    admitted: Sequence[Newborn]
    refused: Sequence[tuple[Newborn, Refusal]]
    moves: Sequence[Move]
    rows: Sequence[Transfer]


class Births(Generic[Tx]):
    def __init__(self, means: Means[Tx], many: int = MANY) -> None:
        self._means = means
        self._waiting: deque[Newborn] = deque()
        self._gathering = Gathering(many)
        self._stopping = False

    async def submit(
        self, request: Request, veto: Refusal | None = None, follow: Follow | None = None
    ) -> Receipt | Refusal:
        """Answered when the transfer is durable, wherever it rests then, or is followed on."""
        answer: asyncio.Future[Receipt | Refusal] = asyncio.get_running_loop().create_future()
        self._enter(request, veto, answer, follow)
        self._gathering.callers += 1
        self.wake()
        try:
            return await answer
        finally:
            self._gathering.callers -= 1

    async def submit_all(
        self, asked: Sequence[Checked], follow: Follow | None = None
    ) -> list[Said]:
        """As each by itself, in their order; answered when the last of them is."""
        tray = Tray[Said](len(asked))
        for each, place in zip(asked, tray.places(), strict=True):
            self._enter(each.request, each.veto, place, follow)
        self._gathering.callers += len(asked)
        self.wake()
        try:
            return await tray.filled()
        finally:
            self._gathering.callers -= len(asked)

    def _enter(
        self, request: Request, veto: Refusal | None, answer: Answering, follow: Follow | None
    ) -> None:
        """Let a request wait for its birth, or answer it at once."""
        if refusal := self._refusal(request) or (veto if request.cid is None else None):
            answer.set_result(refusal)
            return
        newborn = Newborn(request, answer, request.fingerprint(), veto, follow)
        flow = self._means.flows[request.flow]
        first = lane_of(flow, request.parties, flow.arrive(flow.first)[-1])
        newborn.local = first in self._means.local
        self._waiting.append(newborn)

    def _refusal(self, request: Request) -> Refusal | None:
        means = self._means
        if self._stopping or len(self._waiting) >= MAX_WAITING:
            return Refusal.OVERLOADED
        if request.flow not in means.flows:
            return Refusal.INVALID_REQUEST
        if any(
            party.system not in means.outside and party.system not in means.local
            for party in request.parties.values()
        ):
            return Refusal.UNSUPPORTED_ACCOUNT_TYPE
        return recheck(request)

    async def run(self) -> None:
        """Take what arrived while the batch before was on its way, when it is worth its price."""
        apart, gathering = self._means.apart, self._gathering
        while not (self._stopping and not self._waiting):
            gathering.look()
            if not (self._stopping or await gathering.gathered(len(self._waiting))):
                continue
            if batch := apart.choose(self._waiting, MAX_BATCH, self._locks):
                gathering.left()
                with apart.locking(map(self._locks, batch)):
                    await self._deliver(batch)
            else:
                await gathering.rest()

    def _locks(self, newborn: Newborn) -> int | None:
        """Whose accounts the birth will lock, if anybody's: of one that asks outside, nobody's."""
        return newborn.request.owner if newborn.local else None

    def wake(self) -> None:
        self._gathering.arrived(len(self._waiting))

    def stop(self) -> None:
        """Accept no more; what was accepted is still brought into the world."""
        self._stopping = True
        self._gathering.hurry()

    async def _deliver(self, batch: Sequence[Newborn]) -> None:
        try:
            await self._bring(gathered(batch))
        except StoreFault as fault:
            for newborn in batch:
                answer(newborn, fault)

    async def _bring(self, batch: Sequence[Newborn], *, maybe: bool = False) -> None:
        """Try until every newborn is answered. Once a COMMIT may have happened, never give up."""
        open_, tries, taken = list(batch), 0, 0
        while open_:
            try:
                open_ = await self._look(open_, maybe=maybe)
                if open_:
                    await self._insert(open_)
                    return
            except StoreUnavailable:
                if open_[0].id is not None:
                    maybe = True
                elif tries >= LOOKS:
                    raise  # Nothing was ever sent that could have been kept.
            except StoreFault as fault:
                taken += 1
                if isinstance(fault, CidTaken) and taken < MAX_TAKEN:
                    continue  # Another session was first; it has committed, and is found now.
                if len(open_) > 1:
                    half = len(open_) // 2
                    await self._bring(open_[:half], maybe=maybe)
                    open_ = open_[half:]
                    continue
                self._means.alert(Alert(Alarm.PAGE, f"cannot be born: {fault}"))
                if not maybe:
                    answer(open_[0], fault)  # Rolled back by the database: nothing was accepted.
                    return
            await asyncio.sleep(pause_s(tries, self._means.dice))
            tries += 1

    async def _look(self, batch: list[Newborn], *, maybe: bool) -> list[Newborn]:
        """Answer the ones already known; give the others their ids, and return them."""
        asked = [n for n in batch if n.request.cid is not None or n.id is not None]
        at_us, halted, found = await self._means.store.look([n.key for n in asked] or [(0, "")])
        known = dict(zip(map(id, asked), found, strict=False))
        open_ = []
        for newborn in batch:
            if match := known.get(id(newborn)):
                tell(newborn, match)
            elif newborn.veto is not None:
                answer(newborn, newborn.veto)
            elif halted and not maybe:
                answer(newborn, Refusal.HALTED)
            elif newborn.id is not None and too_old(newborn.id, at_us):
                answer(newborn, Refusal.TOO_LATE)
            else:
                open_.append(newborn)
        self._name(open_, at_us)
        return open_

    def _name(self, newborns: Sequence[Newborn], at_us: int) -> None:
        """Ids take their time from the database's clock, so that all processes agree on it."""
        chance = self._means.dice.getrandbits(60) << 20
        for place, newborn in enumerate(newborns):
            if newborn.id is None:
                newborn.id = UUID(int=(at_us // 1000) << 80 | chance | place)

    async def _insert(self, newborns: Sequence[Newborn]) -> None:
        means = self._means
        slots = Slots(means.rings, means.clock() + means.store.lease_s)
        try:
            admitted, refused, moves, rows = await self._transact(newborns, slots)
        except BaseException:
            slots.free()
            raise
        for newborn, refusal in refused:
            answer(newborn, refusal)
        for newborn, row in zip(admitted, rows, strict=True):
            tell(newborn, Known(newborn.fingerprint, row))
        means.woken(slots.fill(rows))
        await announce(means, moves, rows)

    async def _transact(self, newborns: Sequence[Newborn], slots: Slots) -> Delivery:
        means = self._means
        rows: Sequence[Transfer] = ()
        async with means.store.transaction() as tx:
            admitted, refused = await self._admit(tx, newborns)
            moves = await settle(means, tx, [self._first_move(newborn) for newborn in admitted])
            leased = slots.reserve(moves, halted=(await tx.begun()).halted)
            births = [
                Birth(move, n.key[1], n.fingerprint, n.request.lives_s)
                for n, move in zip(admitted, moves, strict=True)
            ]
            if births:
                rows = await means.store.insert(tx, births, leased)
                await be_witnessed(means, tx, moves, born=True)
        return Delivery(admitted, refused, moves, rows)

    async def _admit(
        self, tx: Tx, newborns: Sequence[Newborn]
    ) -> tuple[list[Newborn], list[tuple[Newborn, Refusal]]]:
        if self._means.admission is None:
            return list(newborns), []
        verdicts = await self._means.admission.admit(tx, [n.request for n in newborns])
        judged = list(zip(newborns, verdicts, strict=True))
        refused = [(newborn, verdict) for newborn, verdict in judged if verdict is not None]
        return [newborn for newborn, verdict in judged if verdict is None], refused

    def _first_move(self, newborn: Newborn) -> Move:
        assert newborn.id is not None
        flow = self._means.flows[newborn.request.flow]
        transfer = transfer_of(newborn.request, flow, newborn.id)
        asked = flow.ask(transfer.state)
        assert asked is not None
        return Move(transfer, transfer, rests=asked.rests, deadline_s=asked.deadline_s)


def gathered(batch: Sequence[Newborn]) -> list[Newborn]:
    """One newborn per key; whoever asks under the same key meanwhile follows the first.

    Followers are judged only when it is known what the key stands for: the first of a batch may
    be the stranger, and the transfer that exists already a follower's own.
    """
    first: dict[tuple[int, str], Newborn] = {}
    alone = []
    # One that may be born goes before one that may not.
    for newborn in sorted(batch, key=lambda n: n.veto is not None):
        if newborn.request.cid is None:
            alone.append(newborn)
        elif (leader := first.setdefault(newborn.key, newborn)) is not newborn:
            leader.followers.append(newborn)
    return [*first.values(), *alone]


def tell(newborn: Newborn, known: Known) -> None:
    """The key stands for this transfer: say so to all who asked under it for the same thing."""
    for each in (newborn, *newborn.followers):
        if each.fingerprint != known.fingerprint:
            reply(each, Refusal.IDEMPOTENCY_MISMATCH)
        else:
            reply(each, Receipt(known.transfer, duplicate=known.transfer.id != each.id))


def answer(newborn: Newborn, said: Refusal | StoreFault) -> None:
    for each in (newborn, *newborn.followers):
        reply(each, said)


def reply(newborn: Newborn, said: Receipt | Refusal | StoreFault) -> None:
    if newborn.answer.done():
        return  # The caller has gone.
    if isinstance(said, StoreFault):
        newborn.answer.set_exception(said)
    elif newborn.follow and isinstance(said, Receipt) and said.transfer.lane is not None:
        newborn.follow(newborn.answer, said)
    else:
        newborn.answer.set_result(said)


def too_old(id_: UUID, at_us: int) -> bool:
    """Past half the horizon, a system might forget an operation while it is still being asked."""
    return at_us // 1000 - (id_.int >> 80) > HORIZON_S * 1000 // 2
