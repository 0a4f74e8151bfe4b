"""The client of a remote account service over HTTP.

The service must keep these promises; its certification proves them:

1. It stores an operation under its key (`req_id`, also sent as `Idempotency-Key`) before it
   answers. The same key with the same body gets the same answer and has no second effect. The
   same key with another body gets 409.
2. The rollback of an unknown key stores a tombstone: if the original arrives later, it is refused
   as UNDONE for ever. The original of a key that was rolled back is refused in the same way.
3. A rollback with `"void": true` closes a key whose operation is not done. If the operation is
   done, the rollback changes nothing and is refused with ALREADY_DONE. The client sends a void
   on its own initiative, so a void must never undo an operation that another Tidegate process
   has recorded as done.
4. A rollback with `"expect_done": true` that finds no such operation stores nothing and answers
   UNDO_UNFOUNDED.
5. A service is certified as sticky if it also stores its refusals under their keys.

A refusal from a service that is not certified proves nothing: a delayed duplicate of the request
may still succeed after the user has added money. In that case the client voids the key first. The
refusal becomes a Rejected only when the service has acknowledged the void.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Self, TypeAlias

import httpx2
import msgspec

from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import UNDO_VERBS, Verb
from tidegate.core.money import MAX_DECIMALS, format_amount
from tidegate.core.refusals import Reason
from tidegate.core.request import MAX_OWNER
from tidegate.core.transfer import Question
from tidegate.systems.http.answers import (
    DEFAULT_REFUSALS,
    REASON_CHARS,
    RefusedByCode,
    RemoteReply,
    ReplyPolicy,
    Verdict,
    judge,
    quotable,
)

NOT_FOUND = 404
SECRET_CHARS = 4  # A shorter text is not a secret, and would match in almost every message.
OWN_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "transfer-encoding",
    }
)

Body: TypeAlias = Mapping[str, object]


class ServicePaths(msgspec.Struct, frozen=True, kw_only=True):
    """The path of each operation of the service, relative to the base address."""

    withdraw: str = "/withdraw"
    deposit: str = "/deposit"
    commit: str = "/commit"
    rollback: str = "/rollback"
    operations: str = "/operations"


class RemoteAsset(msgspec.Struct, frozen=True):
    """The service's name of an asset, and the number of decimals in its amounts."""

    name: str
    decimals: int = 0  # 0: a whole number of the smallest unit.


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    base_url: str
    reversible: bool = True
    certified_sticky: bool = False
    # True: every answer contains its `req_id`, so connections are reused. False: each question
    # uses a new connection. Otherwise a service or proxy that answers twice would give its second
    # answer to the next question on the same connection.
    names_key: bool = False
    refusals: frozenset[str] = DEFAULT_REFUSALS
    # Empty: an asset is sent as its number, with amounts in smallest units. Otherwise only the
    # assets listed here are sent.
    assets: Mapping[int, RemoteAsset] = {}
    headers: Mapping[str, str] = {}  # Credentials. Never logged, stored or quoted.
    paths: ServicePaths = ServicePaths()
    connect_s: float = 2.0
    call_s: float = 5.0
    # Shorter than a lease, so that no other process asks the same questions at the same time.
    batch_s: float = 8.0
    concurrency: int = 32
    body_bytes: int = 64 * 1024

    def __post_init__(self) -> None:
        if mistakes := list(_mistakes(self)):
            raise ValueError(f"settings of {self.name}: " + "; ".join(mistakes))

    def __repr__(self) -> str:
        return f"HttpSettings({self.name!r}, {self.base_url!r})"


class _NotSent(msgspec.Struct, frozen=True):
    """The request was not sent: the service has not received any part of it."""

    reason: str


_NOT_TRIED = _NotSent("the batch ran out of time")
_IN_FLIGHT = Unknown("no answer: the batch ran out of time")


