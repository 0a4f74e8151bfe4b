"""All cases of the benchmark. A name contains the group and the varied parameter."""

from typing import NamedTuple

from bench.spec import INWARD, MEMBERS, MIXED, OUTWARD

SMALL, LARGE = 10_000, 1_000_000
USERS = 200  # Of the cases over HTTP.
# Additional warm-up for cases with an environment of their own: a peer must not look slow because
# it has just started.
PEER_WARM_S = 1.0


class Case(NamedTuple):
    name: str
    kind: str  # The module that makes the load.
    inflight: int
    description: str
    front: str = ""  # The server that gets the load.
    environment: str = ""  # The environment of a peer, or empty for ours.
    accounts: int = SMALL
    direction: str = MIXED
    refusals: float = 0.0
    driver: str = "psycopg"
    batch: int = 1
    more_warm_s: float = 0.0  # Additional warm-up, for cases that start slowly.
    transfers: bool = True  # False for a job that is not a transfer between two systems.


def literal(driver: str, inflight: int) -> Case:
    case = Case(
        f"literal-{driver}-{inflight}",
        "literal",
        inflight,
        f"the specifications as printed, {driver}, {inflight} tasks",
        environment="literal" if driver == "asyncpg" else "",
        driver=driver,
    )
    return case._replace(more_warm_s=PEER_WARM_S if case.environment else 0.0)


def tidegate(inflight: int) -> Case:
    description = f"Tidegate in process, {inflight} in flight"
    return Case(f"tidegate-{inflight}", "tidegate", inflight, description)


BASE = tidegate(256)


def varied(name: str, description: str, **changes: object) -> Case:
    fields = BASE._asdict() | changes
    return Case(**fields)._replace(
        name=f"tidegate-256-{name}", description=f"the same, {description}"
    )


def over_http(connections: int, batch: int = 1) -> Case:
    name = f"http-{connections}" if batch == 1 else f"http-batch-{connections}"
    requests = "single transfers" if batch == 1 else f"batches of {batch}"
    description = f"Tidegate over HTTP, {connections} connections, {requests}"
    return Case(name, "http", connections, description, front="tidegate", batch=batch)


def fastapi(connections: int) -> Case:
    description = f"FastAPI before the literal protocol (asyncpg), {connections} connections"
    case = Case(f"fastapi-{connections}", "http", connections, description, "fastapi", "literal")
    return case._replace(more_warm_s=PEER_WARM_S)


def restate(connections: int) -> Case:
    description = f"Restate, a handler of two steps, {connections} connections"
    case = Case(f"restate-{connections}", "http", connections, description, "restate", "restate")
    return case._replace(more_warm_s=PEER_WARM_S + 5.0)


def peer(kind: str, inflight: int, description: str, driver: str = "psycopg") -> Case:
    case = Case(f"{kind}-{inflight}", kind, inflight, description, environment=kind, driver=driver)
    return case._replace(more_warm_s=PEER_WARM_S)


def pool(inflight: int) -> Case:
    description = f"the transfer pool in process, from member to member, {inflight} at once"
    return Case(f"pool-{inflight}", "pool", inflight, description, direction=MEMBERS)


def between_members(case: Case) -> Case:
    """The same payments as in the pool case, made by a peer."""
    description = case.description.replace("the transfer", "from member to member")
    return case._replace(
        name=f"{case.kind}-members-{case.inflight}", description=description, direction=MEMBERS
    )


PROCRASTINATE = peer(
    "procrastinate", 64, "procrastinate, the transfer as a job, 64 deferred at once"
)
PGQUEUER = peer("pgqueuer", 256, "pgqueuer, the transfer as a job, 256 enqueued at once", "asyncpg")

SQL_ALONE = "the same SQL in batches of 1 024, four sessions, without engine or client"
CEILING = Case("ceiling", "ceiling", 4, SQL_ALONE)

CASES: tuple[Case, ...] = (
    *(literal("psycopg", n) for n in (1, 16, 64, 256)),
    # No asyncpg case with 1 task: it is slower than psycopg, and both are far from their best.
    *(literal("asyncpg", n) for n in (16, 64, 256)),
    *(tidegate(n) for n in (1, 64, 256, 4096)),
    varied("funding-spot", "FUNDING→SPOT only", direction=INWARD),
    varied("spot-funding", "SPOT→FUNDING only", direction=OUTWARD),
    varied("1m-accounts", "1 M accounts", accounts=LARGE),
    varied("refused-5", "5 % refused", refusals=0.05),
    varied("refused-50", "50 % refused", refusals=0.5),
    *(over_http(n) for n in (1, 64, 256)),
    *(over_http(n, 100) for n in (1, 64, 256)),
    *(fastapi(n) for n in (64, 256)),
    CEILING,
    Case("tpcb-8", "tpcb", 8, "pgbench TPC-B, 8 clients: one database, C", transfers=False),
    # 64 at once were slower than 4 in every round of every recorded run.
    *(peer("dbos", n, f"DBOS, a workflow of two steps, {n} at once") for n in (4, 16)),
    *(restate(n) for n in (64, 256)),
    PROCRASTINATE,
    PGQUEUER,
    *(pool(n) for n in (64, 256)),
    between_members(PROCRASTINATE),
    between_members(PGQUEUER),
)
