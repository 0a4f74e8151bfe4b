"""Verification of bearer tokens: a signed JWT becomes an identity, or is refused.

A refusal carries no reason, so that an attacker does not learn which check failed.
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
# Refused: they bring a key along, change how the token is read, or mark something else than a JWT.
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
    owner: int | None  # The user's number. Only a token with the role "user" has one.
    roles: frozenset[str]


class TokenPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a token must contain to be accepted."""

    issuer: str
    audience: str
    leeway_s: float = 5
    max_lifetime_s: float = 900
    remembered: int = 10_000  # Verified tokens in the cache; the least recently used leaves first.

    def __post_init__(self) -> None:
        if not self.issuer or not self.audience:
            raise ValueError("issuer and audience must be given")
        if not 0 <= self.leeway_s <= MAX_LEEWAY_S:
            raise ValueError(f"leeway_s must be between 0 and {MAX_LEEWAY_S}")
        if self.max_lifetime_s <= 0 or self.remembered < 1:
            raise ValueError("max_lifetime_s and remembered must be positive")

    def claims(self, subject: str, roles: Iterable[str], now: float) -> dict[str, Any]:
        """Return the claims of a token with the longest lifetime that is allowed."""
        return {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": subject,
            "roles": sorted(roles),
            "iat": int(now),
            "exp": int(now + self.max_lifetime_s),
        }


class ParsedToken(NamedTuple):
    """The parts of a well-formed token. Its signature is not checked yet."""

    kid: str
    algorithm: object
    signed_text: bytes
    signature: bytes
    claims: dict[str, Any]


class VerifiedToken(NamedTuple):
    identity: Identity
    expires_at: int
    key: PublicKey
    marks: tuple[str, ...]  # Its jti, if it has one, and its fingerprint: keys of the deny list.


