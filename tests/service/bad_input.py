"""Parts of bad requests, and the check that a request was refused."""

from typing import Any

from tests.service.rig import ALICE, Answer, ApiClient, bearer

IN = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1"}
MAKE = "/api/v1/internal_transfer"
USER = bearer(str(ALICE), "user")
OPERATOR = bearer("olga", "operator")


def refused(reply: Answer, status: int = 400, code: str = "INVALID_REQUEST") -> None:
    assert (reply.status, reply.body["code"]) == (status, code), reply
    assert reply.headers["content-type"] == "application/problem+json"
    assert set(reply.body) >= {"type", "title", "status", "detail", "retryable", "request_id"}


async def raw(api: ApiClient, body: bytes, **more: Any) -> Answer:
    headers = {"Content-Type": "application/json"} | more.get("headers", {})
    path, bearer = more.get("path", MAKE), more.get("bearer", USER)
    return await api.call("POST", path, bearer=bearer, content=body, headers=headers)
