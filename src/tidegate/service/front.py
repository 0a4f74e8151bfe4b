"""What every route shares: who asks, may they, what did they send, and errors as problems."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from tidegate.core.answers import Unreachable
from tidegate.core.ports import StoreFault
from tidegate.core.refusals import Refusal
from tidegate.engine.audit import Audit
from tidegate.engine.gate import Gate
from tidegate.service.auth import Identity
from tidegate.service.body import Malformed, decode
from tidegate.service.http import JSON, Reply, Request
from tidegate.service.limits import RequestRate
from tidegate.service.meters import Meters
from tidegate.service.problem import PAYLOAD_TOO_LARGE, SYSTEM_ERROR, UNAVAILABLE, problem

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
    rate: RequestRate | None = None
    took: Callable[[float], None] = lambda _: None  # Is told how long each request took.


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

    @property
    def owner(self) -> int:
        if self.identity.owner is None:
            raise Refused(Refusal.FORBIDDEN, "this token belongs to no user")
        return self.identity.owner

    async def body(self, type_: type[T], limit: int = MAX_BODY) -> T:
        kind = self.request.header(b"content-type") or ""
        if kind != JSON and kind.split(";")[0].strip().lower() != JSON:
            raise Refused(Refusal.INVALID_REQUEST, f"send {JSON}")
        try:
            raw = await self.request.body(limit)
        except TimeoutError as late:
            raise Refused(Refusal.INVALID_REQUEST, "the body took too long to arrive") from late
        if len(raw) > limit:
            raise Refused(PAYLOAD_TOO_LARGE)
        return decode(raw, type_, max_bytes=limit)


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


async def guarded(service: Service, rule: Rule, request: Request) -> Reply:
    """A route behind its rule: nobody gets in but those whom the rule names."""
    request_id = service.new_id()
    began_s = service.clock()
    said = await _answer(service, rule, request, request_id)
    took_s = service.clock() - began_s
    service.meters.request(rule.path, said.status, took_s)
    service.took(took_s)
    return Reply(said.status, said.body, {**said.headers, "X-Request-Id": request_id})


async def _answer(service: Service, rule: Rule, request: Request, request_id: str) -> Reply:
    identity = await _identity(service, request) if rule.roles else NOBODY
    if identity is None:
        return problem(Refusal.UNAUTHORIZED, request_id)
    if rule.roles and not identity.roles & rule.roles:
        return problem(Refusal.FORBIDDEN, request_id)
    try:
        return await rule.endpoint(Call(service, request, identity, request_id))
    except Malformed as fault:
        service.meters.refusal(Refusal.INVALID_REQUEST)
        return problem(Refusal.INVALID_REQUEST, request_id, str(fault))
    except Refused as refused:
        service.meters.refusal(refused.code)
        return problem(refused.code, request_id, refused.detail, refused.more)
    except Unreachable:
        return problem(UNAVAILABLE, request_id)
    except StoreFault:
        # What it says is about our database: for the log, not for the caller.
        return problem(SYSTEM_ERROR, request_id)


async def _identity(service: Service, request: Request) -> Identity | None:
    given = request.headers_of(b"authorization")
    # Of two, somebody in front of us may have read the other.
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token:
        return None
    return await service.authenticate(token)
