"""FastAPI before the literal protocol: what one would write in an afternoon, and no slower."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import jwt
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel, Field

from bench.literal import COMMITTED, Literal
from bench.rail import open_core, open_sql
from bench.spec import DECIMALS, Spec
from bench.traffic import Order
from tidegate.core.money import parse_amount
from tidegate.core.refusals import Refusal

SPEC = Spec(
    kind="literal",
    database=os.environ["BENCH_DATABASE"],
    core=os.environ["BENCH_CORE"],
    inflight=int(os.environ["BENCH_INFLIGHT"]),
    seconds=0,
    warm_s=0,
    driver="asyncpg",
)
[KEY] = json.loads(Path(os.environ["BENCH_KEYS"]).read_text())["keys"]
PUBLIC = jwt.PyJWK(KEY)
ACCOUNTS = ("FUNDING", "SPOT")


class Wish(BaseModel):
    source: str = Field(alias="from")
    target: str = Field(alias="to")
    asset: str
    amount: str
    cid: str


def owner_of(authorization: Annotated[str, Header()]) -> int:
    try:
        claims = jwt.decode(
            authorization.removeprefix("Bearer "),
            PUBLIC,
            algorithms=["EdDSA"],
            issuer="tidegate",
            audience="tidegate",
        )
    except jwt.InvalidTokenError as fault:
        raise HTTPException(401, str(fault)) from fault
    return int(claims["sub"])


@asynccontextmanager
async def lifespan(service: FastAPI) -> AsyncIterator[None]:
    async with open_sql(SPEC) as sql, open_core(SPEC) as core:
        service.state.literal = Literal(sql, core)
        yield


app = FastAPI(lifespan=lifespan)


async def transfer(wish: Wish, owner: Annotated[int, Depends(owner_of)]) -> dict[str, Any]:
    if wish.source == wish.target or {wish.source, wish.target} != set(ACCOUNTS):
        raise HTTPException(400, "INVALID_ACCOUNT_TYPE")
    amount = parse_amount(wish.amount, DECIMALS)
    if isinstance(amount, Refusal):
        raise HTTPException(400, str(amount))
    order = Order(owner, wish.source == "FUNDING", amount, wish.cid)
    state = await app.state.literal.transfer(order)
    if state != COMMITTED:
        raise HTTPException(422, "INSUFFICIENT_BALANCE")
    return {"from": wish.source, "to": wish.target, "state": "COMMITTED", "cid": wish.cid}


async def healthz() -> dict[str, str]:
    return {"status": "ok"}


app.add_api_route("/api/v1/internal_transfer", transfer, methods=["POST"], status_code=201)
app.add_api_route("/healthz", healthz)