class DenyList:
    """Marks of tokens, or subjects, that are refused although their tokens are valid.

    Each entry has an end: after it, the tokens it refuses have expired anyway.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        # A heap with one entry per mark. Denying a mark again for longer changes only `_until`.
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
    """Verifies tokens and caches the result, because a signature check costs up to 0.4 ms."""

    def __init__(self, keys: KeySource, policy: TokenPolicy, clock: Callable[[], float]) -> None:
        self._keys = keys
        self._policy = policy
        self._clock = clock  # Seconds since 1970.
        self._cache: OrderedDict[str, VerifiedToken] = OrderedDict()
        self._denied = DenyList()
        self._denied_subjects = DenyList()

    def verify(self, token: str) -> Identity | None:
        now = self._clock()
        verified = self._cache.get(token)
        if verified is not None:
            if now < verified.expires_at and self._is_valid(verified, now):
                self._cache.move_to_end(token)
                return verified.identity
            del self._cache[token]
        verified = self._check(token, now)
        if verified is None or not self._is_valid(verified, now):
            return None
        if now < verified.expires_at:
            self._cache[token] = verified
            if len(self._cache) > self._policy.remembered:
                self._cache.popitem(last=False)
        return verified.identity

    async def authenticate(self, token: str) -> Identity | None:
        """Verify the token. If its key is not known, fetch the keys and verify once more."""
        identity = self.verify(token)
        if identity is None and await self.refresh_for(token):
            return self.verify(token)
        return identity

    async def refresh_for(self, token: str) -> bool:
        """Fetch keys if the token names an unknown one. True if its key is known afterwards."""
        now = self._clock()
        parsed = parse_token(token)
        if parsed is None or self._keys.find(parsed.kid, now) is not None:
            return False
        return await self._keys.fetch_for(parsed.kid, now)

    def deny(self, mark: str, until: float) -> None:
        """Refuse the token with this jti or fingerprint. `until` is its exp; leeway is added."""
        self._denied.add(mark, until + self._policy.leeway_s, self._clock())

    def deny_subject(self, subject: str, until: float) -> None:
        """Refuse every token of the subject, including tokens issued later."""
        self._denied_subjects.add(subject, until + self._policy.leeway_s, self._clock())

    def __len__(self) -> int:
        """Return the number of cached tokens."""
        return len(self._cache)

    def _is_valid(self, verified: VerifiedToken, now: float) -> bool:
        """Check what can change after verification: the key is removed, or the token is denied."""
        key = verified.key
        if self._keys.find(key.kid, now) is not key:
            return False
        if self._denied and any(self._denied.has(mark, now) for mark in verified.marks):
            return False
        subject = verified.identity.subject
        return not (self._denied_subjects and self._denied_subjects.has(subject, now))

    def _check(self, token: str, now: float) -> VerifiedToken | None:
        parsed = parse_token(token)
        if parsed is None:
            return None
        key = self._keys.find(parsed.kid, now)
        if key is None or parsed.algorithm != key.algorithm:
            return None
        if not key.verify(parsed.signed_text, parsed.signature):
            return None
        claims = parsed.claims
        if not are_acceptable(claims, self._policy, now):
            return None
        identity = identity_of(claims)
        if identity is None:
            return None
        jti = claims.get("jti")
        marks = (fingerprint(token),) if jti is None else (jti, fingerprint(token))
        return VerifiedToken(identity, claims["exp"], key, marks)


def fingerprint(token: str) -> str:
    """Hash the token without its signature: ECDSA has several valid signatures for one text."""
    return hashlib.sha256(token.rpartition(".")[0].encode()).hexdigest()


def parse_token(token: str) -> ParsedToken | None:
    """Read the token's parts, or return None if its form is not exactly right.

    PyJWT's own `decode` is not used: it accepts duplicate keys in the JSON and unknown headers,
    reads the system's clock, and takes twice as long for an RS256 token.
    """
    if len(token) > MAX_TOKEN_CHARS or (match := COMPACT.fullmatch(token)) is None:
        return None
    try:
        header_json, claims_json, signature = map(decode_base64url, match.groups())
        header = decode(header_json, dict, max_bytes=MAX_TOKEN_CHARS)
        claims = decode(claims_json, dict, max_bytes=MAX_TOKEN_CHARS)
    except (MalformedBody, binascii.Error):
        return None
    kid, token_type = header.get("kid"), header.get("typ", "JWT")
    if not isinstance(kid, str) or not isinstance(token_type, str) or token_type not in TYPES:
        return None
    if not REFUSED_HEADERS.isdisjoint(header):
        return None
    signed_text = token.rpartition(".")[0].encode()
    return ParsedToken(kid, header.get("alg"), signed_text, signature, claims)


def decode_base64url(part: str) -> bytes:
    """Accept only the canonical text: unused last bits would give one token several texts."""
    raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    if base64.urlsafe_b64encode(raw).rstrip(b"=") != part.encode():
        raise binascii.Error("not the canonical text")
    return raw


def are_acceptable(claims: dict[str, Any], policy: TokenPolicy, now: float) -> bool:
    """Check every claim but those that make the identity."""
    if claims.get("iss") != policy.issuer or not is_for(policy.audience, claims.get("aud")):
        return False
    latest = now + policy.leeway_s
    expires, issued, begins = claims.get("exp"), claims.get("iat", int(now)), claims.get("nbf", 1)
    if not is_epoch(expires) or not is_epoch(issued) or not is_epoch(begins):
        return False
    if now >= expires + policy.leeway_s or issued > latest or begins > latest:
        return False
    if "jti" in claims and not is_name(claims["jti"]):
        return False
    return expires - issued <= policy.max_lifetime_s


def is_for(audience: str, claim: object) -> bool:
    if isinstance(claim, list):
        return audience in claim and all(isinstance(name, str) for name in claim)
    return claim == audience


def is_epoch(value: object) -> TypeGuard[int]:
    # An exact type: a bool is an int for isinstance().
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
    """Return the roles, or none if one of them is unknown: a token is accepted whole or not."""
    if "role" in claims and "roles" in claims:
        return frozenset()
    names = [claims["role"]] if "role" in claims else claims.get("roles")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return frozenset()
    roles = frozenset(names)
    return roles if roles <= ROLES else frozenset()
