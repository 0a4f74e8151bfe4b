"""The identity of a store: the uuid by which a trading core recognises the store it serves."""

from uuid import UUID

import psycopg

from tidegate.core.sql import load
from tidegate.store.migrate import MIGRATOR_ROLE
from tidegate.store.sessions import StoreLimits, session_options

STATEMENTS = load("tidegate.store", "store_identity.sql")


def renew(conninfo: str, schema: str, fresh: UUID) -> tuple[UUID, UUID]:
    """Give a copied store its own identity; return the previous one and the new one."""
    options = session_options(schema, StoreLimits(), MIGRATOR_ROLE)
    with psycopg.connect(conninfo, options=options) as session:
        [(before, after)] = session.execute(STATEMENTS["renew"], {"store": fresh}).fetchall()
        return before, after
