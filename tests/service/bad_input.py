"""What bad input is made from, and how it is refused."""

from typing import Any

from tests.service.rig import ALICE, Answer, Front, bearer

IN = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1"}
MAKE = "/api/v1/internal_transfer"
WHO = bearer(str(ALICE), "user")
DESK = bearer("olga", "operator")


def refused(said: Answer, status: int = 400, code: str = "INVALID_REQUEST") -> None:
    assert (said.status, said.body["code"]) == (status, code), said
    assert said.headers["content-type"] == "application/problem+json"
    assert set(said.body) >= {"type", "title", "status", "detail", "retryable", "request_id"}


async def raw(front: Front, body: bytes, **more: Any) -> Answer:
    headers = {"Content-Type": "application/json"} | more.get("headers", {})
    path, who = more.get("path", MAKE), more.get("who", WHO)
    return await front.call("POST", path, who=who, content=body, headers=headers)
