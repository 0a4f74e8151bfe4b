"""What sessions do: the engine's own steps, and statements that no careful engine would send.

An act is played on both sides with the same dice. As long as both sides answer alike, both
players do the same; the first difference is therefore the one that is shown.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from tests.differential.recording import Local, TellingStore
from tidegate.core.account import Account
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.flow import UNDOES, Verb
from tidegate.core.kind import Party, Transfer
from tidegate.core.moves import moves_of
from tidegate.core.ports import RequestKey, StoreFault
from tidegate.core.request import Request, new_kind, transfer_of
from tidegate.core.transfer import Move, Question
from tidegate.engine.context import DetachedBatches, EngineContext
from tidegate.engine.kind_rules import KindRules
from tidegate.engine.pending_request import PendingRequest, grouped_by_key
from tidegate.engine.request_queue import RequestQueue
from tidegate.engine.ring import BusyOwners, Ring
from tidegate.engine.step import conclude
from tidegate.engine.write_batch import WriteBatch
from tidegate.flows import FLOWS
from tidegate.store.flow_checks import checksums
from tidegate.systems.guild import POINT, book_of, payment
from tidegate.systems.guild.memory import GuildRules
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, LedgerStatus

ASSET, OWNERS, SAVINGS, SPOT = 3, (1, 2, 3), "SAVINGS", "SPOT"
BOOKS = (FUNDING, OUTSIDE, SAVINGS, SUSPENSE)
# Each owner is a guild, too, and some have rules of their own.
MEMBERS = (1, 2, 3)
RULES = {2: GuildRules(limit=0), 3: GuildRules(limit=0, cooldown_s=1, every_transfer=True)}
LOCAL = ("ledger", "allowance", "checks")
LANES = ("venue", *LOCAL)
PAYMENTS = 0.4  # Of all that is asked for.
CIDS = tuple(f"c{n}" for n in range(5))
REMEMBERED = 12
ASKED = (Verb.DEBIT, Verb.CREDIT, Verb.HOLD, Verb.REFUND, Verb.CAPTURE, Verb.RELEASE)
SEVERAL = (1, 1, 2, 3)
# Which flow, from which book to which: SPOT is the venue's, the others are the ledger's.
WAYS = (
    ("deposit", OUTSIDE, FUNDING),
    ("deposit", OUTSIDE, FUNDING),
    ("external_withdrawal", FUNDING, OUTSIDE),
    ("external_withdrawal", FUNDING, OUTSIDE),
    ("internal_transfer", FUNDING, SAVINGS),
    ("internal_transfer", SAVINGS, FUNDING),
    ("internal_transfer", FUNDING, SPOT),
    ("internal_transfer", FUNDING, SPOT),
    ("internal_transfer", SPOT, FUNDING),
    ("internal_transfer", SPOT, SAVINGS),
)
PAID = ("pool_transfer", "pool_transfer", "member_transfer")


class Abandoned(Exception):
    """A session that changes its mind: its transaction is rolled back."""


class Luck(NamedTuple):
    """What a seed is like, so that rare things are not drowned in all seeds by the same others."""

    seed: int
    unknown: float
    rejected: float
    abandon: float
    owners: tuple[int, ...]  # The fewer, the more often one session waits for another.

    @classmethod
    def thrown(cls, seed: int) -> "Luck":
        dice = random.Random(f"luck {seed}")
        unknown, rejected, abandon = (dice.choice((0.05, 0.2, 0.5)) for _ in range(3))
        return cls(seed, unknown, rejected, abandon, OWNERS[: dice.choice((1, 2, 3))])


class Venue:
    """Known by name: what it answers is thrown by the player, so that the dice are shared."""

    name = "venue"
    reversible = True

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        raise AssertionError("nobody asks the venue here")


class Inline(DetachedBatches):
    """A session does one thing at a time, so nothing runs beside it."""

    async def start(
        self, work: Coroutine[Any, Any, None], broken: Callable[[BaseException], None]
    ) -> None:
        await work

    async def together(self, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        for work in works:
            await work


class Player:
    def __init__(self, store: TellingStore, local: Local, luck: Luck, number: int) -> None:
        self.store, self.ledger, self.luck, self.number = store, local.ledger, luck, number
        self.dice = random.Random(0)
        self.known: dict[UUID, Transfer] = {}  # As they were when last given to this session.
        self.ring = Ring(2)
        self.context: EngineContext[Any] = EngineContext(
            store=store,
            flows=FLOWS,
            tables=checksums(FLOWS.values()),
            outside={"venue": Venue()},
            local={"ledger": self.ledger, **{rules.name: rules for rules in local.rules}},
            remembering={},
            clock=store.seat.clock.seconds,
            dice=self.dice,
            alert=lambda alert: store.seat.tell("alert", alert.cause[:20], alert.alarm),
            ended=self._ended,
            woken=lambda _: None,
            rings={"venue": self.ring},
            busy_owners=BusyOwners(lambda: None),
            irreversible=frozenset(),
            rules=KindRules(FLOWS, frozenset()),
            listeners={rules.name: rules for rules in local.rules},
            detached=Inline(),
        )

    def _ended(self, rows: Sequence[Transfer]) -> None:
        for row in rows:
            self.store.seat.tell("ended", f"{row.flow} {row.state}", row.id)

    async def play(self, acts: Iterable[int]) -> None:
        """Each act has dice of its own, so that the others are the same without it."""
        for number in acts:
            self.dice.seed(f"act {self.luck.seed} {self.number} {number}")
            [act] = self.dice.choices(list(ACTS), weights=list(ACTS.values()))
            try:
                await act(self)
            except (StoreFault, Abandoned) as fault:
                self.store.seat.tell("gave up", act.__name__, type(fault).__name__)

    def remember(self, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            self.known.pop(transfer.id, None)
            self.known[transfer.id] = transfer
        while len(self.known) > REMEMBERED:
            del self.known[next(iter(self.known))]

    def some(self) -> list[Transfer]:
        """Of those that were once seen with a question open, and may have moved since."""
        open_ = [t for t in self.known.values() if t.lane is not None]
        return self.dice.sample(open_, min(len(open_), self.dice.choice(SEVERAL)))

    def answer(self, transfer: Transfer) -> Answer:
        """The venue's: unknown now and then, and otherwise always the same under one key."""
        if self.dice.random() < self.luck.unknown:
            halting = self.dice.random() < 0.05
            return Unknown("timeout", Alarm.HALT if halting else self.dice.choice(list(Alarm)[:3]))
        fixed = random.Random(f"venue {self.luck.seed} {transfer.id} {transfer.version}")
        if fixed.random() < self.luck.rejected:
            return Rejected("ACCOUNT_FROZEN", {"status": "FROZEN"})
        return Done({"reference": f"r{fixed.randrange(100)}"})

    def may_abandon(self) -> None:
        if self.dice.random() < self.luck.abandon * 0.3:
            raise Abandoned

    def account(self) -> Account:
        return Account(self.dice.choice(self.luck.owners), self.dice.choice(BOOKS), ASSET)

    def payment(self) -> Request:
        dice, guild = self.dice, self.dice.choice(self.luck.owners)
        parties, flow = dict(payment(guild, *dice.sample(MEMBERS, 2))), dice.choice(PAID)
        amount, cid = dice.choice((10, 90, 260, 900)), dice.choice((None, None, *CIDS))
        if flow == "member_transfer":
            del parties["checks"]
            return Request(guild, flow, parties, POINT, amount, cid)
        lives_s = dice.choice((0.5, 5.0, 60.0))
        return Request(guild, flow, parties, POINT, amount, cid, lives_s=lives_s)

    def request(self) -> Request:
        if self.dice.random() < PAYMENTS:
            return self.payment()
        owner, dice = self.dice.choice(self.luck.owners), self.dice
        flow, *books = dice.choice(WAYS)
        roles = ("source", "target")
        parties = {role: _party(book, owner) for role, book in zip(roles, books, strict=True)}
        if flow == "deposit":
            parties["suspense"] = _party(SUSPENSE, owner)
        amount = dice.choice((100, 200)) if flow == "deposit" else dice.choice((10, 50, 120))
        return Request(owner, flow, parties, ASSET, amount, dice.choice((None, None, *CIDS)))


