"""What every route shares: who asks, may they, what did they send, and errors as problems."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from tidegate.core.answers import Unreachable
from tidegate.core.ports import StoreFault, StoreUnavailable
from tidegate.core.refusals import Refusal
from tidegate.engine.audit import Audit
from tidegate.engine.gate import Gate
from tidegate.engine.stopped import EngineStopped
from tidegate.service.auth import Identity
from tidegate.service.http import JSON, HttpReply, HttpRequest
from tidegate.service.json_body import MalformedBody, decode, quoted
from tidegate.service.metrics import Metrics
from tidegate.service.problem import (
    DATABASE_UNAVAILABLE,
    OUTCOME_UNKNOWN,
    PAYLOAD_TOO_LARGE,
    SYSTEM_ERROR,
    UNAVAILABLE,
    problem,
)
from tidegate.service.rate_limits import RateLimit
from tidegate.service.shared_memory import SharedAuditProgress

MAX_BODY = 16 * 1024
MAX_BATCH_BODY = 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What the routes work on. Put together in the composition root."""

    gate: Gate
    authenticate: Callable[[str], Awaitable[Identity | None]]
    metrics: Metrics
    clock: Callable[[], float]
    new_id: Callable[[], str]
    audit: Audit | None = None
    wait_s: float = 0.5
    rate: RateLimit | None = None
    ages: Callable[[], Mapping[str, float]] = dict  # Of the last success of background tasks.
    progress: SharedAuditProgress | None = None  # Where several processes serve one port.


class RequestRefused(Exception):
    """A route's own «no», on its way to becoming a problem."""

    def __init__(self, code: str, detail: str = "", more: dict[str, object] | None = None) -> None:
        super().__init__(code)
        self.code, self.detail, self.more = code, detail, more or {}


class Call(NamedTuple):
    """One request that was let in."""

    service: ServiceContext
    request: HttpRequest
    identity: Identity
    request_id: str
    raw: bytes  # The body, all of it.

    @property
    def owner(self) -> int:
        if self.identity.owner is None:
            raise RequestRefused(Refusal.FORBIDDEN, "this token belongs to no user")
        return self.identity.owner

    def body(self, type_: type[T]) -> T:
        kind = self.request.header(b"content-type") or ""
        if kind != JSON and kind.split(";")[0].strip().lower() != JSON:
            raise RequestRefused(Refusal.INVALID_REQUEST, f"send {JSON}")
        return decode(self.raw, type_, max_bytes=len(self.raw))


Endpoint: TypeAlias = Callable[[Call], Awaitable[HttpReply]]

NOBODY = Identity(subject="", owner=None, roles=frozenset())
USER = frozenset({"user"})
OPERATOR = frozenset({"operator"})
APPROVER = frozenset({"approver"})
STAFF = frozenset({"operator", "approver", "auditor"})
ANYBODY: frozenset[str] = frozenset()


class Route(NamedTuple):
    """One route and who may use it. There is no route without one."""

    method: str
    path: str
    endpoint: Endpoint
    roles: frozenset[str]
    summary: str
    query: tuple[str, ...] = ()  # The parameters that it takes. Others are refused.
    max_body: int = MAX_BODY


async def guarded(service: ServiceContext, rule: Route, request: HttpRequest) -> HttpReply:
    """A route behind its rule: nobody gets in but those whom the rule names."""
    request_id = service.new_id()
    began_s = service.clock()
    said = await _answer(service, rule, request, request_id)
    took_s = service.clock() - began_s
    service.metrics.request(rule.path, said.status, took_s)
    return HttpReply(said.status, said.body, {**said.headers, "X-Request-Id": request_id})


async def _answer(
    service: ServiceContext, rule: Route, request: HttpRequest, request_id: str
) -> HttpReply:
    try:
        call = await _let_in(service, rule, request, request_id)
        return await rule.endpoint(call)
    except MalformedBody as fault:
        service.metrics.refusal(Refusal.INVALID_REQUEST)
        return problem(Refusal.INVALID_REQUEST, request_id, str(fault))
    except RequestRefused as refused:
        service.metrics.refusal(refused.code)
        return problem(refused.code, request_id, refused.detail, refused.more)
    except Unreachable:
        return problem(UNAVAILABLE, request_id)
    except StoreFault as fault:
        # What it says is about our database: for the log, not for the caller.
        return problem(fault_code(fault), request_id)


async def _let_in(
    service: ServiceContext, rule: Route, request: HttpRequest, request_id: str
) -> Call:
    """Check who asks, and read all of the request before any of it is executed.

    A body that breaks off or is no HTTP is answered with 400 by the connection, whether the route
    needs a body or not: so nothing may have been done by then.
    """
    identity = await _identity(service, request) if rule.roles else NOBODY
    if identity is None:
        raise RequestRefused(Refusal.UNAUTHORIZED)
    if rule.roles and not identity.roles & rule.roles:
        raise RequestRefused(Refusal.FORBIDDEN)
    if request.query:
        _check_query(rule, request)
    try:
        raw = await request.body(rule.max_body)
    except TimeoutError as late:
        raise RequestRefused(Refusal.INVALID_REQUEST, "the body took too long to arrive") from late
    if len(raw) > rule.max_body:
        raise RequestRefused(PAYLOAD_TOO_LARGE)
    return Call(service, request, identity, request_id, raw)


def _check_query(rule: Route, request: HttpRequest) -> None:
    """A misspelt filter that is ignored would answer another question than was asked."""
    names = [name for name, _ in request.pairs]
    for name in names:
        if name not in rule.query:
            known = f"this route takes {', '.join(rule.query) or 'none'}"
            raise RequestRefused(
                Refusal.INVALID_REQUEST, f"unknown parameter {quoted(name)}: {known}"
            )
    if len(set(names)) < len(names):
        raise RequestRefused(Refusal.INVALID_REQUEST, "a parameter is there twice: send it once")


def fault_code(fault: StoreFault) -> str:
    if isinstance(fault, EngineStopped) and fault.maybe_accepted:
        return OUTCOME_UNKNOWN
    return DATABASE_UNAVAILABLE if isinstance(fault, StoreUnavailable) else SYSTEM_ERROR


async def _identity(service: ServiceContext, request: HttpRequest) -> Identity | None:
    given = request.headers_of(b"authorization")
    # Of two, somebody in front of us may have read the other.
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token:
        return None
    return await service.authenticate(token)
