"""PostgreSQL sessions: their settings and their time limits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Buffer, Loader

from tidegate.store.pipeline import Pipeline

SHARED_SCHEMA = "tidegate"
ENGINE_ROLE = "tidegate_engine"


class StoreLimits(NamedTuple):
    """Time limits of a session, the number of sessions, and how they plan statements."""

    lease_s: float = 10.0
    connections: int = 8
    statement_s: float = 30.0
    lock_s: float = 2.0
    idle_in_transaction_s: float = 10.0
    connection_lost_s: float = 10.0
    pool_wait_s: float = 10.0
    reconnect_s: float = 4.0
    plans: str = "force_generic_plan"  # Use `auto` for a distributed PostgreSQL.


class PostgresSession(psycopg.AsyncConnection[Any]):
    """A connection of the pool, and the pipeline that sends all its statements."""

    pipe: Pipeline

    async def close(self) -> None:
        if hasattr(self, "pipe"):
            self.pipe.stop_listening()
        await super().close()


class WholeNumber(Loader):
    """Load NUMERIC as an int, without a Decimal in between: all our numbers are whole."""

    # The type itself: a Python function would be called for each value, which is slower.
    load: Callable[[Buffer], int] = staticmethod(int)  # type: ignore[assignment]


def keepalive_options(seconds: float) -> dict[str, int]:
    """Detect a host that disappears without closing the connection. A client that only waits for
    a reply sends nothing, so no TCP acknowledgement is missed: keepalives must probe the host.
    """
    return {
        "tcp_user_timeout": int(seconds * 1000),
        "keepalives_idle": max(int(seconds / 2), 1),
        "keepalives_interval": 1,
    }


def session_options(schema: str, bounds: StoreLimits, role: str = ENGINE_ROLE) -> str:
    """The settings of a session, as connection options. SET is not used: through a connection
    pooler, its effect may reach the sessions of other clients.
    """
    named = schema.replace('"', '""')
    settings = {
        "search_path": f'"{named}",{SHARED_SCHEMA}',
        "role": role,
        "synchronous_commit": "on",
        "statement_timeout": f"{int(bounds.statement_s * 1000)}",
        "lock_timeout": f"{int(bounds.lock_s * 1000)}",
        "idle_in_transaction_session_timeout": f"{int(bounds.idle_in_transaction_s * 1000)}",
        # A plan that was made for an empty table must still be good for a million rows.
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "random_page_cost": "1.1",
        "timezone": "UTC",
    }
    return " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())


def _escaped(value: str) -> str:
    """Escape spaces and backslashes: the server splits the option string at unescaped spaces."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
