"""A running engine on one store, in the words of its users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.core.refusals import Refusal
from tidegate.core.request import (
    AccountType,
    Asset,
    CheckedRequest,
    TransferRequest,
    internal_transfer,
)
from tidegate.engine.engine import Engine
from tidegate.engine.pending_request import Receipt, RequestResult
from tidegate.engine.request_forms import (
    DEPOSIT,
    LEDGER,
    WITHDRAWAL,
    ExternalTransfer,
    external_transfer,
)
from tidegate.store.postgres import PostgresStore
from tidegate.store.transaction import PostgresTransaction
from tidegate.systems.ledger import FUNDING, Ledger
from tidegate.systems.trading import TradingCoreClient

CORE = "core"

ACCOUNTS: Mapping[str, AccountType] = {
    "FUNDING": AccountType(LEDGER, FUNDING),
    "SPOT": AccountType(CORE, "SPOT"),
    "FUTURE": AccountType(CORE, "FUTURE", supported=False),
    "MARGIN": AccountType(CORE, "MARGIN", supported=False),
}


@dataclass(frozen=True, slots=True)
class Gate:
    """A running engine on one store, in the words of its users."""

    engine: Engine[PostgresTransaction]
    store: PostgresStore
    ledger: Ledger
    core: TradingCoreClient | None
    assets: dict[str, Asset]
    accounts: Mapping[str, AccountType] = field(default_factory=lambda: ACCOUNTS)

    async def refresh_assets(self) -> None:
        """Asset settings are an operator's to change while we run."""
        self.assets.update(await self.store.assets())

    async def transfer(
        self, wish: TransferRequest, owner: int, wait_s: float = 0.5, veto: Refusal | None = None
    ) -> Receipt | Refusal:
        """Move an owner's money between two of the owner's accounts."""
        checked = internal_transfer(wish, owner, self.accounts, self.assets)
        if isinstance(checked, Refusal):
            return checked
        return await self.engine.transfer(checked.request, wait_s, checked.veto or veto)

    async def transfer_all(
        self,
        wishes: Sequence[tuple[TransferRequest, Refusal | None]],
        owner: int,
        wait_s: float = 0.5,
    ) -> list[RequestResult]:
        """As `transfer` for each of them and its veto, answered together in their order."""
        known = self.accounts, self.assets
        checked = [(internal_transfer(wish, owner, *known), veto) for wish, veto in wishes]
        asked = [
            CheckedRequest(c.request, c.veto or veto)
            for c, veto in checked
            if isinstance(c, CheckedRequest)
        ]
        said = iter(await self.engine.transfer_all(asked, wait_s))
        return [c if isinstance(c, Refusal) else next(said) for c, _ in checked]

    async def deposit(self, wanted: ExternalTransfer, owner: int) -> Receipt | Refusal:
        """Money comes in from outside. An account that will not take it leaves it in suspense."""
        return await self._cross(DEPOSIT, wanted, owner)

    async def withdraw(self, wanted: ExternalTransfer, owner: int) -> Receipt | Refusal:
        """Money leaves the books."""
        return await self._cross(WITHDRAWAL, wanted, owner)

    async def _cross(self, flow: str, wanted: ExternalTransfer, owner: int) -> Receipt | Refusal:
        request = external_transfer(flow, wanted, owner, self.accounts, self.assets)
        return request if isinstance(request, Refusal) else await self.engine.transfer(request)
