"""What a session with PostgreSQL is from its first moment, and how long it may take."""

from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Buffer, Loader

from tidegate.store.pipeline import Pipeline

SHARED_SCHEMA = "tidegate"
ENGINE_ROLE = "tidegate_engine"


class StoreLimits(NamedTuple):
    """How long a session may take for anything, how many there are, and how they plan."""

    lease_s: float = 10.0
    connections: int = 8
    statement_s: float = 30.0
    lock_s: float = 2.0
    idle_in_transaction_s: float = 10.0
    connection_lost_s: float = 10.0
    pool_wait_s: float = 10.0
    reconnect_s: float = 4.0
    plans: str = "force_generic_plan"  # `auto` for a PostgreSQL that is spread over many nodes.


class PostgresSession(psycopg.AsyncConnection[Any]):
    """A connection of the pool, and the pipe through which all of its statements go."""

    pipe: Pipeline

    async def close(self) -> None:
        if hasattr(self, "pipe"):
            self.pipe.deaf()
        await super().close()


class WholeNumber(Loader):
    """Every NUMERIC of ours is whole: an int, without the detour over Decimal."""

    # The type itself, because a function of Python would be called for each of them.
    load: Callable[[Buffer], int] = staticmethod(int)  # type: ignore[assignment]


def lost_after(seconds: float) -> dict[str, int]:
    """A host that vanishes says nothing. Who waits for its answer has nothing under way that it
    could fail to confirm, so that the kernel must ask whether it is still there.
    """
    return {
        "tcp_user_timeout": int(seconds * 1000),
        "keepalives_idle": max(int(seconds / 2), 1),
        "keepalives_interval": 1,
    }


def session_options(schema: str, bounds: StoreLimits, role: str = ENGINE_ROLE) -> str:
    """What a session is from its first moment: never by SET, which a pooler may give to others."""
    named = schema.replace('"', '""')
    settings = {
        "search_path": f'"{named}",{SHARED_SCHEMA}',
        "role": role,
        "synchronous_commit": "on",
        "statement_timeout": f"{int(bounds.statement_s * 1000)}",
        "lock_timeout": f"{int(bounds.lock_s * 1000)}",
        "idle_in_transaction_session_timeout": f"{int(bounds.idle_in_transaction_s * 1000)}",
        # A plan made on an empty table must still be right for a million rows.
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "random_page_cost": "1.1",
        "timezone": "UTC",
    }
    return " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())


def _escaped(value: str) -> str:
    """As the server splits options: a blank or a backslash belongs to the value if so marked."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
