"""Set up a small account service on a real socket, with an HTTP system as its client."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from tests.systems.http.account_service import (
    Account,
    AccountService,
    Fault,
    account_service,
)
from tidegate.core.answers import Answer
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.transfer import Question
from tidegate.systems.http import HttpAccounts, HttpSettings

T = TypeVar("T")

TRANSFER = UUID("0190aaaa-bbbb-7ccc-8ddd-eeeeeeeeeeee")
ALICE = Account(7, "FUNDING", "1")
PARTY = Party("remote", "FUNDING", 7)
TLS = ssl.create_default_context()  # Shared: loading it takes longer than a whole scene.
SECRET = "Bearer s3cr3t-t0ken"

DEBIT = Question(TRANSFER, 0, Verb.DEBIT, PARTY, 1, 100)
CREDIT = Question(TRANSFER, 1, Verb.CREDIT, PARTY, 1, 100, opens=True)
REFUND = Question(TRANSFER, 2, Verb.REFUND, PARTY, 1, 100, undoes=0, expect_done=True)
HOLD = Question(TRANSFER, 3, Verb.HOLD, PARTY, 1, 100)
CAPTURE = Question(TRANSFER, 4, Verb.CAPTURE, PARTY, 1, 100, undoes=3, expect_done=True)
RELEASE = Question(TRANSFER, 5, Verb.RELEASE, PARTY, 1, 100, undoes=3, expect_done=True)
EMPTY_UNDO = Question(TRANSFER, 6, Verb.REFUND, PARTY, 1, 100, undoes=0)


# All faults that lose the reply, before or after the effect.
LOSSES = [
    Fault.SILENT_BEFORE,
    Fault.SILENT_AFTER,
    Fault.ERROR_BEFORE,
    Fault.ERROR_AFTER,
    Fault.PROXY_BEFORE,
    Fault.PROXY_AFTER,
    Fault.CUT_BEFORE,
    Fault.CUT_AFTER,
    Fault.HUGE_AFTER,
    Fault.LATE,
]


class Remote(NamedTuple):
    """A running service, and a client that is connected to it."""

    service: AccountService
    accounts: HttpAccounts
    settings: HttpSettings

    @property
    def balance(self) -> int:
        return self.service.bank.balances[ALICE]

    async def ask(self, question: Question) -> Answer:
        return (await self.accounts.ask([question]))[0]

    def other(self) -> HttpAccounts:
        """A second client of the same service, as in another Tidegate process."""
        return HttpAccounts(self.settings, TLS)


Play: TypeAlias = Callable[[Remote], Awaitable[T]]


@contextlib.asynccontextmanager
async def running(sticky: bool, balance: int, **settings: Any) -> AsyncIterator[Remote]:
    async with account_service(sticky=sticky) as service:
        service.bank.balances[ALICE] = balance
        all_settings = HttpSettings(
            name="remote",
            base_url=service.url,
            certified_sticky=sticky,
            headers={"Authorization": SECRET},
            **settings,
        )
        service.late_s = 1.5 * all_settings.call_s
        async with HttpAccounts(all_settings, TLS) as accounts:
            yield Remote(service, accounts, all_settings)


def play(scene: Play[T], *, sticky: bool = True, balance: int = 1000, **settings: Any) -> T:
    async def run() -> T:
        async with running(sticky, balance, **settings) as remote:
            return await scene(remote)

    return asyncio.run(run())


# Short timeouts, for services that do not reply.
IMPATIENT: dict[str, Any] = {"connect_s": 0.5, "call_s": 0.5}


def with_version(question: Question, version: int, **changes: Any) -> Question:
    return msgspec.structs.replace(question, version=version, **changes)
