"""A transfer that was accepted and then refused shows the reason everywhere."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from tests.service.rig import ALICE, ApiClient, Run, token
from tidegate.core.answers import Answer
from tidegate.core.ports import System
from tidegate.core.transfer import Question
from tidegate.engine.gate import CORE

SLOW = {"Prefer": "wait=0"}


class PausedSystem:
    """A system that does not answer until it is released, so that no transfer can end before."""

    reversible = True

    def __init__(self, system: System) -> None:
        self.name, self._system, self.released = system.name, system, asyncio.Event()

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        await self.released.wait()
        return await self._system.ask(questions)


@asynccontextmanager
async def core_paused(api: ApiClient) -> AsyncIterator[None]:
    systems = cast("dict[str, System]", api.gate.engine.context.outside)
    core = systems[CORE]
    systems[CORE] = paused = PausedSystem(core)
    yield
    systems[CORE] = core
    paused.released.set()


async def ended(api: ApiClient, path: str) -> Any:
    async with asyncio.timeout(20):
        while True:
            answer = await api.call("GET", path, bearer=token(str(ALICE), "user"))
            if answer.body["state"].upper() in ("COMMITTED", "FAILED", "ROLLED_BACK"):
                return answer.body
            await asyncio.sleep(0.02)


def test_a_transfer_that_failed_after_a_202_shows_why_on_both_apis(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("SPOT", "1")
        request = {"from": "SPOT", "to": "FUNDING", "asset": "USDT", "amount": "999"}
        async with core_paused(api):
            created = await api.transfer(request, headers=SLOW)
            assert created.status == 202, created
        transfer = await ended(api, f"/api/v1/internal_transfer/{created.body['req_id']}")
        assert (transfer["state"], transfer["code"]) == ("FAILED", "INSUFFICIENT_BALANCE")
        assert transfer["message"] == "Transfer failed: nothing was moved (INSUFFICIENT_BALANCE)"
        old_format = await ended(api, f"/api/v1/transfer/{created.body['req_id']}")
        assert (old_format["state"], old_format["code"]) == ("failed", "INSUFFICIENT_BALANCE")
        assert "INSUFFICIENT_BALANCE" in old_format["message"]
        bearer = token(str(ALICE), "user")
        [listed] = (await api.call("GET", "/api/v1/internal_transfer", bearer=bearer)).body[
            "transfers"
        ]
        assert listed == transfer

    run(scenario)


def test_a_rolled_back_transfer_shows_why_and_a_committed_one_has_no_code(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "10")
        await api.fund("SPOT", "1")
        request = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "2"}
        paid = (await api.transfer(request)).body
        assert (paid["state"], paid["code"]) == ("COMMITTED", None)
        disabled = {"user_id": ALICE, "account": "SPOT", "asset": "USDT", "status": "DISABLED"}
        assert (await api.operator("POST", "/account_status", disabled)).status == 200
        async with core_paused(api):
            created = await api.transfer(request, headers=SLOW)
            assert created.status == 202, created
        id_ = created.body["req_id"]
        transfer = await ended(api, f"/api/v1/internal_transfer/{id_}")
        assert (transfer["state"], transfer["code"]) == ("ROLLED_BACK", "ACCOUNT_DISABLED")
        old_format = await ended(api, f"/api/v1/transfer/{id_}")
        assert old_format["code"] == "ACCOUNT_DISABLED"

    run(scenario)
