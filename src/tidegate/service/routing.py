"""What all routes share: authentication, permission, reading the body, errors as problems."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

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
from tidegate.service.parameters import Parameter
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
    """What the endpoints work with."""

    gate: Gate
    authenticate: Callable[[str], Awaitable[Identity | None]]
    metrics: Metrics
    clock: Callable[[], float]
    new_id: Callable[[], str]
    audit: Audit | None = None
    wait_s: float = 0.5
    rate: RateLimit | None = None
    ages: Callable[[], Mapping[str, float]] = dict  # Of background tasks, since their last success.
    progress: SharedAuditProgress | None = None  # Where several processes serve one port.


class RequestRefused(Exception):
    """An endpoint refuses the request. It becomes a problem reply."""

    def __init__(self, code: str, detail: str = "", more: dict[str, object] | None = None) -> None:
        super().__init__(code)
        self.code, self.detail, self.more = code, detail, more or {}


class Call(NamedTuple):
    """A request that passed authentication and permission."""

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
    """One route: who may use it, what it takes, and what it returns. OpenAPI is made of this."""

    method: str
    path: str
    endpoint: Endpoint
    roles: frozenset[str]
    summary: str
    replies: Mapping[int, type[msgspec.Struct] | str]  # By status: a type, or a media type.
    body: type[msgspec.Struct] | None = None
    parameters: tuple[Parameter, ...] = ()
    refuses: tuple[int, ...] = ()  # Statuses besides those of every route of its kind.
    max_body: int = MAX_BODY


async def guarded(service: ServiceContext, route: Route, request: HttpRequest) -> HttpReply:
    """Serve a request on a route: check the caller, call the endpoint, count the result."""
    request_id = service.new_id()
    began_s = service.clock()
    reply = await _answer(service, route, request, request_id)
    took_s = service.clock() - began_s
    service.metrics.request(route.path, reply.status, took_s)
    return reply._replace(headers={**reply.headers, "X-Request-Id": request_id})


async def _answer(
    service: ServiceContext, route: Route, request: HttpRequest, request_id: str
) -> HttpReply:
    try:
        call = await _let_in(service, route, request, request_id)
        return await route.endpoint(call)
    except MalformedBody as fault:
        service.metrics.refusal(Refusal.INVALID_REQUEST)
        return problem(Refusal.INVALID_REQUEST, request_id, str(fault))
    except RequestRefused as refused:
        service.metrics.refusal(refused.code)
        return problem(refused.code, request_id, refused.detail, refused.more)
    except Unreachable:
        return problem(UNAVAILABLE, request_id)
    except StoreFault as fault:
        # Its text is about our database, so it is not sent to the caller.
        return problem(fault_code(fault), request_id)


async def _let_in(
    service: ServiceContext, route: Route, request: HttpRequest, request_id: str
) -> Call:
    """Check the caller, and read the whole body before anything is executed.

    The connection answers 400 to a body that breaks off or is not valid HTTP, also on routes that
    ignore the body. Nothing may have been done by then.
    """
    identity = await _identity(service, request) if route.roles else NOBODY
    if identity is None:
        raise RequestRefused(Refusal.UNAUTHORIZED)
    if route.roles and not identity.roles & route.roles:
        raise RequestRefused(Refusal.FORBIDDEN)
    if request.query:
        _check_query(route, request)
    try:
        raw = await request.body(route.max_body)
    except TimeoutError as late:
        raise RequestRefused(Refusal.INVALID_REQUEST, "the body took too long to arrive") from late
    if len(raw) > route.max_body:
        raise RequestRefused(PAYLOAD_TOO_LARGE)
    return Call(service, request, identity, request_id, raw)


def _check_query(route: Route, request: HttpRequest) -> None:
    """Refuse unknown parameters: ignoring a misspelt filter would answer another question."""
    names = [name for name, _ in request.pairs]
    known = [parameter.name for parameter in route.parameters if parameter.where == "query"]
    for name in names:
        if name not in known:
            expected = f"this route takes {', '.join(known) or 'none'}"
            raise RequestRefused(
                Refusal.INVALID_REQUEST, f"unknown parameter {quoted(name)}: {expected}"
            )
    if len(set(names)) < len(names):
        raise RequestRefused(Refusal.INVALID_REQUEST, "a parameter is sent twice: send it once")


def fault_code(fault: StoreFault) -> str:
    if isinstance(fault, EngineStopped) and fault.maybe_accepted:
        return OUTCOME_UNKNOWN
    return DATABASE_UNAVAILABLE if isinstance(fault, StoreUnavailable) else SYSTEM_ERROR


async def _identity(service: ServiceContext, request: HttpRequest) -> Identity | None:
    given = request.headers_of(b"authorization")
    # Reject duplicate headers: a proxy may have used the other one.
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token:
        return None
    return await service.authenticate(token)
