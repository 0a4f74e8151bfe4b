"""A program's own flow is requested through the inbox, and its form builds the request."""

import asyncio

import psycopg
import pytest
from psycopg.types.json import Jsonb

import tidegate as tg
from examples.own_flow import PRIZE, CardNetwork
from tests.conftest import SCHEMA
from tidegate.core.request import CheckedRequest

pytestmark = pytest.mark.slow

POINT = 6
REQUEST = "SELECT request_transfer('prize', 7, 'POINT', 40, %s, 'won-1')"
STATE = "SELECT state FROM transfers WHERE id = %s"
OUTCOME = "SELECT outcome, refusal FROM inbox WHERE id = %s"


def prize(inbox_request: tg.InboxRequest) -> CheckedRequest | tg.Refusal:
    if inbox_request.terms.keys() != {"card"}:
        return tg.Refusal.INVALID_REQUEST
    parties = {
        "source": tg.Party("ledger", "FUNDING", inbox_request.owner),
        "target": tg.Party("cards", inbox_request.terms["card"], inbox_request.owner),
    }
    return CheckedRequest(
        tg.Request(inbox_request.owner, "prize", parties, POINT, inbox_request.amount)
    )


def test_a_request_for_a_programs_own_flow_is_built_by_its_form(database: str) -> None:
    tg.migrate(database, SCHEMA, tg.all_flows(PRIZE))
    setup = tg.Setup(
        database, schema=SCHEMA, flows=(PRIZE,), systems=(CardNetwork(),), forms={"prize": prize}
    )

    async def scene(connection: psycopg.Connection) -> None:
        connection.execute("INSERT INTO inbox_grants VALUES ('tidegate_inbox', 'prize')")
        with pytest.raises(psycopg.errors.CheckViolation, match="cannot be requested here"):
            connection.execute(REQUEST, (Jsonb({"card": "visa"}),))
        connection.execute("INSERT INTO inbox_flows (flow) VALUES ('prize')")
        async with tg.open_gate(setup) as gate:
            await gate.deposit(tg.ExternalTransfer("FUNDING", "POINT", "100", cid="start"), 7)
            [(id_,)] = connection.execute(REQUEST, (Jsonb({"card": "visa"}),)).fetchall()
            for _ in range(1_500):
                if connection.execute(STATE, (id_,)).fetchall() == [("PAID",)]:
                    break
                await asyncio.sleep(0.02)
            assert connection.execute(STATE, (id_,)).fetchall() == [("PAID",)]
            assert connection.execute(OUTCOME, (id_,)).fetchall() == [("created", None)]

    with psycopg.connect(
        database, autocommit=True, options=f"-c search_path={SCHEMA},tidegate"
    ) as connection:
        asyncio.run(scene(connection))
