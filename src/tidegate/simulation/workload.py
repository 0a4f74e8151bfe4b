"""What people wish and what they do to accounts meanwhile, thrown anew for each seed."""

import random
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.simulation.auditor import CORE, LEDGER
from tidegate.systems.guild import book_of, payment
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, LedgerStatus

ASSET, START, SPOT = 3, 1_000, "SPOT"
OWNERS = (1, 2, 3, 4)
# An owner is a guild, too, and these are its members' books.
MEMBERS = (book_of(1), book_of(2))
BOOKS = (FUNDING, SPOT, OUTSIDE, SUSPENSE, *MEMBERS)
POOL_S = 12.0  # Within which a pool transfer passes its checks or expires.
TRANSFERS = 20
MORE = 6  # Where some are refused.
SIEGE_S = (105.0, 140.0)  # Longer than any question takes to page somebody.
LONG_SIEGE_S = (900.0, 1_000.0)
AMOUNTS = (1, 10, 100, 400, 900, 2_500)


class CoreTrouble(StrEnum):
    """What keeps the core from answering for a while."""

    NONE = ""
    OUTAGE = "outage"  # It is down, for longer than anybody's patience.
    BUSY = "busy"  # It is there and takes nothing, as long.
    STRANGER = "stranger"  # Another core is there, on an empty disk.

    @property
    def lasts(self) -> bool:
        return self in (CoreTrouble.OUTAGE, CoreTrouble.BUSY)


@dataclass
class Behaviour:
    """How people behave in a seed, and what their machines are up to."""

    pause_s: float = 0.5  # At most, between two doings.
    meddling: float = 0.0  # How often a doing touches an account.
    books: tuple[str, ...] = BOOKS
    harsh: float = 0.5  # How often an account is made worse when it is touched.
    worse: tuple[LedgerStatus, ...] = (LedgerStatus.FROZEN, LedgerStatus.DISABLED)
    flooded: frozenset[int] = frozenset()  # Whose accounts fill up between debit and refund.
    siege: CoreTrouble = CoreTrouble.NONE
    clocks: float = 0.0
    reaper: float = 0.0
    from_core: float = 0.5  # How much of what is moved begins in the core.
    deposits: float = 0.2
    withdrawals: float = 0.2
    from_spot: float = 0.5  # How many of these that begin in the core are paid out of it.
    members: float = 0.3  # How much of what is moved is between members of a guild.
    holds: float = 0.0  # How often a stranger's session holds an account.
    steps: float = 0.0  # How often the database's clock is set, to and fro.
    retiring: bool = False  # The core forgets what is over; the seed lasts long enough for it.
    siege_s: tuple[float, float] = SIEGE_S

    @classmethod
    def thrown(cls, dice: random.Random) -> "Behaviour":
        mood = cls(
            pause_s=dice.uniform(0.2, 1.2),
            meddling=1.0 if dice.random() < 0.8 else 0.0,
            books=BOOKS if dice.random() < 0.5 else (dice.choice(BOOKS),),
            harsh=dice.uniform(0.2, 0.8),
            siege=dice.choices(tuple(CoreTrouble), (0.89, 0.035, 0.035, 0.04))[0],
            clocks=dice.choice((0.0, dice.random() * 0.5)),
            reaper=dice.choice((0.0, dice.random() * 0.3)),
        )
        mood._bend(dice.random())
        if dice.random() < 0.11:
            # Nothing of a guild: when a pool transfer expires depends on the clock itself.
            mood.steps, mood.members = dice.uniform(0.1, 0.5), 0.0
            mood.retiring = dice.random() < 0.8
            if mood.retiring:
                mood.flooded = frozenset()  # The world's own operations are below any floor.
        if dice.random() < 0.1:
            mood.holds = dice.uniform(0.1, 0.3)
        if mood.siege is CoreTrouble.OUTAGE and dice.random() < 0.3:
            mood.siege_s = LONG_SIEGE_S
        return mood

    def _bend(self, chance: float) -> None:
        """Towards what dice alone would seldom bring about."""
        if chance < 0.20:
            # Money that left the core, cannot arrive, and does not fit where it came from.
            self.flooded, self.from_core, self.withdrawals = frozenset(OWNERS), 0.9, 0.4
            self.meddling, self.books, self.harsh = 1.0, (FUNDING, OUTSIDE, *MEMBERS), 0.8
            self.members, self.from_spot, self.worse = 0.6, 1.0, (LedgerStatus.DISABLED,)
        elif chance < 0.28:
            # Money that came in, is not taken, and not even by the suspense book.
            self.meddling, self.books, self.harsh = 1.0, (FUNDING, SPOT, SUSPENSE), 0.85
            self.worse, self.deposits = (LedgerStatus.DISABLED,), 0.6
        elif chance < 0.44:
            # Money that cannot arrive. Where the core cannot undo, it must wait.
            self.meddling, self.books, self.harsh = 1.0, (FUNDING, OUTSIDE, *MEMBERS), 0.7
            self.members, self.from_spot = 0.65, 1.0
            self.worse, self.from_core, self.withdrawals = (LedgerStatus.DISABLED,), 0.8, 0.4


def requests(dice: random.Random, mood: Behaviour, count: int = TRANSFERS) -> list[Request]:
    """So many transfers, of all flows, both ways; some asked for twice, or under another's key."""
    made: list[Request] = []
    for number in range(count):
        owner = dice.choice(OWNERS)
        flow, parties = _movement(dice, mood, owner)
        wish = Request(owner, flow, parties, ASSET, dice.choice(AMOUNTS), f"cid-{number}")
        if flow == "pool_transfer":
            wish = msgspec.structs.replace(wish, lives_s=POOL_S)
        made.append(wish)
        if dice.random() < 0.1:
            again = dice.choice(made)
            amount = again.amount + (dice.random() < 0.3)
            made.append(msgspec.structs.replace(again, amount=amount))
    return made


def _movement(dice: random.Random, mood: Behaviour, owner: int) -> tuple[str, dict[str, Party]]:
    funding, spot = Party(LEDGER, FUNDING, owner), Party(CORE, SPOT, owner)
    outside, suspense = Party(LEDGER, OUTSIDE, owner), Party(LEDGER, SUSPENSE, owner)
    one, other = (spot, funding) if dice.random() < mood.from_core else (funding, spot)
    if dice.random() < mood.members:
        return _payment(
            dice, owner, spot if one is spot and dice.random() < mood.from_spot else None
        )
    chance = dice.random()
    if chance < mood.deposits:
        return "deposit", {"source": outside, "target": one, "suspense": suspense}
    if chance < mood.deposits + mood.withdrawals:
        return "external_withdrawal", {"source": one, "target": outside}
    return "internal_transfer", {"source": one, "target": other}


def _payment(dice: random.Random, guild: int, spot: Party | None) -> tuple[str, dict[str, Party]]:
    """From one member to another; or out of the core, where the debit is between two commits."""
    one, other = dice.choice(((1, 2), (2, 1)))
    parties = dict(payment(guild, one, other))
    if spot is not None:
        parties["source"] = spot
    flow = dice.choice(("pool_transfer", "member_transfer"))
    if flow == "member_transfer":
        del parties["checks"]
    return flow, parties
