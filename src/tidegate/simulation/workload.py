"""The requests of a seed, and its disturbances of accounts, clocks and processes."""

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
# Each owner is also a guild. These are the books of its members.
MEMBERS = (book_of(1), book_of(2))
BOOKS = (FUNDING, SPOT, OUTSIDE, SUSPENSE, *MEMBERS)
POOL_S = 12.0  # The life of a pool transfer: it is approved within this time or expires.
TRANSFERS = 20
MORE = 6  # Further transfers, in seeds where daily limits refuse some.
TROUBLE_S = (105.0, 140.0)  # Longer than any question waits until it pages.
LONG_TROUBLE_S = (900.0, 1_000.0)
AMOUNTS = (1, 10, 100, 400, 900, 2_500)


class CoreTrouble(StrEnum):
    """What keeps the core from answering for some time."""

    NONE = ""
    OUTAGE = "outage"  # It is down for longer than any question waits until it pages.
    BUSY = "busy"  # It runs but accepts nothing, for as long.
    FOREIGN = "foreign core"  # Another core runs in its place, on an empty disk.

    @property
    def lasts(self) -> bool:
        return self in (CoreTrouble.OUTAGE, CoreTrouble.BUSY)


@dataclass(slots=True)
class Behaviour:
    """The requests and disturbances of a seed. Numbers without a unit are probabilities."""

    pause_s: float = 0.5  # The longest pause between two rounds of disturbances.
    status_changes: float = 0.0  # That a round changes the status of an account.
    books: tuple[str, ...] = BOOKS
    blocking: float = 0.5  # That a status change blocks the account, and does not unblock it.
    blocked_statuses: tuple[LedgerStatus, ...] = (LedgerStatus.FROZEN, LedgerStatus.DISABLED)
    # The owners whose core account is filled up between a debit and its refund.
    filled_owners: frozenset[int] = frozenset()
    core_trouble: CoreTrouble = CoreTrouble.NONE
    clock_jumps: float = 0.0  # That a round sets the clock of a worker.
    kills: float = 0.0  # That a round kills a worker.
    from_core: float = 0.5  # That money moves from the core, and not to it.
    deposits: float = 0.2
    withdrawals: float = 0.2
    from_spot: float = 0.5  # That a guild payment drawn from the core is paid from it.
    members: float = 0.3  # That a request is a payment between members of a guild.
    lock_holds: float = 0.0  # That a round lets a foreign session lock an account or a transfer.
    database_clock_jumps: float = 0.0  # That a round sets the database's clock.
    retiring: bool = False  # The core retires ended operations, and the seed is longer.
    trouble_s: tuple[float, float] = TROUBLE_S

    @classmethod
    def from_dice(cls, dice: random.Random) -> "Behaviour":
        """Draw the behaviour of a seed."""
        behaviour = cls(
            pause_s=dice.uniform(0.2, 1.2),
            status_changes=1.0 if dice.random() < 0.8 else 0.0,
            books=BOOKS if dice.random() < 0.5 else (dice.choice(BOOKS),),
            blocking=dice.uniform(0.2, 0.8),
            core_trouble=dice.choices(tuple(CoreTrouble), (0.89, 0.035, 0.035, 0.04))[0],
            clock_jumps=dice.choice((0.0, dice.random() * 0.5)),
            kills=dice.choice((0.0, dice.random() * 0.3)),
        )
        behaviour._favour_rare_paths(dice.random())
        if dice.random() < 0.11:
            # No guild payments: the expiry of a pool transfer depends on the clock itself.
            behaviour.database_clock_jumps, behaviour.members = dice.uniform(0.1, 0.5), 0.0
            behaviour.retiring = dice.random() < 0.8
            if behaviour.retiring:
                # The ids of the world's own operations are below every floor.
                behaviour.filled_owners = frozenset()
        if dice.random() < 0.1:
            behaviour.lock_holds = dice.uniform(0.1, 0.3)
        if behaviour.core_trouble is CoreTrouble.OUTAGE and dice.random() < 0.3:
            behaviour.trouble_s = LONG_TROUBLE_S
        return behaviour

    def _favour_rare_paths(self, chance: float) -> None:
        """In some seeds, make paths likely that independent draws would seldom reach."""
        if chance < 0.20:
            # Money leaves the core, the target refuses it, and the refund does not fit.
            self.filled_owners, self.from_core, self.withdrawals = frozenset(OWNERS), 0.9, 0.4
            self.status_changes, self.books, self.blocking = 1.0, (FUNDING, OUTSIDE, *MEMBERS), 0.8
            self.members, self.from_spot, self.blocked_statuses = 0.6, 1.0, (LedgerStatus.DISABLED,)
        elif chance < 0.28:
            # The target refuses a deposit, and the suspense book refuses it, too.
            self.status_changes, self.books, self.blocking = 1.0, (FUNDING, SPOT, SUSPENSE), 0.85
            self.blocked_statuses, self.deposits = (LedgerStatus.DISABLED,), 0.6
        elif chance < 0.44:
            # The target refuses. If the core cannot undo the debit, the transfer must wait.
            self.status_changes, self.books, self.blocking = 1.0, (FUNDING, OUTSIDE, *MEMBERS), 0.7
            self.members, self.from_spot = 0.65, 1.0
            self.blocked_statuses, self.from_core, self.withdrawals = (
                (LedgerStatus.DISABLED,),
                0.8,
                0.4,
            )


def requests(dice: random.Random, behaviour: Behaviour, count: int = TRANSFERS) -> list[Request]:
    """Random requests of all flows. Some come twice, and some with the key of another request."""
    drawn: list[Request] = []
    for number in range(count):
        owner = dice.choice(OWNERS)
        flow, parties = _movement(dice, behaviour, owner)
        request = Request(owner, flow, parties, ASSET, dice.choice(AMOUNTS), f"cid-{number}")
        if flow == "pool_transfer":
            request = msgspec.structs.replace(request, lives_s=POOL_S)
        drawn.append(request)
        if dice.random() < 0.1:
            repeated = dice.choice(drawn)
            amount = repeated.amount + (dice.random() < 0.3)
            drawn.append(msgspec.structs.replace(repeated, amount=amount))
    return drawn


def _movement(
    dice: random.Random, behaviour: Behaviour, owner: int
) -> tuple[str, dict[str, Party]]:
    funding, spot = Party(LEDGER, FUNDING, owner), Party(CORE, SPOT, owner)
    outside, suspense = Party(LEDGER, OUTSIDE, owner), Party(LEDGER, SUSPENSE, owner)
    source, target = (spot, funding) if dice.random() < behaviour.from_core else (funding, spot)
    if dice.random() < behaviour.members:
        return _payment(
            dice, owner, spot if source is spot and dice.random() < behaviour.from_spot else None
        )
    chance = dice.random()
    if chance < behaviour.deposits:
        return "deposit", {"source": outside, "target": source, "suspense": suspense}
    if chance < behaviour.deposits + behaviour.withdrawals:
        return "external_withdrawal", {"source": source, "target": outside}
    return "internal_transfer", {"source": source, "target": target}


def _payment(dice: random.Random, guild: int, spot: Party | None) -> tuple[str, dict[str, Party]]:
    """A payment between two members, or from the core, whose debit is between two commits."""
    payer, payee = dice.choice(((1, 2), (2, 1)))
    parties = dict(payment(guild, payer, payee))
    if spot is not None:
        parties["source"] = spot
    flow = dice.choice(("pool_transfer", "member_transfer"))
    if flow == "member_transfer":
        del parties["checks"]
    return flow, parties
