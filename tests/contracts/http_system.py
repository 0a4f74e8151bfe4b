"""A remote account service on a bench, over real sockets."""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec.structs import replace

from tests.contracts.surroundings import ASSET, Place
from tests.systems.http import account_service as remote
from tests.systems.http.account_service import Fault
from tests.systems.http.setup import TLS
from tidegate.core.answers import Answer
from tidegate.core.ports import System
from tidegate.core.transfer import Question
from tidegate.systems.http import HttpAccounts, HttpSettings

IMPATIENT_S = 0.3


class HttpDesk:
    """The client and its service. Batches are put question by question, several at once."""

    book, asset_id = "FUNDING", ASSET

    def __init__(
        self, service: remote.AccountService, settings: HttpSettings, stack: AsyncExitStack
    ) -> None:
        self.service, self.settings, self._stack = service, settings, stack
        self.accounts = HttpAccounts(settings, TLS)

    @property
    def system(self) -> System:
        return self.accounts

    async def another(self) -> System:
        return await self._stack.enter_async_context(HttpAccounts(self.settings, TLS))

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        return await self.accounts.ask(questions)

    async def query(self, question: Question) -> Answer | None:
        return await self.accounts.query(question)

    async def balance(self, owner: int) -> int:
        return self.service.bank.balances[remote.Account(owner, self.book, str(ASSET))]

    async def set_status(self, owner: int, status: str) -> None:
        account, frozen = remote.Account(owner, self.book, str(ASSET)), self.service.bank.frozen
        (frozen.discard if status == "ACTIVE" else frozen.add)(account)

    async def freeze(self, owner: int) -> None:
        await self.set_status(owner, "FROZEN")

    async def restart(self) -> None:
        await self._become(self.settings)

    async def _become(self, settings: HttpSettings) -> None:
        """Our side begins anew, and knows nothing but the address."""
        await self.accounts.aclose()
        self.accounts = HttpAccounts(settings, TLS)

    @asynccontextmanager
    async def killed_before(self) -> AsyncIterator[None]:
        async with self._meeting(Fault.CUT_BEFORE):
            yield

    @asynccontextmanager
    async def killed_after(self) -> AsyncIterator[None]:
        async with self._meeting(Fault.CUT_AFTER):
            yield

    @asynccontextmanager
    async def reply_lost(self) -> AsyncIterator[None]:
        """The service is silent, for longer than we wait."""
        await self._become(replace(self.settings, connect_s=IMPATIENT_S, call_s=IMPATIENT_S))
        async with self._meeting(Fault.SILENT_AFTER):
            yield
        await self.restart()

    @asynccontextmanager
    async def _meeting(self, fault: Fault) -> AsyncIterator[None]:
        for path in (remote.TAKING, remote.GIVING):
            self.service.meet(path, fault)
        yield
        left = sum(len(waiting) for waiting in self.service.troubles.values())
        assert left == 1, "one request met the fault"
        self.service.troubles.clear()

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        with socket.socket() as bound:  # It is bound and does not listen: nobody is there.
            bound.bind(("127.0.0.1", 0))
            nobody = f"http://127.0.0.1:{bound.getsockname()[1]}"
            await self._become(replace(self.settings, base_url=nobody))
            yield
        await self.restart()


@asynccontextmanager
async def http(_: Place) -> AsyncIterator[HttpDesk]:
    """One that keeps its refusals."""
    async with _http(sticky=True) as desk:
        yield desk


@asynccontextmanager
async def forgetful_http(_: Place) -> AsyncIterator[HttpDesk]:
    """One that forgets its refusals, so that the client voids the key before it believes one."""
    async with _http(sticky=False) as desk:
        yield desk


@asynccontextmanager
async def _http(*, sticky: bool) -> AsyncIterator[HttpDesk]:
    async with remote.account_service(sticky=sticky) as service, AsyncExitStack() as stack:
        service.bank.refunds_frozen = True
        settings = HttpSettings(name="remote", base_url=service.url, certified_sticky=sticky)
        desk = HttpDesk(service, settings, stack)
        try:
            yield desk
        finally:
            await desk.accounts.aclose()
