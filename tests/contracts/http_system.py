"""Benches of a remote account service over real sockets."""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec.structs import replace

from tests.contracts.bench_setup import ASSET, BenchSetup
from tests.systems.http import account_service as remote
from tests.systems.http.account_service import Fault
from tests.systems.http.setup import TLS
from tidegate.core.answers import Answer
from tidegate.core.ports import System
from tidegate.core.transfer import Question
from tidegate.systems.http import HttpAccounts, HttpSettings

IMPATIENT_S = 0.3


class HttpBench:
    """The client and its service. The questions of a batch are sent one by one, concurrently."""

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
        await self._restart_client(self.settings)

    async def _restart_client(self, settings: HttpSettings) -> None:
        """Replace the client by a new one, which has no state but its settings."""
        await self.accounts.aclose()
        self.accounts = HttpAccounts(settings, TLS)

    @asynccontextmanager
    async def killed_before(self) -> AsyncIterator[None]:
        async with self._next_request_meets(Fault.CUT_BEFORE):
            yield

    @asynccontextmanager
    async def killed_after(self) -> AsyncIterator[None]:
        async with self._next_request_meets(Fault.CUT_AFTER):
            yield

    @asynccontextmanager
    async def reply_lost(self) -> AsyncIterator[None]:
        """The service does not reply within the client's timeout."""
        await self._restart_client(
            replace(self.settings, connect_s=IMPATIENT_S, call_s=IMPATIENT_S)
        )
        async with self._next_request_meets(Fault.SILENT_AFTER):
            yield
        await self.restart()

    @asynccontextmanager
    async def _next_request_meets(self, fault: Fault) -> AsyncIterator[None]:
        for path in (remote.TAKING, remote.GIVING):
            self.service.meet(path, fault)
        yield
        left = sum(len(waiting) for waiting in self.service.troubles.values())
        assert left == 1, "not exactly one request met the fault"
        self.service.troubles.clear()

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        with socket.socket() as bound:  # Bound but not listening, so connections are refused.
            bound.bind(("127.0.0.1", 0))
            unused = f"http://127.0.0.1:{bound.getsockname()[1]}"
            await self._restart_client(replace(self.settings, base_url=unused))
            yield
        await self.restart()


@asynccontextmanager
async def http(_: BenchSetup) -> AsyncIterator[HttpBench]:
    """A service that stores its refusals."""
    async with _http(sticky=True) as bench:
        yield bench


@asynccontextmanager
async def forgetful_http(_: BenchSetup) -> AsyncIterator[HttpBench]:
    """A service that does not store refusals, so the client voids the key before it accepts one."""
    async with _http(sticky=False) as bench:
        yield bench


@asynccontextmanager
async def _http(*, sticky: bool) -> AsyncIterator[HttpBench]:
    async with remote.account_service(sticky=sticky) as service, AsyncExitStack() as stack:
        service.bank.refunds_frozen = True
        settings = HttpSettings(name="remote", base_url=service.url, certified_sticky=sticky)
        bench = HttpBench(service, settings, stack)
        try:
            yield bench
        finally:
            await bench.accounts.aclose()
