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
from tidegate.service.body import Malformed, decode, quoted
from tidegate.service.http import JSON, Reply, Request
from tidegate.service.limits import Rate
from tidegate.service.meters import Meters
from tidegate.service.problem import (
    DATABASE_UNAVAILABLE,
    OUTCOME_UNKNOWN,
    PAYLOAD_TOO_LARGE,
    SYSTEM_ERROR,
    UNAVAILABLE,
    problem,
)
from tidegate.service.shared import AuditProgress

MAX_BODY = 16 * 1024
MAX_BATCH_BODY = 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes work on. Put together in the composition root."""

    gate: Gate
    authenticate: Callable[[str], Awaitable[Identity | None]]
    meters: Meters
    clock: Callable[[], float]
    new_id: Callable[[], str]
    audit: Audit | None = None
    wait_s: float = 0.5
    rate: Rate | None = None
    ages: Callable[[], Mapping[str, float]] = dict  # Of the last success of background tasks.
    progress: AuditProgress | None = None  # Where several processes serve one port.


class Refused(Exception):
    """A route's own «no», on its way to becoming a problem."""

    def __init__(self, code: str, detail: str = "", more: dict[str, object] | None = None) -> None:
        super().__init__(code)
        self.code, self.detail, self.more = code, detail, more or {}


class Call(NamedTuple):
    """One request that was let in."""

    service: Service
    request: Request
    identity: Identity
    request_id: str
    raw: bytes  # The body, all of it.

    @property
    def owner(self) -> int:
        if self.identity.owner is None:
            raise Refused(Refusal.FORBIDDEN, "this token belongs to no user")
        return self.identity.owner

    def body(self, type_: type[T]) -> T:
        kind = self.request.header(b"content-type") or ""
        if kind != JSON and kind.split(";")[0].strip().lower() != JSON:
            raise Refused(Refusal.INVALID_REQUEST, f"send {JSON}")
        return decode(self.raw, type_, max_bytes=len(self.raw))


Endpoint: TypeAlias = Callable[[Call], Awaitable[Reply]]

NOBODY = Identity(subject="", owner=None, roles=frozenset())
USER = frozenset({"user"})
OPERATOR = frozenset({"operator"})
APPROVER = frozenset({"approver"})
STAFF = frozenset({"operator", "approver", "auditor"})
ANYBODY: frozenset[str] = frozenset()


class Rule(NamedTuple):
    """One route and who may use it. There is no route without one."""

    method: str
    path: str
    endpoint: Endpoint
    roles: frozenset[str]
    summary: str
    query: tuple[str, ...] = ()  # The parameters that it takes. Others are refused.
    max_body: int = MAX_BODY


async def guarded(service: Service, rule: Rule, request: Request) -> Reply:
    """A route behind its rule: nobody gets in but those whom the rule names."""
    request_id = service.new_id()
    began_s = service.clock()
    said = await _answer(service, rule, request, request_id)
    took_s = service.clock() - began_s
    service.meters.request(rule.path, said.status, took_s)
    return Reply(said.status, said.body, {**said.headers, "X-Request-Id": request_id})


async def _answer(service: Service, rule: Rule, request: Request, request_id: str) -> Reply:
    try:
        call = await _let_in(service, rule, request, request_id)
        return await rule.endpoint(call)
    except Malformed as fault:
        service.meters.refusal(Refusal.INVALID_REQUEST)
        return problem(Refusal.INVALID_REQUEST, request_id, str(fault))
    except Refused as refused:
        service.meters.refusal(refused.code)
        return problem(refused.code, request_id, refused.detail, refused.more)
    except Unreachable:
        return problem(UNAVAILABLE, request_id)
    except StoreFault as fault:
        # What it says is about our database: for the log, not for the caller.
        return problem(fault_code(fault), request_id)


async def _let_in(service: Service, rule: Rule, request: Request, request_id: str) -> Call:
    """Check who asks, and read all of the request before any of it is executed.

    A body that breaks off or is no HTTP is answered with 400 by the connection, whether the route
    needs a body or not: so nothing may have been done by then.
    """
    identity = await _identity(service, request) if rule.roles else NOBODY
    if identity is None:
        raise Refused(Refusal.UNAUTHORIZED)
    if rule.roles and not identity.roles & rule.roles:
        raise Refused(Refusal.FORBIDDEN)
    if request.query:
        _check_query(rule, request)
    try:
        raw = await request.body(rule.max_body)
    except TimeoutError as late:
        raise Refused(Refusal.INVALID_REQUEST, "the body took too long to arrive") from late
    if len(raw) > rule.max_body:
        raise Refused(PAYLOAD_TOO_LARGE)
    return Call(service, request, identity, request_id, raw)


def _check_query(rule: Rule, request: Request) -> None:
    """A misspelt filter that is ignored would answer another question than was asked."""
    names = [name for name, _ in request.pairs]
    for name in names:
        if name not in rule.query:
            known = f"this route takes {', '.join(rule.query) or 'none'}"
            raise Refused(Refusal.INVALID_REQUEST, f"unknown parameter {quoted(name)}: {known}")
    if len(set(names)) < len(names):
        raise Refused(Refusal.INVALID_REQUEST, "a parameter is there twice: send it once")


def fault_code(fault: StoreFault) -> str:
    if isinstance(fault, EngineStopped) and fault.maybe_accepted:
        return OUTCOME_UNKNOWN
    return DATABASE_UNAVAILABLE if isinstance(fault, StoreUnavailable) else SYSTEM_ERROR


async def _identity(service: Service, request: Request) -> Identity | None:
    given = request.headers_of(b"authorization")
    # Of two, somebody in front of us may have read the other.
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token:
        return None
    return await service.authenticate(token)
