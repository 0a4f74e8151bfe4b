"""Bugs of the inbox: in its locks, its outcomes and the expiry of requests."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from tidegate.core.ports import AfterLock, no_action
from tidegate.core.refusals import Refusal
from tidegate.engine import local_answers, write_batch
from tidegate.engine.context import EngineContext
from tidegate.engine.write_batch import WriteBatch, WriteResult
from tidegate.store.inbox import MemoryInbox

Patch = pytest.MonkeyPatch


def inbox_takes_without_a_lock(patch: Patch) -> None:
    """An inbox request is created without a check whether another process has created it."""

    async def take(
        self: MemoryInbox, tx: Any, ids: Sequence[UUID], after_lock: AfterLock = no_action
    ) -> Sequence[UUID]:
        await after_lock()
        return ids

    patch.setattr(MemoryInbox, "take", take)


def inbox_decides_later(patch: Patch) -> None:
    """The outcome of an inbox request is written in another transaction, or not at all."""
    unpatched, once = local_answers.decide_requests, write_batch._write_once

    async def decide(context: EngineContext[Any], tx: Any, created: Any, refused: Any) -> None:
        if refused:
            await unpatched(context, tx, (), refused)

    async def written(context: EngineContext[Any], work: WriteBatch, **options: Any) -> WriteResult:
        result = await once(context, work, **options)
        made = [row.id for row in result.rows if work.creations and work.creations[0].inbox_request]
        if made:
            async with context.store.transaction() as tx:
                await unpatched(context, tx, made, ())
        return result

    patch.setattr(write_batch, "decide_requests", decide)
    patch.setattr(write_batch, "_write_once", written)


def expiry_is_judged_at_the_claim(patch: Patch) -> None:
    """An inbox request that expires after its claim is still created."""

    def refused(creation: write_batch.Creation, at_us: int) -> Refusal | None:
        return creation.refusal

    patch.setattr(write_batch, "_early_refusal", refused)
