"""Any remote account service, spoken to over HTTP.

What the service promises, and its certification proves:

1. An operation is kept under its key (`req_id`, also sent as `Idempotency-Key`) before it is
   answered. The same key and body get the same answer and no second effect; the same key with
   another body gets 409.
2. The rollback of a key that it never saw leaves a tombstone: the original, should it come
   later, is refused as UNDONE for ever. So is the original of a key that was rolled back.
3. A rollback that carries `"void": true` closes a key that is not done and leaves alone one that
   is done, refusing with ALREADY_DONE. The client sends it by itself, so it must not be able to
   undo what another process of ours has been told is done.
4. A rollback that carries `"expect_done": true` and finds no such operation stores nothing and
   answers UNDO_UNFOUNDED.
5. A service is certified as sticky if its refusals, too, are kept under their key.

A refusal by a service that is not certified proves nothing by itself: a delayed duplicate of the
request may still succeed once the user has topped up. There, the client voids the key first, and
only the acknowledgement of that makes the refusal a Rejected.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Self, TypeAlias

import httpx2
import msgspec

from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import UNDOES, Verb
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
SECRET_CHARS = 4  # What is shorter is no secret, and occurs in every text.
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
    """Where the service takes its verbs, below the base address."""

    withdraw: str = "/withdraw"
    deposit: str = "/deposit"
    commit: str = "/commit"
    rollback: str = "/rollback"
    operations: str = "/operations"


class RemoteAsset(msgspec.Struct, frozen=True):
    """How the service calls an asset, and with how many decimals it wants its amounts."""

    name: str
    decimals: int = 0  # 0: a whole number of the smallest unit.


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    base_url: str
    reversible: bool = True
    certified_sticky: bool = False
    # Every answer repeats its `req_id`. Without it, each question has a connection of its own:
    # where somebody answers twice, the second answer would be read as that to the next question.
    names_key: bool = False
    refusals: frozenset[str] = DEFAULT_REFUSALS
    # Empty: every asset goes by its number, in smallest units. Otherwise only these are known.
    assets: Mapping[int, RemoteAsset] = {}
    headers: Mapping[str, str] = {}  # Credentials. Never logged, stored or quoted.
    paths: ServicePaths = ServicePaths()
    connect_s: float = 2.0
    call_s: float = 5.0
    batch_s: float = 8.0  # Less than a lease, so that nobody else asks the same meanwhile.
    concurrency: int = 32
    body_bytes: int = 64 * 1024

    def __post_init__(self) -> None:
        if faults := list(_faults(self)):
            raise ValueError(f"settings of {self.name}: " + "; ".join(faults))

    def __repr__(self) -> str:
        return f"HttpSettings({self.name!r}, {self.base_url!r})"


class _NotSent(msgspec.Struct, frozen=True):
    """Nothing has left for the service."""

    reason: str


_NOT_TRIED = _NotSent("the batch ran out of time")
_IN_FLIGHT = Unknown("no answer: the batch ran out of time")


class HttpAccounts:
    """The contract of a System, kept by a service at the other end of HTTP."""

    def __init__(self, settings: HttpSettings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        secrets = tuple(_secrets(settings.headers))
        self._terms = ReplyPolicy(settings.refusals, secrets, settings.names_key)
        # The bare transport: it follows no redirect, keeps no cookie, reads no proxy from the
        # environment. Retries are the engine's, which writes down that it asks.
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
        """Put each question once. Unreachable if not one of them could be sent."""
        slots: list[Answer | _NotSent] = [_NOT_TRIED] * len(questions)
        waiting = iter(enumerate(questions))
        workers = min(self._settings.concurrency, len(questions))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.batch_s), asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work(waiting, slots))
        unsent = [slot for slot in slots if isinstance(slot, _NotSent)]
        if unsent and len(unsent) == len(slots):
            raise Unreachable(f"{self.name}: {unsent[0].reason}")
        return [Unknown(s.reason) if isinstance(s, _NotSent) else s for s in slots]

    async def query(self, question: Question) -> Answer | None:
        """What the service holds under the question's key; None says: ask, with the same key.

        It changes nothing, so a refusal without proof stays Unknown here until it is asked again.
        """
        key = key_of(question)
        heard = await self._call("GET", f"{self._settings.paths.operations}/{key}", key, None)
        match heard:
            case _NotSent(reason):
                raise Unreachable(f"{self.name}: {reason}")
            case Unknown():
                return heard
            case RemoteReply(status=status) if status == NOT_FOUND:
                # Not seen yet: it may be on its way. This is no «no».
                return None
        verdict = judge(heard, key, self._terms)
        if not isinstance(verdict, RefusedByCode):
            return verdict
        if self._settings.certified_sticky:
            return _certified(verdict, key)
        return Unknown(f"{verdict.reason}: not proved by a query")

    async def _work(
        self, waiting: Iterator[tuple[int, Question]], slots: list[Answer | _NotSent]
    ) -> None:
        """Take one question after another from what all workers of a batch share."""
        for index, question in waiting:
            slots[index] = _IN_FLIGHT
            slots[index] = await self._answer(question)

    async def _answer(self, question: Question) -> Answer | _NotSent:
        if objection := _objection(self._settings, question):
            return Unknown(objection, Alarm.PAGE)
        if question.void:
            return await self._refuse_for_ever(question)
        if question.verb not in UNDOES and not 0 < question.party.owner <= MAX_OWNER:
            # Closed at the service first: only what it keeps under the key is refused for ever.
            return await self._void(question, RefusedByCode(Reason.INVALID_OWNER))
        body = body_of(self._settings, question)
        verdict = await self._post(_path(self._settings.paths, question.verb), body)
        if not isinstance(verdict, RefusedByCode):
            return verdict
        if self._settings.certified_sticky:
            return _certified(verdict, key_of(question))
        if question.verb in UNDOES:
            # To void an undo could undo twice, or release a hold that must be captured.
            return Unknown(f"{verdict.reason}: an undo refused without proof", Alarm.PAGE)
        return await self._void(question, verdict)

    async def _refuse_for_ever(self, question: Question) -> Answer:
        """What is done already stays done, and the service says so when it is looked up."""
        said = await self._void(question, RefusedByCode(Reason.UNDONE))
        decided = await self.query(question) if isinstance(said, Unknown) else None
        return decided if isinstance(decided, Done) else said

    async def _void(self, question: Question, refusal: RefusedByCode) -> Answer:
        """Make sure that a refused operation can never happen any more."""
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
        heard = await self._call("POST", path, key, msgspec.json.encode(body))
        return judge(heard, key, self._terms) if isinstance(heard, RemoteReply) else heard

    async def _call(
        self, method: str, path: str, key: str, content: bytes | None
    ) -> RemoteReply | _NotSent | Unknown:
        """One request and what came back, within the time that one call has."""
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
            # Only its kind is kept: the text of an exception may repeat what was sent.
            return Unknown(f"no answer: {type(fault).__name__}")


def key_of(question: Question) -> str:
    """The operation's key: it names one question, for ever."""
    return f"{question.transfer_id}:{question.version}"


