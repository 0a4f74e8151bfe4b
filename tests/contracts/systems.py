"""A bench for each account system, so that one certificate can be run on all of them."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias
from uuid import UUID

from msgspec.structs import replace

from tests.contracts.bench_setup import ASSET, BenchSetup
from tests.contracts.core_systems import core_in_memory, core_process
from tests.contracts.http_system import forgetful_http, http
from tests.contracts.ledger_systems import ledger, ledger_twin
from tidegate.core.answers import Answer, Done
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.ports import System
from tidegate.core.transfer import Question

OWNER = 7
_numbers = itertools.count(1)


class SystemBench(Protocol):
    """A bench for the certificate, with methods that tests call directly."""

    @property
    def system(self) -> System: ...

    @property
    def book(self) -> str: ...

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]: ...

    async def query(self, question: Question) -> Answer | None: ...

    async def balance(self, owner: int) -> int: ...

    async def set_status(self, owner: int, status: str) -> None: ...


OpenBench: TypeAlias = Callable[[BenchSetup], AbstractAsyncContextManager[SystemBench]]

BENCHES: dict[str, OpenBench] = {
    "ledger": ledger,
    "ledger twin": ledger_twin,
    "core in memory": core_in_memory,
    "core process": core_process,
    "http": http,
    "forgetful http": forgetful_http,
}


def question(bench: SystemBench, verb: Verb, amount: int, owner: int = OWNER) -> Question:
    """A new question about a new transfer."""
    party = Party("bench", bench.book, owner)
    return Question(UUID(int=next(_numbers) << 80), 0, verb, party, ASSET, amount)


async def fund(bench: SystemBench, amount: int, owner: int = OWNER) -> None:
    credit = replace(question(bench, Verb.CREDIT, amount, owner), opens=True)
    [answer] = await bench.ask([credit])
    assert isinstance(answer, Done)
