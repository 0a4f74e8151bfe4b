"""The acts of sessions: steps of the engine, and statements that a correct engine never sends.

An act runs on both sides with the same dice. As long as both sides return the same results, both
runners do the same. So the first difference that is found is the original one.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from tests.differential.recording import Local, RecordingStore
from tests.moves import moves_of
from tidegate.core.account import Account
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.flow import UNDO_VERBS, Verb
from tidegate.core.kind import Party, Transfer
from tidegate.core.ports import RequestKey, StoreFault
from tidegate.core.request import Request, new_kind, transfer_of
from tidegate.core.transfer import Move, Question
from tidegate.engine.context import DetachedBatches, EngineContext
from tidegate.engine.kind_rules import KindRules
from tidegate.engine.pending_request import PendingRequest, grouped_by_key
from tidegate.engine.request_queue import RequestQueue
from tidegate.engine.ring import BusyOwners, Ring
from tidegate.engine.step import record_answers
from tidegate.engine.write_batch import WriteBatch
from tidegate.flows import FLOWS
from tidegate.store.flow_checks import checksums
from tidegate.systems.guild import POINT, book_of, payment
from tidegate.systems.guild.memory import GuildRules
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, LedgerStatus

ASSET, OWNERS, SAVINGS, SPOT = 3, (1, 2, 3), "SAVINGS", "SPOT"
BOOKS = (FUNDING, OUTSIDE, SAVINGS, SUSPENSE)
# Each owner is a guild too, and some guilds have their own rules.
MEMBERS = (1, 2, 3)
RULES = {2: GuildRules(limit=0), 3: GuildRules(limit=0, cooldown_s=1, every_transfer=True)}
LOCAL = ("ledger", "allowance", "checks")
LANES = ("venue", *LOCAL)
PAYMENTS = 0.4  # The share of payments among the requests.
CIDS = tuple(f"c{n}" for n in range(5))
REMEMBERED = 12
VERBS = (Verb.DEBIT, Verb.CREDIT, Verb.HOLD, Verb.REFUND, Verb.CAPTURE, Verb.RELEASE)
SIZES = (1, 1, 2, 3)
# Flow, source book and target book. SPOT is a book of the venue, the others are of the ledger.
ROUTES = (
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
PAYMENT_FLOWS = ("pool_transfer", "pool_transfer", "member_transfer")


class TransactionAbandoned(Exception):
    """The session does not commit: its transaction is rolled back."""


class SeedTraits(NamedTuple):
    """The probabilities of a seed. They differ between seeds, so that rare events are frequent in
    some of them.
    """

    seed: int
    unknown: float
    rejected: float
    abandon: float
    owners: tuple[int, ...]  # With fewer owners, sessions wait for each other more often.

    @classmethod
    def of_seed(cls, seed: int) -> "SeedTraits":
        dice = random.Random(f"luck {seed}")
        unknown, rejected, abandon = (dice.choice((0.05, 0.2, 0.5)) for _ in range(3))
        return cls(seed, unknown, rejected, abandon, OWNERS[: dice.choice((1, 2, 3))])


class Venue:
    """Only its name is used. The runner chooses its answers, so that both sides share the dice."""

    name = "venue"
    reversible = True

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        raise AssertionError("the venue is never asked here")


class Inline(DetachedBatches):
    """Runs detached batches at once: a session does one thing at a time."""

    async def start(
        self, work: Coroutine[Any, Any, None], broken: Callable[[BaseException], None]
    ) -> None:
        await work

    async def run_all(self, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        for work in works:
            await work


class ActRunner:
    def __init__(
        self, store: RecordingStore, local: Local, traits: SeedTraits, number: int
    ) -> None:
        self.store, self.ledger, self.traits, self.number = store, local.ledger, traits, number
        self.dice = random.Random(0)
        self.known: dict[UUID, Transfer] = {}  # As this session last read them.
        self.ring = Ring(2)
        self.context: EngineContext[Any] = EngineContext(
            store=store,
            flows=FLOWS,
            tables=checksums(FLOWS.values()),
            outside={"venue": Venue()},
            local={"ledger": self.ledger, **{rules.name: rules for rules in local.rules}},
            remembering={},
            clock=store.session.clock.seconds,
            dice=self.dice,
            alert=lambda alert: store.session.add_event("alert", alert.cause[:20], alert.alarm),
            ended=self._ended,
            wake_lanes=lambda _: None,
            rings={"venue": self.ring},
            busy_owners=BusyOwners(lambda: None),
            irreversible=frozenset(),
            rules=KindRules(FLOWS, frozenset()),
            listeners={rules.name: rules for rules in local.rules},
            detached=Inline(),
        )

    def _ended(self, rows: Sequence[Transfer]) -> None:
        for row in rows:
            self.store.session.add_event("ended", f"{row.flow} {row.state}", row.id)

    async def run(self, acts: Iterable[int]) -> None:
        """Each act has its own dice, so that the others do not change if it is left out."""
        for number in acts:
            self.dice.seed(f"act {self.traits.seed} {self.number} {number}")
            [act] = self.dice.choices(list(ACTS), weights=list(ACTS.values()))
            try:
                await act(self)
            except (StoreFault, TransactionAbandoned) as fault:
                self.store.session.add_event("gave up", act.__name__, type(fault).__name__)

    def remember(self, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            self.known.pop(transfer.id, None)
            self.known[transfer.id] = transfer
        while len(self.known) > REMEMBERED:
            del self.known[next(iter(self.known))]

    def sample(self) -> list[Transfer]:
        """Some transfers that this session saw open. They may have moved since."""
        open_ = [t for t in self.known.values() if t.lane is not None]
        return self.dice.sample(open_, min(len(open_), self.dice.choice(SIZES)))

    def answer(self, transfer: Transfer) -> Answer:
        """The venue's answer: sometimes Unknown, otherwise always the same under one key."""
        if self.dice.random() < self.traits.unknown:
            halting = self.dice.random() < 0.05
            return Unknown("timeout", Alarm.HALT if halting else self.dice.choice(list(Alarm)[:3]))
        fixed = random.Random(f"venue {self.traits.seed} {transfer.id} {transfer.version}")
        if fixed.random() < self.traits.rejected:
            return Rejected("ACCOUNT_FROZEN", {"status": "FROZEN"})
        return Done({"reference": f"r{fixed.randrange(100)}"})

    def may_abandon(self) -> None:
        if self.dice.random() < self.traits.abandon * 0.3:
            raise TransactionAbandoned

    def account(self) -> Account:
        return Account(self.dice.choice(self.traits.owners), self.dice.choice(BOOKS), ASSET)

    def payment(self) -> Request:
        dice, guild = self.dice, self.dice.choice(self.traits.owners)
        parties, flow = dict(payment(guild, *dice.sample(MEMBERS, 2))), dice.choice(PAYMENT_FLOWS)
        amount, cid = dice.choice((10, 90, 260, 900)), dice.choice((None, None, *CIDS))
        if flow == "member_transfer":
            del parties["checks"]
            return Request(guild, flow, parties, POINT, amount, cid)
        lives_s = dice.choice((0.5, 5.0, 60.0))
        return Request(guild, flow, parties, POINT, amount, cid, lives_s=lives_s)

    def request(self) -> Request:
        if self.dice.random() < PAYMENTS:
            return self.payment()
        owner, dice = self.dice.choice(self.traits.owners), self.dice
        flow, *books = dice.choice(ROUTES)
        roles = ("source", "target")
        parties = {role: _party(book, owner) for role, book in zip(roles, books, strict=True)}
        if flow == "deposit":
            parties["suspense"] = _party(SUSPENSE, owner)
        amount = dice.choice((100, 200)) if flow == "deposit" else dice.choice((10, 50, 120))
        return Request(owner, flow, parties, ASSET, amount, dice.choice((None, None, *CIDS)))


