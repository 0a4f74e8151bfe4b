"""A piggy bank with two short cuts that look harmless. The certificate says what they cost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from examples.adapter import PiggyBank
from examples.adapter_bench import PiggyBench
from tidegate import Answer, Question, Rejected, Unknown


class ForgetfulBank(PiggyBank):
    def keep(self, q: Question, version: Any, asked: str, why: str, moved: int) -> Answer:
        if why:  # «Nothing happened, so there is nothing to write down.»
            return Rejected(why)
        return super().keep(q, version, asked, why, moved)

    def undo(self, q: Question, kept: dict[Any, Any]) -> tuple[str, int] | Unknown:
        return "", q.amount  # «They ask for a refund, so they must have paid.»


@asynccontextmanager
async def bench() -> AsyncIterator[PiggyBench]:
    with TemporaryDirectory() as directory:
        yield PiggyBench(Path(directory) / "bank.db", ForgetfulBank)