class HttpAccounts:
    """A `System` whose accounts are in a remote service, reached over HTTP."""

    def __init__(self, settings: HttpSettings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        secrets = tuple(_secrets(settings.headers))
        self._policy = ReplyPolicy(settings.refusals, secrets, settings.names_key)
        # Use the bare transport: it does not follow redirects, keep cookies or read a proxy from
        # the environment. Only the engine retries, because it records every attempt first.
        self._transport = httpx2.AsyncHTTPTransport(
            verify=True if tls is None else tls,
            trust_env=False,
            retries=0,
            limits=httpx2.Limits(
                max_connections=settings.concurrency,
                max_keepalive_connections=settings.concurrency,
            ),
        )

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def reversible(self) -> bool:
        return self._settings.reversible

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        """Send each question once. Raise Unreachable if none of them could be sent."""
        results: list[Answer | _NotSent] = [_NOT_TRIED] * len(questions)
        pending = iter(enumerate(questions))
        workers = min(self._settings.concurrency, len(questions))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.batch_s), asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._ask_pending(pending, results))
        unsent = [result for result in results if isinstance(result, _NotSent)]
        if unsent and len(unsent) == len(results):
            raise Unreachable(f"{self.name}: {unsent[0].reason}")
        return [Unknown(r.reason) if isinstance(r, _NotSent) else r for r in results]

    async def query(self, question: Question) -> Answer | None:
        """Return what the service stores under the question's key.

        None means that it stores nothing: ask again with the same key. A query changes nothing, so
        a refusal without proof stays Unknown until the question is asked again.
        """
        key = key_of(question)
        reply = await self._call("GET", f"{self._settings.paths.operations}/{key}", key, None)
        match reply:
            case _NotSent(reason):
                raise Unreachable(f"{self.name}: {reason}")
            case Unknown():
                return reply
            case RemoteReply(status=status) if status == NOT_FOUND:
                # Not a refusal: the request may still be in the network.
                return None
        verdict = judge(reply, key, self._policy)
        if not isinstance(verdict, RefusedByCode):
            return verdict
        if self._settings.certified_sticky:
            return _certified(verdict, key)
        return Unknown(f"{verdict.reason}: a query does not prove a refusal")

    async def _ask_pending(
        self, pending: Iterator[tuple[int, Question]], results: list[Answer | _NotSent]
    ) -> None:
        """Answer questions until none are pending. All workers of a batch share the iterator."""
        for index, question in pending:
            results[index] = _IN_FLIGHT
            results[index] = await self._answer(question)

    async def _answer(self, question: Question) -> Answer | _NotSent:
        if objection := _objection(self._settings, question):
            return Unknown(objection, Alarm.PAGE)
        if question.void:
            return await self._answer_void(question)
        if question.verb not in UNDO_VERBS and not 0 < question.party.owner <= MAX_OWNER:
            # Close the key at the service first: only a stored refusal is a refusal for ever.
            return await self._void(question, RefusedByCode(Reason.INVALID_OWNER))
        body = body_of(self._settings, question)
        verdict = await self._post(_path(self._settings.paths, question.verb), body)
        if not isinstance(verdict, RefusedByCode):
            return verdict
        if self._settings.certified_sticky:
            return _certified(verdict, key_of(question))
        if question.verb in UNDO_VERBS:
            # Never void an undo: that could undo twice, or release a hold that must be captured.
            return Unknown(f"{verdict.reason}: the undo was refused without proof", Alarm.PAGE)
        return await self._void(question, verdict)

    async def _answer_void(self, question: Question) -> Answer:
        """Void the key. If the operation is done already, return the Done that a query finds."""
        answer = await self._void(question, RefusedByCode(Reason.UNDONE))
        stored = await self.query(question) if isinstance(answer, Unknown) else None
        return stored if isinstance(stored, Done) else answer

    async def _void(self, question: Question, refusal: RefusedByCode) -> Answer:
        """Make sure that a refused operation can never be done later."""
        body = void_of(self._settings, question)
        match await self._post(self._settings.paths.rollback, body):
            case Done():
                evidence = {"key": key_of(question), "voided_by": str(body["req_id"])}
                return Rejected(refusal.reason, evidence)
            case RefusedByCode(reason):
                return Unknown(f"{refusal.reason}, not voided: {reason}"[:REASON_CHARS])
            case Unknown(reason, alarm):
                return Unknown(f"{refusal.reason}, not voided: {reason}"[:REASON_CHARS], alarm)
            case _NotSent(reason):
                return Unknown(f"{refusal.reason}, not voided: {reason}"[:REASON_CHARS])

    async def _post(self, path: str, body: Body) -> Verdict | _NotSent:
        key = str(body["req_id"])
        reply = await self._call("POST", path, key, msgspec.json.encode(body))
        return judge(reply, key, self._policy) if isinstance(reply, RemoteReply) else reply

    async def _call(
        self, method: str, path: str, key: str, content: bytes | None
    ) -> RemoteReply | _NotSent | Unknown:
        """Send one request and return the reply, within the time limit of one call."""
        request = httpx2.Request(
            method,
            self._settings.base_url.rstrip("/") + path,
            headers={
                **self._settings.headers,
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "Connection": "keep-alive" if self._settings.names_key else "close",
                "Content-Type": "application/json",
                "Idempotency-Key": key,
            },
            content=content,
            extensions={"timeout": {"connect": self._settings.connect_s}},
        )
        try:
            async with asyncio.timeout(self._settings.call_s):
                response = await self._transport.handle_async_request(request)
                async with contextlib.aclosing(response):
                    body = await _bounded(response, self._settings.body_bytes)
                    return RemoteReply(response.status_code, body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as fault:
            return _NotSent(f"not sent: {type(fault).__name__}")
        except (httpx2.HTTPError, TimeoutError) as fault:
            # Keep only the type: the text of an exception may contain what was sent.
            return Unknown(f"no answer: {type(fault).__name__}")


def key_of(question: Question) -> str:
    """The operation's key. It names this question only, for ever."""
    return f"{question.transfer_id}:{question.version}"


def body_of(settings: HttpSettings, question: Question) -> Body:
    """The body of the request. It is the same each time the question is sent."""
    asset = _asset(settings, question.asset_id)
    assert asset is not None, "an asset without a name is never sent"
    body: dict[str, object] = {
        "req_id": key_of(question),
        "verb": str(question.verb),
        "user_id": question.party.owner,
        "account": question.party.book,
        "asset": asset.name,
        "amount": format_amount(question.amount, asset.decimals),
    }
    if question.verb in UNDO_VERBS:
        body["undoes"] = f"{question.transfer_id}:{question.undoes}"
        body["expect_done"] = question.expect_done
    if question.opens:
        body["opens"] = True
    return body


def void_of(settings: HttpSettings, question: Question) -> Body:
    """The rollback of a refused question. Its own key is derived from the refused key."""
    key = key_of(question)
    refused = body_of(settings, question)
    return {**refused, "req_id": f"{key}:void", "verb": "void", "undoes": key, "void": True}


def _asset(settings: HttpSettings, asset_id: int) -> RemoteAsset | None:
    return settings.assets.get(asset_id) if settings.assets else RemoteAsset(str(asset_id))


def _path(paths: ServicePaths, verb: Verb) -> str:
    match verb:
        case Verb.DEBIT | Verb.HOLD:
            return paths.withdraw
        case Verb.CREDIT:
            return paths.deposit
        case Verb.CAPTURE:
            return paths.commit
        case Verb.REFUND | Verb.RELEASE:
            return paths.rollback
        case Verb.CHECK:
            raise AssertionError("a check is never sent")


def _objection(settings: HttpSettings, question: Question) -> str:
    """Why the question must not be sent. Empty if it can be sent."""
    if question.verb is Verb.CHECK:
        return "not sent: an account service has no operation for CHECK"
    if _asset(settings, question.asset_id) is None:
        return f"not sent: the settings have no name for asset {question.asset_id}"
    if question.verb in UNDO_VERBS and question.undoes is None:
        return "not sent: the undo does not name an operation"
    return ""


def _certified(refusal: RefusedByCode, key: str) -> Rejected:
    return Rejected(refusal.reason, {"key": key, "kept_by": "certified as sticky"})


async def _bounded(response: httpx2.Response, limit: int) -> bytes | None:
    """The body as received, or None if it is longer than allowed or has a content encoding."""
    if response.headers.get("content-encoding", "identity") != "identity":
        return None
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit:
            return None
    return bytes(body)


def _secrets(headers: Mapping[str, str]) -> list[str]:
    """Header values and their words, longest first: a value is replaced before its parts."""
    words = {word for value in headers.values() for word in (value, *value.split())}
    return sorted((word for word in words if len(word) >= SECRET_CHARS), key=len, reverse=True)


def _mistakes(settings: HttpSettings) -> Iterator[str]:
    """Yield each mistake in the settings, also those that would show only in use."""
    url = httpx2.URL(settings.base_url)
    if url.scheme not in ("http", "https") or not url.host:
        yield "base_url must be an http or https address"
    if url.userinfo or url.query or url.fragment:
        yield "base_url must be an address only; put credentials in headers"
    if reserved := sorted(OWN_HEADERS & {name.lower() for name in settings.headers}):
        yield f"headers {reserved} are set by the client itself"
    if not 0 < settings.connect_s <= settings.call_s <= settings.batch_s:
        yield "connect_s must be positive, and connect_s <= call_s <= batch_s"
    if settings.concurrency < 1 or settings.body_bytes < 1:
        yield "concurrency and body_bytes must be positive"
    if any(text != quotable(text) or not text for text in settings.refusals):
        yield f"refusals must be printable and have 1 to {REASON_CHARS} characters"
    if not all(0 <= asset.decimals <= MAX_DECIMALS for asset in settings.assets.values()):
        yield f"decimals of assets must be 0 to {MAX_DECIMALS}"