def _party(book: str, owner: int) -> Party:
    return Party("venue" if book == SPOT else "ledger", book, owner)


async def create(runner: ActRunner) -> None:
    """Create transfers of requests that arrived together, as the engine does."""
    loop = asyncio.get_running_loop()
    requests = [runner.request() for _ in range(runner.dice.choice(SIZES))]
    answers = [loop.create_future() for _ in requests]
    kinds = [new_kind(request, runner.context.flows[request.flow]) for request in requests]
    batch = [
        PendingRequest(request, kind, answer, request.fingerprint())
        for request, kind, answer in zip(requests, kinds, answers, strict=True)
    ]
    await RequestQueue(runner.context)._deliver(grouped_by_key(batch))
    for created, answer in zip(batch, answers, strict=True):
        reply = answer.exception() or answer.result()
        if isinstance(reply, StoreFault):
            runner.store.session.add_event("created", created.key, type(reply).__name__)
            continue
        runner.store.session.add_event("created", created.key, reply)
        if transfer := getattr(reply, "transfer", None):
            runner.remember([transfer])


async def work(runner: ActRunner) -> None:
    """Claim the due transfers of a lane, or take handed-over ones; ask; record."""
    lane = runner.dice.choice(
        ("venue", "venue", "ledger", "checks", "checks", "checks", "checks", "checks", "allowance")
    )
    batch: Sequence[Transfer] = (
        runner.ring.pop(3, runner.context.clock()) if lane == "venue" else []
    )
    if not batch:
        await runner.store.due(LANES, runner.context.tables)
        limit = runner.dice.choice((1, 2, 5, 100))
        batch = await runner.store.claim(lane, limit, runner.context.tables)
    if batch:
        batch = await runner.store.askable(batch, runner.context.tables)
    if not batch:
        return
    runner.remember(batch)
    answers = None if lane in LOCAL else [runner.answer(t) for t in batch]
    await record_answers(runner.context, WriteBatch(batch, answers, lane))