def _party(book: str, owner: int) -> Party:
    return Party("venue" if book == SPOT else "ledger", book, owner)


async def bear(player: Player) -> None:
    """Requests that arrived together become transfers, as the engine does it."""
    loop = asyncio.get_running_loop()
    requests = [player.request() for _ in range(player.dice.choice(SEVERAL))]
    answers = [loop.create_future() for _ in requests]
    kinds = [new_kind(request, player.context.flows[request.flow]) for request in requests]
    batch = [
        PendingRequest(request, kind, answer, request.fingerprint())
        for request, kind, answer in zip(requests, kinds, answers, strict=True)
    ]
    await RequestQueue(player.context)._deliver(grouped_by_key(batch))
    for created, answer in zip(batch, answers, strict=True):
        said = answer.exception() or answer.result()
        if isinstance(said, StoreFault):
            player.store.seat.tell("born", created.key, type(said).__name__)
            continue
        player.store.seat.tell("born", created.key, said)
        if transfer := getattr(said, "transfer", None):
            player.remember([transfer])


async def work(player: Player) -> None:
    """Claim a lane's due transfers, or take what was handed over; ask; record."""
    lane = player.dice.choice(
        ("venue", "venue", "ledger", "checks", "checks", "checks", "checks", "checks", "allowance")
    )
    batch: Sequence[Transfer] = (
        player.ring.pop(3, player.context.clock()) if lane == "venue" else []
    )
    if not batch:
        await player.store.due(LANES, player.context.tables)
        limit = player.dice.choice((1, 2, 5, 100))
        batch = await player.store.claim(lane, limit, player.context.tables)
    if batch:
        batch = await player.store.askable(batch, player.context.tables)
    if not batch:
        return
    player.remember(batch)
    answers = None if lane in LOCAL else [player.answer(t) for t in batch]
    await conclude(player.context, WriteBatch(batch, answers, lane))


