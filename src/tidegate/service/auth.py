"""Who is asking: a signed token becomes an identity, or nothing.

A token is refused without a reason: whoever sent it learns nothing about what was wrong with it.
"""

import base64
import binascii
import hashlib
import heapq
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeGuard

import msgspec

from tidegate.service.json_body import MalformedBody, decode
from tidegate.service.keys import KeySource, PublicKey

ROLES = frozenset({"user", "operator", "approver", "auditor"})
TYPES = frozenset({"JWT", "at+jwt"})
# They name a key of the sender's choice, change how the token is read, or make it no plain JWT.
REFUSED_HEADERS = frozenset(
    {"jwk", "jku", "x5u", "x5c", "crit", "b64", "enc", "zip", "epk", "cty", "apu", "apv"}
)

MAX_TOKEN_CHARS = 8 * 1024
MAX_NAME_CHARS = 256
MAX_OWNER = 2**63 - 1
MAX_EPOCH_S = 2**53
MAX_LEEWAY_S = 30

COMPACT = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)", re.ASCII)
OWNER = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


class Identity(msgspec.Struct, frozen=True):
    subject: str
    owner: int | None  # Whose money it is: only of one who has the role user.
    roles: frozenset[str]


class TokenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a token must say to be taken."""

    issuer: str
    audience: str
    leeway_s: float = 5
    max_lifetime_s: float = 900
    remembered: int = 10_000  # Verified tokens, least recently used first to go.

    def __post_init__(self) -> None:
        if not self.issuer or not self.audience:
            raise ValueError("issuer and audience must be given")
        if not 0 <= self.leeway_s <= MAX_LEEWAY_S:
            raise ValueError(f"leeway_s must be between 0 and {MAX_LEEWAY_S}")
        if self.max_lifetime_s <= 0 or self.remembered < 1:
            raise ValueError("max_lifetime_s and remembered must be positive")

    def claims(self, subject: str, roles: Iterable[str], now: float) -> dict[str, Any]:
        """The claims of a token that lives as long as one may."""
        return {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": subject,
            "roles": sorted(roles),
            "iat": int(now),
            "exp": int(now + self.max_lifetime_s),
        }


class ParsedToken(NamedTuple):
    """A token taken apart. Nothing in it is to be believed before its signature is checked."""

    kid: str
    algorithm: object
    signed: bytes
    signature: bytes
    claims: dict[str, Any]


class VerifiedToken(NamedTuple):
    identity: Identity
    expires_at: int
    key: PublicKey
    marks: tuple[str, ...]  # By which this token alone may be denied.


class DenyList:
    """What is refused although it is signed, each until a time after which nothing needs it."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        # One entry per mark: to deny it again for longer moves its end, and adds nothing here.
        self._ends: list[tuple[float, str]] = []

    def add(self, mark: str, until: float, now: float) -> None:
        if until > self._until.get(mark, now):
            if mark not in self._until:
                heapq.heappush(self._ends, (until, mark))
            self._until[mark] = until
        while self._ends and self._ends[0][0] <= now:
            _, ended = heapq.heappop(self._ends)
            if self._until[ended] <= now:
                del self._until[ended]
            else:
                heapq.heappush(self._ends, (self._until[ended], ended))

    def has(self, mark: str, now: float) -> bool:
        return now < self._until.get(mark, now)

    def __len__(self) -> int:
        return len(self._until)


