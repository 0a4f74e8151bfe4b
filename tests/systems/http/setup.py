"""A table at which the HTTP system and a real little service sit."""

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
TLS = ssl.create_default_context()  # One for all: to load it takes longer than a whole scene.
SECRET = "Bearer s3cr3t-t0ken"

DEBIT = Question(TRANSFER, 0, Verb.DEBIT, PARTY, 1, 100)
CREDIT = Question(TRANSFER, 1, Verb.CREDIT, PARTY, 1, 100, opens=True)
REFUND = Question(TRANSFER, 2, Verb.REFUND, PARTY, 1, 100, undoes=0, expect_done=True)
HOLD = Question(TRANSFER, 3, Verb.HOLD, PARTY, 1, 100)
CAPTURE = Question(TRANSFER, 4, Verb.CAPTURE, PARTY, 1, 100, undoes=3, expect_done=True)
RELEASE = Question(TRANSFER, 5, Verb.RELEASE, PARTY, 1, 100, undoes=3, expect_done=True)
EMPTY_UNDO = Question(TRANSFER, 6, Verb.REFUND, PARTY, 1, 100, undoes=0)


# Everything that keeps an answer from us, before the effect or after it.
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


class Table(NamedTuple):
    """A service and a client that sit at the same table."""

    service: AccountService
    accounts: HttpAccounts
    settings: HttpSettings

    @property
    def balance(self) -> int:
        return self.service.bank.balances[ALICE]

    async def ask(self, question: Question) -> Answer:
        return (await self.accounts.ask([question]))[0]

    def other(self) -> HttpAccounts:
        """Another process of ours, which talks to the same service."""
        return HttpAccounts(self.settings, TLS)


Play: TypeAlias = Callable[[Table], Awaitable[T]]


@contextlib.asynccontextmanager
async def laid(sticky: bool, balance: int, **settings: Any) -> AsyncIterator[Table]:
    async with account_service(sticky=sticky) as service:
        service.bank.balances[ALICE] = balance
        chosen = HttpSettings(
            name="remote",
            base_url=service.url,
            certified_sticky=sticky,
            headers={"Authorization": SECRET},
            **settings,
        )
        service.late_s = 1.5 * chosen.call_s
        async with HttpAccounts(chosen, TLS) as accounts:
            yield Table(service, accounts, chosen)


def play(scene: Play[T], *, sticky: bool = True, balance: int = 1000, **settings: Any) -> T:
    async def whole() -> T:
        async with laid(sticky, balance, **settings) as table:
            return await scene(table)

    return asyncio.run(whole())


# A client that does not wait long, for where the service is going to be silent.
IMPATIENT: dict[str, Any] = {"connect_s": 0.5, "call_s": 0.5}


def at(question: Question, version: int, **changes: Any) -> Question:
    return msgspec.structs.replace(question, version=version, **changes)
