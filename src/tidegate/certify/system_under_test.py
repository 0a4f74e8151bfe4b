"""What a certificate needs of you: the system, a look at the money, and whatever you can break.

Only the first two are required. Everything else a bench may have or not: what it does not have
is not tried, and the certificate says so.
"""

import importlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.ports import LocalSystem, System, Transaction
from tidegate.core.transfer import Question

BOOK, ASSET_ID = "MAIN", 1

Tx = TypeVar("Tx", bound=Transaction)
Tx_co = TypeVar("Tx_co", bound=Transaction, covariant=True)

Trouble: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]


class SystemUnderTest(Protocol):
    """What must be there. `book` and `asset_id` may be, if MAIN and 1 are not what you have."""

    @property
    def system(self) -> System:
        """The adapter. It may be another object after a restart."""

    async def balance(self, owner: int) -> int:
        """What an owner has, read where the money is, and not from what the adapter says."""


@runtime_checkable
class CanFund(Protocol):
    async def fund(self, owner: int, amount: int) -> None:
        """Give an owner money. Without it, the system is asked for a CREDIT that opens."""


@runtime_checkable
class HasSecondClient(Protocol):
    async def another(self) -> System:
        """The same money through a session of its own. Without it, one adapter is asked at once."""


@runtime_checkable
class CanRestart(Protocol):
    async def restart(self) -> None:
        """End the system, however rudely, and start it again on what it had written."""


@runtime_checkable
class CanQuery(Protocol):
    async def query(self, question: Question) -> Answer | None:
        """What is stored under the key of a question; None if nothing is."""


@runtime_checkable
class CanFreeze(Protocol):
    async def freeze(self, owner: int) -> None:
        """Let an account no longer be debited."""


@runtime_checkable
class CanDisable(Protocol):
    async def disable(self, owner: int) -> None:
        """Close an account to everything but refunds."""


@runtime_checkable
class AnswersInOrder(Protocol):
    @property
    def in_order(self) -> bool:
        """Whether each question of a batch sees what the ones before it have done."""


def trouble(bench: SystemUnderTest, name: str) -> Trouble | None:
    """A block in which each ask meets a fault; when it ends, all is well again.

    `killed_before`  the system dies when it has heard the question and done nothing
    `killed_after`   the system dies when it has done it and said nothing
    `reply_lost`     it is done, and the reply never arrives
    `unreachable`    there is nobody to hear the question
    """
    found: Trouble | None = getattr(bench, name, None)
    return found


Opened: TypeAlias = (
    AbstractAsyncContextManager[SystemUnderTest] | Awaitable[SystemUnderTest] | SystemUnderTest
)
Factory: TypeAlias = Callable[[], Opened]


class FactoryNotFound(Exception):
    """There is no factory under this name; one line says what was looked for."""


def load(name: str) -> Factory:
    """The factory at `module:factory`."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise FactoryNotFound(f"{name!r} is not of the form module:factory")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as fault:
        raise FactoryNotFound(f"{name}: {fault}; is its directory on PYTHONPATH?") from fault
    if not callable(found):
        raise FactoryNotFound(f"{module} has no function {attribute!r}")
    factory: Factory = found
    return factory


@asynccontextmanager
async def opened(factory: Factory) -> AsyncIterator[SystemUnderTest]:
    """A bench from a factory that returns one, awaits one, or yields one and cleans up."""
    made = factory()
    if isinstance(made, AbstractAsyncContextManager):
        async with made as bench:
            yield bench
    elif inspect.isawaitable(made):
        yield await made
    else:
        yield made


class TransactingStore(Protocol[Tx_co]):
    def transaction(self) -> AbstractAsyncContextManager[Tx_co]: ...


class LocalSystemAsked(Generic[Tx]):
    """A local system as one outside: each ask is a transaction of its own."""

    def __init__(self, store: TransactingStore[Tx], system: LocalSystem[Tx]) -> None:
        self._store, self._system = store, system
        self.name, self.reversible = system.name, system.reversible

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        accounts = {Account(q.party.owner, q.party.book, q.asset_id) for q in questions}
        async with self._store.transaction() as tx:
            await self._system.lock(tx, sorted(accounts))
            return await self._system.ask(tx, questions)