async def answer_late(player: Player) -> None:
    """Answers to questions of long ago, some of them answered since."""
    if batch := [t for t in player.some() if t.lane == "venue"]:
        answers = [player.answer(t) for t in batch]
        await conclude(player.context, WriteBatch(batch, answers, "venue"))


async def resolve(player: Player) -> None:
    """Two people re-point a refund to the owner's suspense book."""
    refunds = [t for t in player.known.values() if t.state == "COMPENSATING"]
    if refunds:
        transfer = player.dice.choice(refunds)
        repointed = Rejected("CLOSED", repoint=("ledger", SUSPENSE, transfer.owner))
        work = WriteBatch([transfer], [repointed], transfer.lane, "two people")
        await conclude(player.context, work)


async def record(player: Player) -> None:
    """The store alone: locked or not, fresh or not, leased or not."""
    careless = player.dice.random() < 0.5
    async with player.store.transaction() as tx:
        batch = sorted(player.some(), key=lambda t: t.id)
        fresh = batch if careless else await player.store.lock(tx, batch)
        moves = [decide(FLOWS[t.flow], t, _said(player, t), DecisionContext()) for t in fresh]
        leased = [player.dice.random() < 0.3 for _ in moves]
        if moves:
            player.remember(await player.store.write(tx, moves_of(moves), leased))
        player.may_abandon()


def _said(player: Player, transfer: Transfer) -> Answer:
    # What a local system has done is in its own tables, and nobody else may say it.
    local = transfer.lane in LOCAL
    return Unknown("asked nobody") if local else player.answer(transfer)


