"""A piggy bank with two errors that look harmless. The certificate shows what they cost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from examples.adapter import PiggyBank
from examples.adapter_bench import PiggyBench
from tidegate import Answer, Question, Rejected, Unknown


class ForgetfulBank(PiggyBank):
    def store(self, q: Question, version: Any, text: str, code: str, moved: int) -> Answer:
        if code:  # Wrong: a refusal is not stored, because it had no effect.
            return Rejected(code)
        return super().store(q, version, text, code, moved)

    def undo(self, q: Question, stored: dict[Any, Any]) -> tuple[str, int] | Unknown:
        return "", q.amount  # Wrong: it assumes that the debit was done.


@asynccontextmanager
async def bench() -> AsyncIterator[PiggyBench]:
    with TemporaryDirectory() as directory:
        yield PiggyBench(Path(directory) / "bank.db", ForgetfulBank)