class Verifier:
    def __init__(self, keys: KeySource, terms: TokenPolicy, clock: Callable[[], float]) -> None:
        self._keys = keys
        self._terms = terms
        self._clock = clock  # Seconds since 1970.
        self._remembered: OrderedDict[str, VerifiedToken] = OrderedDict()
        self._denied = DenyList()
        self._denied_subjects = DenyList()

    def verify(self, token: str) -> Identity | None:
        now = self._clock()
        verified = self._remembered.get(token)
        if verified is not None:
            if now < verified.expires_at and self._stands(verified, now):
                self._remembered.move_to_end(token)
                return verified.identity
            del self._remembered[token]
        verified = self._examine(token, now)
        if verified is None or not self._stands(verified, now):
            return None
        if now < verified.expires_at:
            self._remembered[token] = verified
            if len(self._remembered) > self._terms.remembered:
                self._remembered.popitem(last=False)
        return verified.identity

    async def authenticate(self, token: str) -> Identity | None:
        """Verify, and ask for new keys if the token names one that is not known yet."""
        identity = self.verify(token)
        if identity is None and await self.refresh_for(token):
            return self.verify(token)
        return identity

    async def refresh_for(self, token: str) -> bool:
        """Fetch keys for the token's sake; true if it is worth verifying once more."""
        now = self._clock()
        read = parse_token(token)
        if read is None or self._keys.find(read.kid, now) is not None:
            return False
        return await self._keys.fetch_for(read.kid, now)

    def deny(self, mark: str, until: float) -> None:
        """Refuse the token with this jti or fingerprint. Give its exp: the leeway is added."""
        self._denied.add(mark, until + self._terms.leeway_s, self._clock())

    def deny_subject(self, subject: str, until: float) -> None:
        """Refuse every token of the subject, those it has and those it gets."""
        self._denied_subjects.add(subject, until + self._terms.leeway_s, self._clock())

    def __len__(self) -> int:
        """How many tokens are remembered."""
        return len(self._remembered)

    def _stands(self, verified: VerifiedToken, now: float) -> bool:
        """What may change while a token lives: its key is removed, or it is denied."""
        key = verified.key
        if self._keys.find(key.kid, now) is not key:
            return False
        if self._denied and any(self._denied.has(mark, now) for mark in verified.marks):
            return False
        subject = verified.identity.subject
        return not (self._denied_subjects and self._denied_subjects.has(subject, now))

    def _examine(self, token: str, now: float) -> VerifiedToken | None:
        read = parse_token(token)
        if read is None:
            return None
        key = self._keys.find(read.kid, now)
        if key is None or read.algorithm != key.algorithm:
            return None
        if not key.signed(read.signed, read.signature):
            return None
        if not accepts(self._terms, read.claims, now):
            return None
        identity = identity_of(read.claims)
        if identity is None:
            return None
        jti = read.claims.get("jti")
        marks = (fingerprint(token),) if jti is None else (jti, fingerprint(token))
        return VerifiedToken(identity, read.claims["exp"], key, marks)


def fingerprint(token: str) -> str:
    """The token's hash, without its signature: another signature of the same is the same."""
    return hashlib.sha256(token.rpartition(".")[0].encode()).hexdigest()


def parse_token(token: str) -> ParsedToken | None:
    if len(token) > MAX_TOKEN_CHARS or (found := COMPACT.fullmatch(token)) is None:
        return None
    try:
        header, payload, signature = map(base64_decoded, found.groups())
        head = decode(header, dict, max_bytes=MAX_TOKEN_CHARS)
        claims = decode(payload, dict, max_bytes=MAX_TOKEN_CHARS)
    except (MalformedBody, binascii.Error):
        return None
    kid, kind = head.get("kid"), head.get("typ", "JWT")
    if not isinstance(kid, str) or not isinstance(kind, str) or kind not in TYPES:
        return None
    if not REFUSED_HEADERS.isdisjoint(head):
        return None
    return ParsedToken(kid, head.get("alg"), token.rpartition(".")[0].encode(), signature, claims)


def base64_decoded(part: str) -> bytes:
    """Undo base64url, of which one text only is right: spare bits would be names for one token."""
    raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if base64.urlsafe_b64encode(raw).rstrip(b"=") != part.encode():
        raise binascii.Error("not the canonical text")
    return raw


def accepts(terms: TokenPolicy, claims: dict[str, Any], now: float) -> bool:
    if claims.get("iss") != terms.issuer or not is_for(terms.audience, claims.get("aud")):
        return False
    latest = now + terms.leeway_s
    expires, issued, begins = claims.get("exp"), claims.get("iat", int(now)), claims.get("nbf", 1)
    if not is_epoch(expires) or not is_epoch(issued) or not is_epoch(begins):
        return False
    if now >= expires + terms.leeway_s or issued > latest or begins > latest:
        return False
    if "jti" in claims and not is_name(claims["jti"]):
        return False
    return expires - issued <= terms.max_lifetime_s


def is_for(audience: str, named: object) -> bool:
    if isinstance(named, list):
        return audience in named and all(isinstance(name, str) for name in named)
    return named == audience


def is_epoch(value: object) -> TypeGuard[int]:
    # Of a bool and a float, too, one could subtract.
    return type(value) is int and 0 < value < MAX_EPOCH_S


def is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARS


def identity_of(claims: dict[str, Any]) -> Identity | None:
    subject, roles = claims.get("sub"), roles_of(claims)
    if not is_name(subject) or not roles:
        return None
    if "user" not in roles:
        return Identity(subject, None, roles)
    owner = int(subject) if OWNER.fullmatch(subject) else 0
    return Identity(subject, owner, roles) if 0 < owner <= MAX_OWNER else None


def roles_of(claims: dict[str, Any]) -> frozenset[str]:
    """The roles, or none if any of them is not known: half of what was meant is not a role."""
    if "role" in claims and "roles" in claims:
        return frozenset()
    named = [claims["role"]] if "role" in claims else claims.get("roles")
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        return frozenset()
    roles = frozenset(named)
    return roles if roles <= ROLES else frozenset()
