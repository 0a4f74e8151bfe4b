"""A running engine on one store, in the words of its users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.core.refusals import Refusal
from tidegate.core.request import Account, Asset, Checked, Wish, internal_transfer
from tidegate.engine.births import Receipt, Said
from tidegate.engine.engine import Engine
from tidegate.engine.forms import DEPOSIT, LEDGER, WITHDRAWAL, Crossing, crossing
from tidegate.store.postgres import PostgresStore, PostgresTransaction
from tidegate.systems.ledger import FUNDING, Ledger
from tidegate.systems.trading import Trading

__all__ = ["ACCOUNTS", "CORE", "LEDGER", "Crossing", "Gate"]

CORE = "core"

ACCOUNTS: Mapping[str, Account] = {
    "FUNDING": Account(LEDGER, FUNDING),
    "SPOT": Account(CORE, "SPOT"),
    "FUTURE": Account(CORE, "FUTURE", supported=False),
    "MARGIN": Account(CORE, "MARGIN", supported=False),
}


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

    async def deposit(self, wanted: Crossing, owner: int) -> Receipt | Refusal:
        """Money comes in from outside. An account that will not take it leaves it in suspense."""
        return await self._cross(DEPOSIT, wanted, owner)

    async def withdraw(self, wanted: Crossing, owner: int) -> Receipt | Refusal:
        """Money leaves the books."""
        return await self._cross(WITHDRAWAL, wanted, owner)

    async def _cross(self, flow: str, wanted: Crossing, owner: int) -> Receipt | Refusal:
        request = crossing(flow, wanted, owner, self.accounts, self.assets)
        return request if isinstance(request, Refusal) else await self.engine.transfer(request)