async def answer_late(runner: ActRunner) -> None:
    """Record answers to old questions, some of which have been answered since."""
    if batch := [t for t in runner.sample() if t.lane == "venue"]:
        answers = [runner.answer(t) for t in batch]
        await record_answers(runner.context, WriteBatch(batch, answers, "venue"))


async def resolve(runner: ActRunner) -> None:
    """Let two operators redirect a refund to the owner's suspense book."""
    refunds = [t for t in runner.known.values() if t.state == "COMPENSATING"]
    if refunds:
        transfer = runner.dice.choice(refunds)
        repointed = Rejected("CLOSED", repoint=("ledger", SUSPENSE, transfer.owner))
        work = WriteBatch([transfer], [repointed], transfer.lane, "two people")
        await record_answers(runner.context, work)


async def record(runner: ActRunner) -> None:
    """Write moves to the store alone: with or without lock, current version and lease."""
    unlocked = runner.dice.random() < 0.5
    async with runner.store.transaction() as tx:
        batch = sorted(runner.sample(), key=lambda t: t.id)
        rows = batch if unlocked else await runner.store.lock(tx, batch)
        moves = [decide(FLOWS[t.flow], t, _answer_for(runner, t), DecisionContext()) for t in rows]
        leased = [runner.dice.random() < 0.3 for _ in moves]
        if moves:
            runner.remember(await runner.store.write(tx, moves_of(moves), leased))
        runner.may_abandon()


def _answer_for(runner: ActRunner, transfer: Transfer) -> Answer:
    # A local system must record its answer in its own tables, so no answer is made up for it.
    local = transfer.lane in LOCAL
    return Unknown("not asked") if local else runner.answer(transfer)


async def insert(runner: ActRunner) -> None:
    """Create transfers directly: with colliding keys, delays, deadlines and details."""
    dice, moves, keys = runner.dice, list[Move](), list[RequestKey]()
    for number in range(dice.choice(SIZES)):
        owner = dice.choice(runner.traits.owners)
        parties = {"source": _party(SPOT, owner), "target": _party(SAVINGS, owner)}
        request = Request(owner, "internal_transfer", parties, ASSET, 10)
        id_ = UUID(int=dice.getrandbits(60) << 60 | runner.number << 8 | number)
        transfer = transfer_of(request, FLOWS["internal_transfer"], id_).replace(
            detail=dice.choice(({}, {"memo": "«½»"})),
            trace=dice.choice((None, "t-1")),
            parent=dice.choice((None, UUID(int=7))),
        )
        deadline_s = dice.choice((None, None, 5.0, 0.25))
        moves.append(Move(None, transfer, (), dice.choice((0.0, 3.3)), deadline_s=deadline_s))
        keys.append(RequestKey(owner, dice.choice(CIDS) + f"/{number}", bytes([number]), id_))
    leased = [dice.random() < 0.3 for _ in moves]
    async with runner.store.transaction() as tx:
        await runner.store.reserve(tx, keys)
        runner.remember(await runner.store.write(tx, moves_of(moves), leased))
        runner.may_abandon()


