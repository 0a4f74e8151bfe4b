"""The interface of a running engine on one store: transfers, deposits and withdrawals."""

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
    """A running engine with its store, its ledger and its trading core."""

    engine: Engine[PostgresTransaction]
    store: PostgresStore
    ledger: Ledger
    core: TradingCoreClient | None
    assets: dict[str, Asset]
    accounts: Mapping[str, AccountType] = field(default_factory=lambda: ACCOUNTS)
    has_economy: bool = False  # Whether the guild economy is installed for this store.

    async def refresh_assets(self) -> None:
        """Read the asset settings again: an operator may have changed them."""
        self.assets.update(await self.store.assets())

    async def transfer(
        self, wanted: TransferRequest, owner: int, wait_s: float = 0.5, veto: Refusal | None = None
    ) -> Receipt | Refusal:
        """Move an owner's money between two of the owner's accounts."""
        checked = internal_transfer(wanted, owner, self.accounts, self.assets)
        if isinstance(checked, Refusal):
            return checked
        return await self.engine.transfer(checked.request, wait_s, checked.veto or veto)

    async def transfer_all(
        self,
        wanted: Sequence[tuple[TransferRequest, Refusal | None]],
        owner: int,
        wait_s: float = 0.5,
    ) -> list[RequestResult]:
        """Call `transfer` for each request and its veto. Return all results in their order."""
        checked = [
            (internal_transfer(request, owner, self.accounts, self.assets), veto)
            for request, veto in wanted
        ]
        valid = [
            CheckedRequest(c.request, c.veto or veto)
            for c, veto in checked
            if isinstance(c, CheckedRequest)
        ]
        results = iter(await self.engine.transfer_all(valid, wait_s))
        return [c if isinstance(c, Refusal) else next(results) for c, _ in checked]

    async def deposit(self, wanted: ExternalTransfer, owner: int) -> Receipt | Refusal:
        """Credit money that came from outside. If the account refuses it, it goes to suspense."""
        return await self._transfer_external(DEPOSIT, wanted, owner)

    async def withdraw(self, wanted: ExternalTransfer, owner: int) -> Receipt | Refusal:
        """Debit money that leaves the books."""
        return await self._transfer_external(WITHDRAWAL, wanted, owner)

    async def _transfer_external(
        self, flow: str, wanted: ExternalTransfer, owner: int
    ) -> Receipt | Refusal:
        request = external_transfer(flow, wanted, owner, self.accounts, self.assets)
        return request if isinstance(request, Refusal) else await self.engine.transfer(request)
