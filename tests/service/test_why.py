"""A transfer that was accepted and then refused says why, wherever it is shown."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from tests.service.rig import ALICE, Front, Play, token
from tidegate.core.answers import Answer
from tidegate.core.ports import System
from tidegate.core.transfer import Question
from tidegate.engine.gate import CORE

SLOW = {"Prefer": "wait=0"}


class HeldSystem:
    """A system that is asked only when it is let go, so that nothing can end before."""

    reversible = True

    def __init__(self, system: System) -> None:
        self.name, self._system, self.let_go = system.name, system, asyncio.Event()

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        await self.let_go.wait()
        return await self._system.ask(questions)


@asynccontextmanager
async def core_held(front: Front) -> AsyncIterator[None]:
    systems = cast("dict[str, System]", front.gate.engine.context.outside)
    core = systems[CORE]
    systems[CORE] = held = HeldSystem(core)
    yield
    systems[CORE] = core
    held.let_go.set()


async def ended(front: Front, path: str) -> Any:
    async with asyncio.timeout(20):
        while True:
            answer = await front.call("GET", path, who=token(str(ALICE), "user"))
            if answer.body["state"].upper() in ("COMMITTED", "FAILED", "ROLLED_BACK"):
                return answer.body
            await asyncio.sleep(0.02)


def test_what_failed_after_a_202_says_why_on_both_apis(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.fund("SPOT", "1")
        asked = {"from": "SPOT", "to": "FUNDING", "asset": "USDT", "amount": "999"}
        async with core_held(front):
            made = await front.transfer(asked, headers=SLOW)
            assert made.status == 202, made
        shown = await ended(front, f"/api/v1/internal_transfer/{made.body['req_id']}")
        assert (shown["state"], shown["code"]) == ("FAILED", "INSUFFICIENT_BALANCE")
        assert shown["message"] == "Transfer failed: nothing was moved (INSUFFICIENT_BALANCE)"
        older = await ended(front, f"/api/v1/transfer/{made.body['req_id']}")
        assert (older["state"], older["code"]) == ("failed", "INSUFFICIENT_BALANCE")
        assert "INSUFFICIENT_BALANCE" in older["message"]
        who = token(str(ALICE), "user")
        [listed] = (await front.call("GET", "/api/v1/internal_transfer", who=who)).body["transfers"]
        assert listed == shown

    play(scene)


def test_what_was_rolled_back_says_why_and_what_was_paid_says_nothing(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "10")
        await front.fund("SPOT", "1")
        asked = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "2"}
        paid = (await front.transfer(asked)).body
        assert (paid["state"], paid["code"]) == ("COMMITTED", None)
        disabled = {"user_id": ALICE, "account": "SPOT", "asset": "USDT", "status": "DISABLED"}
        assert (await front.desk("POST", "/account_status", disabled)).status == 200
        async with core_held(front):
            made = await front.transfer(asked, headers=SLOW)
            assert made.status == 202, made
        id_ = made.body["req_id"]
        shown = await ended(front, f"/api/v1/internal_transfer/{id_}")
        assert (shown["state"], shown["code"]) == ("ROLLED_BACK", "ACCOUNT_DISABLED")
        older = await ended(front, f"/api/v1/transfer/{id_}")
        assert older["code"] == "ACCOUNT_DISABLED"

    play(scene)