async def ask(runner: ActRunner) -> None:
    """Ask the ledger alone: every verb, repeated keys, undos of any operation."""
    dice = runner.dice
    accounts = sorted({runner.account() for _ in range(dice.choice(SIZES))})
    async with runner.store.transaction() as tx:
        await runner.ledger.lock(tx, accounts)
        for _ in range(dice.choice((1, 1, 2))):
            questions = [_question(runner, accounts) for _ in range(dice.choice(SIZES))]
            await runner.ledger.ask(tx, questions)
        runner.may_abandon()


def _question(runner: ActRunner, accounts: Sequence[Account]) -> Question:
    dice, account = runner.dice, runner.dice.choice(accounts)
    verb = dice.choice(VERBS)
    # The engine asks about a transfer under its row lock. Here, only one session uses each id.
    id_ = UUID(int=(runner.number + 1) << 40 | dice.randrange(3))
    version = dice.randrange(1, 4)
    amount = dice.choice((0, 10, 10, 10, 70))
    fees = dice.choice(accounts)
    fee = dice.choice((0, 0, 3, 4)) if verb is Verb.CREDIT and amount else 0
    return Question(
        id_,
        version if verb in UNDO_VERBS else version - 1,
        verb,
        Party("ledger", account.book, account.owner),
        ASSET,
        amount,
        undoes=dice.randrange(version) if verb in UNDO_VERBS else None,
        expect_done=verb in UNDO_VERBS and dice.random() < 0.3,
        opens=dice.random() < 0.4,
        void=verb not in UNDO_VERBS and dice.random() < 0.1,
        fee=fee,
        fees=Party("ledger", fees.book, fees.owner) if fee else None,
    )


async def read(runner: ActRunner) -> None:
    dice = runner.dice
    if dice.random() < 0.5:
        runner.remember(await runner.store.find([*runner.known, UUID(int=1)]))
    else:
        keys = [(dice.choice(runner.traits.owners), dice.choice(CIDS)) for _ in range(3)]
        look = await runner.store.look(keys)
        runner.remember([k.transfer for k in look.known if k and k.transfer])


async def release(runner: ActRunner) -> None:
    await runner.store.release(runner.sample())


async def halt_or_resume(runner: ActRunner) -> None:
    if not await runner.store.halted() or runner.dice.random() < 0.2:
        await runner.store.halt(f"because of {runner.number}", "auditor")
    elif runner.dice.random() < 0.5:
        first = [halt.id for halt in await runner.store.halts()][:1]
        await runner.store.resume("one of them", f"operator {runner.number}", first)
    else:
        await runner.store.resume("it was a drill", f"operator {runner.number}")


async def set_status(runner: ActRunner) -> None:
    status = runner.dice.choice(
        (LedgerStatus.ACTIVE, LedgerStatus.ACTIVE, LedgerStatus.FROZEN, LedgerStatus.DISABLED)
    )
    account = runner.account()
    if runner.dice.random() < PAYMENTS:
        account = Account(account.owner, book_of(runner.dice.choice(MEMBERS)), POINT)
    await runner.ledger.set_status(account, status)


ACTS: dict[Callable[[ActRunner], Awaitable[None]], float] = {
    create: 6,
    work: 8,
    answer_late: 3,
    resolve: 1,
    record: 4,
    insert: 2,
    ask: 4,
    read: 2,
    release: 2,
    halt_or_resume: 1.5,
    set_status: 1.5,
}
