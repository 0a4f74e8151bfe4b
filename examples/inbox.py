"""A shop refunds a customer in the transaction that cancels the order."""

import asyncio
import sys
from pathlib import Path

import psycopg

import tidegate as tg

STORE, CUSTOMER = "tidegate_store", 4001

PREPARE = f"""
    CREATE TABLE orders (id text PRIMARY KEY, state text NOT NULL, transfer uuid);
    INSERT INTO orders VALUES ('order-17', 'paid');
    CREATE ROLE shop LOGIN IN ROLE tidegate_inbox;
    GRANT SELECT, UPDATE ON orders TO shop;
    INSERT INTO {STORE}.inbox_grants (role, flow, owners) VALUES ('shop', 'deposit', '[4000,4999]');
"""
CANCEL = f"""
    UPDATE orders
       SET state = 'cancelled',
           transfer = {STORE}.request_transfer('deposit', %s, 'USDT', 12.50,
                                               '{{"account": "FUNDING"}}', id)
     WHERE id = 'order-17'
"""


def cancel(address: str) -> None:
    """The order and the request are committed together, or neither is."""
    with psycopg.connect(address) as connection:
        connection.execute("SET SESSION AUTHORIZATION shop")
        for _ in range(2):  # The second call requests nothing new: the cid is the order's id.
            connection.execute(CANCEL, (CUSTOMER,))


async def serve(address: str) -> None:
    async with tg.open_gate(tg.Setup(address, STORE)):
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("SET SESSION AUTHORIZATION shop")
            outcome = None
            while outcome is None:
                await asyncio.sleep(0.1)
                query = f"SELECT cid, outcome FROM {STORE}.inbox_requests"
                [(cid, outcome)] = connection.execute(query).fetchall()
            print(f"{cid}: {outcome}")


if __name__ == "__main__":
    with tg.EmbeddedPostgres(Path(sys.argv[1]) / "postgres") as server:
        tg.migrate(server.url(), STORE, tg.all_flows())
        with psycopg.connect(server.url()) as owner:
            owner.execute(PREPARE)
        cancel(server.url())
        asyncio.run(serve(server.url()))
