"""The input and the output of the process that makes the load of a case."""

import msgspec

ASSET, ASSET_CODE, DECIMALS = 3, "USDT", 6
STORE = "tidegate_store"
MIXED, INWARD, OUTWARD = "mixed", "FUNDING→SPOT", "SPOT→FUNDING"
MEMBERS = "member→member"  # Of guilds, in one database.
GUILD = 100  # Members in each.


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """The input: one run of one case."""

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
    programs: str = ""  # The directory of pgbench.
    tape: str = ""  # The directory of the tapes that the ceiling plays.


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The output: what the load has measured."""

    counted: int  # Transfers that ended inside the window.
    seconds: float  # The length of the window.
    made: int  # All transfers that ended, also before and after the window.
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    refused: int = 0  # The part of `made` that ended as FAILED, as intended.
    overloaded: int = 0  # Refused because of overload, and not counted in `made`.
