"""The protocol of a test bench: the system, a way to read balances, and ways to cause faults.

Only the system and the balance are required. If a bench lacks an optional member, the checks that
need it are not tried, and the report lists them as such.
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
    """The required members. Add `book` and `asset_id` if the system has no book MAIN or asset 1."""

    @property
    def system(self) -> System:
        """The adapter. It may be another object after a restart."""

    async def balance(self, owner: int) -> int:
        """The balance of an owner, read directly from where it is stored, not from the adapter."""


@runtime_checkable
class CanFund(Protocol):
    async def fund(self, owner: int, amount: int) -> None:
        """Give an owner money. Without this, the check asks for a CREDIT that opens the account."""


@runtime_checkable
class HasSecondClient(Protocol):
    async def another(self) -> System:
        """A second adapter on the same accounts. Without this, races use one adapter only."""


@runtime_checkable
class CanRestart(Protocol):
    async def restart(self) -> None:
        """Stop the system, by force if you like, and start it again on its stored state."""


@runtime_checkable
class CanQuery(Protocol):
    async def query(self, question: Question) -> Answer | None:
        """The answer stored under the key of a question, or None."""


@runtime_checkable
class CanFreeze(Protocol):
    async def freeze(self, owner: int) -> None:
        """Freeze an account: it refuses debits."""


@runtime_checkable
class CanDisable(Protocol):
    async def disable(self, owner: int) -> None:
        """Disable an account: it refuses everything except refunds."""


@runtime_checkable
class AnswersInOrder(Protocol):
    @property
    def in_order(self) -> bool:
        """Whether each question of a batch sees the effects of those before it."""


def trouble(bench: SystemUnderTest, name: str) -> Trouble | None:
    """A context manager: each ask inside it meets a fault. Afterwards the system works again.

    `killed_before`  the system crashes after it received the question, before the effect
    `killed_after`   the system crashes after the effect, before the reply
    `reply_lost`     the system carries the question out, and its reply is lost
    `unreachable`    no question reaches the system
    """
    block: Trouble | None = getattr(bench, name, None)
    return block


FactoryResult: TypeAlias = (
    AbstractAsyncContextManager[SystemUnderTest] | Awaitable[SystemUnderTest] | SystemUnderTest
)
Factory: TypeAlias = Callable[[], FactoryResult]


class FactoryNotFound(Exception):
    """The factory does not exist. The message is one line for the user."""


def load(name: str) -> Factory:
    """Import the factory named `module:function`."""
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
async def open_bench(factory: Factory) -> AsyncIterator[SystemUnderTest]:
    """Make a bench. The factory is a function, a coroutine or an asynchronous context manager."""
    result = factory()
    if isinstance(result, AbstractAsyncContextManager):
        async with result as bench:
            yield bench
    elif inspect.isawaitable(result):
        yield await result
    else:
        yield result


class TransactingStore(Protocol[Tx_co]):
    def transaction(self) -> AbstractAsyncContextManager[Tx_co]: ...


class LocalSystemAdapter(Generic[Tx]):
    """Makes a local system look like an outside one: each ask runs in its own transaction."""

    def __init__(self, store: TransactingStore[Tx], system: LocalSystem[Tx]) -> None:
        self._store, self._system = store, system
        self.name, self.reversible = system.name, system.reversible

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        accounts = {Account(q.party.owner, q.party.book, q.asset_id) for q in questions}
        async with self._store.transaction() as tx:
            await self._system.lock(tx, sorted(accounts))
            return await self._system.ask(tx, questions)