async def insert(player: Player) -> None:
    """Births by hand: keys that collide, delays, deadlines, details."""
    dice, moves, keys = player.dice, list[Move](), list[RequestKey]()
    for place in range(dice.choice(SEVERAL)):
        owner = dice.choice(player.luck.owners)
        parties = {"source": _party(SPOT, owner), "target": _party(SAVINGS, owner)}
        request = Request(owner, "internal_transfer", parties, ASSET, 10)
        id_ = UUID(int=dice.getrandbits(60) << 60 | player.number << 8 | place)
        transfer = transfer_of(request, FLOWS["internal_transfer"], id_).but(
            detail=dice.choice(({}, {"memo": "«½»"})),
            trace=dice.choice((None, "t-1")),
            parent=dice.choice((None, UUID(int=7))),
        )
        deadline_s = dice.choice((None, None, 5.0, 0.25))
        moves.append(Move(None, transfer, (), dice.choice((0.0, 3.3)), deadline_s=deadline_s))
        keys.append(RequestKey(owner, dice.choice(CIDS) + f"/{place}", bytes([place]), id_))
    leased = [dice.random() < 0.3 for _ in moves]
    async with player.store.transaction() as tx:
        await player.store.reserve(tx, keys)
        player.remember(await player.store.write(tx, moves_of(moves), leased))
        player.may_abandon()


async def ask(player: Player) -> None:
    """The ledger alone: every verb, keys used again, undos of anything."""
    dice = player.dice
    accounts = sorted({player.account() for _ in range(dice.choice(SEVERAL))})
    async with player.store.transaction() as tx:
        await player.ledger.lock(tx, accounts)
        for _ in range(dice.choice((1, 1, 2))):
            questions = [_question(player, accounts) for _ in range(dice.choice(SEVERAL))]
            await player.ledger.ask(tx, questions)
        player.may_abandon()


def _question(player: Player, accounts: Sequence[Account]) -> Question:
    dice, account = player.dice, player.dice.choice(accounts)
    verb = dice.choice(ASKED)
    # A transfer's questions are asked under its row's lock: here, by one session only.
    id_ = UUID(int=(player.number + 1) << 40 | dice.randrange(3))
    version = dice.randrange(1, 4)
    amount = dice.choice((0, 10, 10, 10, 70))
    fees = dice.choice(accounts)
    fee = dice.choice((0, 0, 3, 4)) if verb is Verb.CREDIT and amount else 0
    return Question(
        id_,
        version if verb in UNDOES else version - 1,
        verb,
        Party("ledger", account.book, account.owner),
        ASSET,
        amount,
        undoes=dice.randrange(version) if verb in UNDOES else None,
        expect_done=verb in UNDOES and dice.random() < 0.3,
        opens=dice.random() < 0.4,
        void=verb not in UNDOES and dice.random() < 0.1,
        fee=fee,
        fees=Party("ledger", fees.book, fees.owner) if fee else None,
    )


async def read(player: Player) -> None:
    dice = player.dice
    if dice.random() < 0.5:
        player.remember(await player.store.find([*player.known, UUID(int=1)]))
    else:
        keys = [(dice.choice(player.luck.owners), dice.choice(CIDS)) for _ in range(3)]
        look = await player.store.look(keys)
        player.remember([k.transfer for k in look.known if k and k.transfer])


async def release(player: Player) -> None:
    await player.store.release(player.some())


async def brake(player: Player) -> None:
    if not await player.store.halted() or player.dice.random() < 0.2:
        await player.store.halt(f"because of {player.number}", "auditor")
    elif player.dice.random() < 0.5:
        first = [halt.id for halt in await player.store.halts()][:1]
        await player.store.resume("one of them", f"operator {player.number}", first)
    else:
        await player.store.resume("it was a drill", f"operator {player.number}")


async def set_status(player: Player) -> None:
    status = player.dice.choice(
        (LedgerStatus.ACTIVE, LedgerStatus.ACTIVE, LedgerStatus.FROZEN, LedgerStatus.DISABLED)
    )
    account = player.account()
    if player.dice.random() < PAYMENTS:
        account = Account(account.owner, book_of(player.dice.choice(MEMBERS)), POINT)
    await player.ledger.set_status(account, status)


ACTS: dict[Callable[[Player], Awaitable[None]], float] = {
    bear: 6,
    work: 8,
    answer_late: 3,
    resolve: 1,
    record: 4,
    insert: 2,
    ask: 4,
    read: 2,
    release: 2,
    brake: 1.5,
    set_status: 1.5,
}
