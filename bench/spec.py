"""What a case is told to do, and what it says when it is done."""

import msgspec

ASSET, ASSET_CODE, DECIMALS = 3, "USDT", 6
STORE = "tidegate_store"
MIXED, INWARD, OUTWARD = "mixed", "FUNDING→SPOT", "SPOT→FUNDING"
MEMBERS = "member→member"  # Of guilds, in one database.
GUILD = 100  # Members in each.


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one case, as the process that makes the load is told of it."""

    kind: str  # The module that makes the load.
    database: str
    core: str
    inflight: int
    seconds: float
    warm_s: float
    accounts: int = 10_000
    direction: str = MIXED
    refusals: float = 0.0
    driver: str = "psycopg"
    batch: int = 1  # Transfers in one request, over HTTP.
    url: str = ""
    path: str = ""
    users: str = ""  # A file with users and their tokens.
    programs: str = ""  # Where pgbench is.
    tape: str = ""  # What the ceiling plays.


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that made the load has seen."""

    counted: int  # Transfers that ended inside the window.
    seconds: float  # How long the window was.
    made: int  # All that ended, before and after the window too.
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    refused: int = 0  # Of those made: ended as FAILED, which was meant.
    overloaded: int = 0  # Turned away, and not counted as made.
