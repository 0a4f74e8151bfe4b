"""A program's own flow, asked for through the inbox: its form makes the request."""

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
ASK = "SELECT request_transfer('prize', 7, 'POINT', 40, %s, 'won-1')"
STATE = "SELECT state FROM transfers WHERE id = %s"
OUTCOME = "SELECT outcome, refusal FROM inbox WHERE id = %s"


def prize(asked: tg.InboxRequest) -> CheckedRequest | tg.Refusal:
    if asked.terms.keys() != {"card"}:
        return tg.Refusal.INVALID_REQUEST
    parties = {
        "source": tg.Party("ledger", "FUNDING", asked.owner),
        "target": tg.Party("cards", asked.terms["card"], asked.owner),
    }
    return CheckedRequest(tg.Request(asked.owner, "prize", parties, POINT, asked.amount))


def test_a_flow_of_a_program_is_taken_from_the_inbox_by_its_form(database: str) -> None:
    tg.migrate(database, SCHEMA, tg.all_flows(PRIZE))
    setup = tg.Setup(
        database, schema=SCHEMA, flows=(PRIZE,), systems=(CardNetwork(),), forms={"prize": prize}
    )

    async def scene(connection: psycopg.Connection) -> None:
        connection.execute("INSERT INTO inbox_grants VALUES ('tidegate_inbox', 'prize')")
        with pytest.raises(psycopg.errors.CheckViolation, match="cannot be requested here"):
            connection.execute(ASK, (Jsonb({"card": "visa"}),))
        connection.execute("INSERT INTO inbox_flows (flow) VALUES ('prize')")
        async with tg.open_gate(setup) as gate:
            await gate.deposit(tg.ExternalTransfer("FUNDING", "POINT", "100", cid="start"), 7)
            [(id_,)] = connection.execute(ASK, (Jsonb({"card": "visa"}),)).fetchall()
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