def body_of(settings: HttpSettings, question: Question) -> Body:
    """What a question says to the service: the same however often it is put."""
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
    if question.verb in UNDOES:
        body["undoes"] = f"{question.transfer_id}:{question.undoes}"
        body["expect_done"] = question.expect_done
    if question.opens:
        body["opens"] = True
    return body


def void_of(settings: HttpSettings, question: Question) -> Body:
    """The rollback of a refused question, under a key of its own, derived from the refused one."""
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
    """Why a question is never sent. Empty: it is."""
    if question.verb is Verb.CHECK:
        return "not sent: an account service checks nothing"
    if _asset(settings, question.asset_id) is None:
        return f"not sent: asset {question.asset_id} has no name there"
    if question.verb in UNDOES and question.undoes is None:
        return "not sent: the undo names no operation"
    return ""


def _certified(refusal: RefusedByCode, key: str) -> Rejected:
    return Rejected(refusal.reason, {"key": key, "kept_by": "certified as sticky"})


async def _bounded(response: httpx2.Response, limit: int) -> bytes | None:
    """The body as it came over the wire, or None if it is longer than allowed, or encoded."""
    if response.headers.get("content-encoding", "identity") != "identity":
        return None
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) > limit:
            return None
    return bytes(body)


def _secrets(headers: Mapping[str, str]) -> list[str]:
    """Header values and their words, longest first, so that a part never spoils the whole."""
    words = {word for value in headers.values() for word in (value, *value.split())}
    return sorted((word for word in words if len(word) >= SECRET_CHARS), key=len, reverse=True)


def _faults(settings: HttpSettings) -> Iterator[str]:
    """Yield every way in which the settings could not work, or would only seem to."""
    url = httpx2.URL(settings.base_url)
    if url.scheme not in ("http", "https") or not url.host:
        yield "base_url must be an http or https address"
    if url.userinfo or url.query or url.fragment:
        yield "base_url holds more than an address; credentials belong in headers"
    if taken := sorted(OWN_HEADERS & {name.lower() for name in settings.headers}):
        yield f"headers {taken} are the client's own"
    if not 0 < settings.connect_s <= settings.call_s <= settings.batch_s:
        yield "connect_s, call_s and batch_s must rise"
    if settings.concurrency < 1 or settings.body_bytes < 1:
        yield "concurrency and body_bytes must be positive"
    if any(text != quotable(text) or not text for text in settings.refusals):
        yield f"refusals must be printable and at most {REASON_CHARS} characters"
    if not all(0 <= asset.decimals <= MAX_DECIMALS for asset in settings.assets.values()):
        yield f"assets have 0 to {MAX_DECIMALS} decimals"
