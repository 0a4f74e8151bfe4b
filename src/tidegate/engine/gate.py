"""A running engine on one store, in the words of its users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tidegate.core.money import parse_amount
from tidegate.core.refusals import Refusal
from tidegate.core.request import Account, Asset, Checked, Request, Wish, internal_transfer
from tidegate.core.transfer import Parties, Party
from tidegate.engine.births import Receipt, Said
from tidegate.engine.engine import Engine
from tidegate.store.postgres import PostgresStore, PostgresTransaction
from tidegate.systems.ledger import FUNDING, OUTSIDE, SUSPENSE, Ledger
from tidegate.systems.trading import Trading

LEDGER, CORE = "ledger", "core"

ACCOUNTS: Mapping[str, Account] = {
    "FUNDING": Account(LEDGER, FUNDING),
    "SPOT": Account(CORE, "SPOT"),
    "FUTURE": Account(CORE, "FUTURE", supported=False),
    "MARGIN": Account(CORE, "MARGIN", supported=False),
}


class Crossing(msgspec.Struct, frozen=True):
    """Money that comes into the books or leaves them: once per cid, or not at all."""

    account: str
    asset: str
    amount: str
    cid: str


@dataclass(frozen=True, slots=True)
class Gate:
    """A running engine on one store, in the words of its users."""

    engine: Engine[PostgresTransaction]
    store: PostgresStore
    ledger: Ledger
    core: Trading | None
    assets: dict[str, Asset]
    accounts: Mapping[str, Account] = field(default_factory=lambda: ACCOUNTS)

    async def refresh_assets(self) -> None:
        """Asset settings are an operator's to change while we run."""
        self.assets.update(await self.store.assets())

    async def transfer(
        self, wish: Wish, owner: int, wait_s: float = 0.5, veto: Refusal | None = None
    ) -> Receipt | Refusal:
        """Move an owner's money between two of the owner's accounts."""
        checked = internal_transfer(wish, owner, self.accounts, self.assets)
        if isinstance(checked, Refusal):
            return checked
        return await self.engine.transfer(checked.request, wait_s, checked.veto or veto)

    async def transfer_all(
        self, wishes: Sequence[tuple[Wish, Refusal | None]], owner: int, wait_s: float = 0.5
    ) -> list[Said]:
        """As `transfer` for each of them and its veto, answered together in their order."""
        known = self.accounts, self.assets
        checked = [(internal_transfer(wish, owner, *known), veto) for wish, veto in wishes]
        asked = [
            Checked(c.request, c.veto or veto) for c, veto in checked if isinstance(c, Checked)
        ]
        said = iter(await self.engine.transfer_all(asked, wait_s))
        return [c if isinstance(c, Refusal) else next(said) for c, _ in checked]

    async def deposit(self, crossing: Crossing, owner: int) -> Receipt | Refusal:
        """Money comes in from outside. An account that will not take it leaves it in suspense."""
        party, outside = self._party(crossing, owner), Party(LEDGER, OUTSIDE, owner)
        if isinstance(party, Refusal):
            return party
        suspense = Party(LEDGER, SUSPENSE, owner)
        parties = {"source": outside, "target": party, "suspense": suspense}
        return await self._cross(crossing, owner, "deposit", parties)

    async def withdraw(self, crossing: Crossing, owner: int) -> Receipt | Refusal:
        """Money leaves the books."""
        party, outside = self._party(crossing, owner), Party(LEDGER, OUTSIDE, owner)
        if isinstance(party, Refusal):
            return party
        parties = {"source": party, "target": outside}
        return await self._cross(crossing, owner, "external_withdrawal", parties)

    def _party(self, crossing: Crossing, owner: int) -> Party | Refusal:
        account = self.accounts.get(crossing.account)
        if account is None:
            return Refusal.INVALID_ACCOUNT_TYPE
        return Party(account.system, account.book, owner)

    async def _cross(
        self, crossing: Crossing, owner: int, flow: str, parties: Parties
    ) -> Receipt | Refusal:
        asset = self.assets.get(crossing.asset)
        if asset is None:
            return Refusal.INVALID_ASSET
        amount = parse_amount(crossing.amount, asset.decimals)
        if isinstance(amount, Refusal):
            return amount
        request = Request(owner, flow, parties, asset.id, amount, crossing.cid)
        return await self.engine.transfer(request)
