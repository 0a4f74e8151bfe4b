"""Public keys for verifying tokens: each has an id (kid) and exactly one algorithm.

The algorithm follows from the key and never from the token. Symmetric keys are not supported.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from jwt.algorithms import Algorithm, ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tidegate.service import json_body

MIN_RSA_BITS, MAX_RSA_BITS = 2_048, 8_192
MAX_KID_CHARS = 200
MAX_DOCUMENT_BYTES = 2**18

ALGORITHMS: Mapping[str, Algorithm] = {
    "EdDSA": OKPAlgorithm(),
    "ES256": ECAlgorithm(ECAlgorithm.SHA256),
    "RS256": RSAAlgorithm(RSAAlgorithm.SHA256),
}
JWK_PARSERS: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "OKP": OKPAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "RSA": RSAAlgorithm.from_jwk,
}

KeyMaterial: TypeAlias = Ed25519PublicKey | EllipticCurvePublicKey | RSAPublicKey
Fetch: TypeAlias = Callable[[], Awaitable[bytes]]


class UnusableKey(ValueError):
    """A key is not accepted; the message says why in one line."""


class PublicKey(NamedTuple):
    kid: str
    algorithm: str
    public: KeyMaterial
    material: bytes  # DER encoding: equal for two objects that hold the same key.

    def verify(self, message: bytes, signature: bytes) -> bool:
        return ALGORITHMS[self.algorithm].verify(message, self.public, signature)


class KeySource(Protocol):
    def find(self, kid: str, now: float) -> PublicKey | None:
        """Return the key with this id if it is trusted now."""

    async def fetch_for(self, kid: str, now: float) -> bool:
        """Fetch the keys to look for this id. True if it is known afterwards."""


class FixedKeys:
    """Keys from the configuration. To rotate one, list the old and the new key together."""

    def __init__(self, keys: Iterable[PublicKey]) -> None:
        self._keys = by_kid(keys)

    def find(self, kid: str, now: float) -> PublicKey | None:  # noqa: ARG002
        return self._keys.get(kid)

    async def fetch_for(self, kid: str, now: float) -> bool:  # noqa: ARG002
        return False


class KeyRefresh(msgspec.Struct, frozen=True, kw_only=True):
    """How long fetched keys are trusted, and how often they are fetched."""

    refresh_s: float = 300  # Fetch again after this time: a removed key is trusted this long.
    ttl_s: float = 3_600  # Without one successful fetch in this time, trust no key.
    retry_s: float = 30  # The least time between fetches: tokens with unknown kids cost no more.
    fetch_s: float = 5  # Timeout of one fetch.

    def __post_init__(self) -> None:
        if not 0 < self.retry_s <= self.refresh_s <= self.ttl_s or self.fetch_s <= 0:
            raise ValueError("JWKS times must be positive: retry_s <= refresh_s <= ttl_s")


class FetchedKeys:
    """Keys from a JWKS document. `fetch` raises OSError if the document cannot be fetched."""

    def __init__(self, fetch: Fetch, clock: Callable[[], float], refresh: KeyRefresh) -> None:
        self._fetch = fetch
        self._clock = clock
        self._times = refresh
        self._keys: Mapping[str, PublicKey] = {}
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self.last_error: str | None = None  # Why the last fetch failed, for the log.

    def find(self, kid: str, now: float) -> PublicKey | None:
        return self._keys.get(kid) if now - self._fetched_at < self._times.ttl_s else None

    async def fetch_for(self, kid: str, now: float) -> bool:
        if not self._is_fetching() and 0 <= now - self._tried_at < self._times.retry_s:
            return False
        await self._join()
        return self.find(kid, self._clock()) is not None

    async def refresh(self) -> None:
        """Fetch the document if that is due. It is also due after the clock was set back."""
        now = self._clock()
        if 0 <= now - self._fetched_at < self._times.refresh_s:
            return
        if self._is_fetching() or not 0 <= now - self._tried_at < self._times.retry_s:
            await self._join()

    async def keep_fresh(self) -> None:
        """Run one round of the background task. Raise if the last fetch failed."""
        await self.refresh()
        if self.last_error is not None:
            raise OSError(self.last_error)

    def _is_fetching(self) -> bool:
        return self._fetching is not None and not self._fetching.done()

    async def _join(self) -> None:
        # All callers share one fetch. It is shielded: the first caller may be cancelled.
        if self._fetching is None or self._fetching.done():
            self._tried_at = self._clock()
            self._fetching = asyncio.create_task(self._replace())
        await asyncio.shield(self._fetching)

    async def _replace(self) -> None:
        try:
            async with asyncio.timeout(self._times.fetch_s):
                document = await self._fetch()
            fresh = by_kid(keys_of(document))
        except (OSError, ValueError) as error:
            self.last_error = json_body.quoted(
                f"{type(error).__name__}: {error}", json_body.DETAIL_CHARS
            )
            return
        # An unchanged key stays the same object, so that the tokens it verified stay cached.
        self._keys = {kid: same(self._keys.get(kid), key) for kid, key in fresh.items()}
        self._fetched_at = self._tried_at
        self.last_error = None


def same(old: PublicKey | None, new: PublicKey) -> PublicKey:
    return old if old is not None and old.material == new.material else new


def by_kid(keys: Iterable[PublicKey]) -> dict[str, PublicKey]:
    index: dict[str, PublicKey] = {}
    for key in keys:
        if key.kid in index:
            raise UnusableKey(f"two keys are named {json_body.quoted(key.kid)}: rename one")
        index[key.kid] = key
    return index


def key_of_pem(kid: str, pem: bytes) -> PublicKey:
    try:
        public = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise UnusableKey(f"the key {json_body.quoted(kid)} is not a public key in PEM") from None
    return key_of(kid, public)


def key_of_jwk(jwk: Mapping[str, Any]) -> PublicKey:
    kid, key_type = jwk.get("kid"), jwk.get("kty")
    if not isinstance(kid, str):
        raise UnusableKey("a key has no kid: give it one")
    parser = JWK_PARSERS.get(key_type) if isinstance(key_type, str) else None
    if parser is None or "d" in jwk or jwk.get("use", "sig") != "sig":
        raise UnusableKey(f"the key {json_body.quoted(kid)} is not a public key for signatures")
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise UnusableKey(f"the key {json_body.quoted(kid)} is not for verifying")
    numbers = {name: jwk[name] for name in ("crv", "x", "y", "n", "e") if name in jwk}
    if not all(isinstance(number, str) for number in numbers.values()):
        raise UnusableKey(f"the key {json_body.quoted(kid)} is not a JWK")
    try:
        public = parser({"kty": key_type, **numbers})
    except (jwt.PyJWTError, ValueError, KeyError):
        raise UnusableKey(f"the key {json_body.quoted(kid)} is not a valid JWK") from None
    key = key_of(kid, public)
    if jwk.get("alg", key.algorithm) != key.algorithm:
        raise UnusableKey(f"the key {json_body.quoted(kid)} must have alg {key.algorithm}")
    return key


def keys_of(document: bytes) -> list[PublicKey]:
    """Return the usable keys of a JWKS document. It may also list keys for other services."""
    listed = json_body.decode(document, dict, max_bytes=MAX_DOCUMENT_BYTES).get("keys")
    if not isinstance(listed, list):
        raise UnusableKey("the JWKS document has no list of keys")
    keys = []
    for jwk in listed:
        try:
            keys.append(key_of_jwk(jwk if isinstance(jwk, dict) else {}))
        except UnusableKey:
            continue
    return keys


def key_of(kid: str, public: object) -> PublicKey:
    if not 0 < len(kid) <= MAX_KID_CHARS or not kid.isascii() or not kid.isprintable():
        raise UnusableKey(f"a kid is 1 to {MAX_KID_CHARS} printable ASCII characters")
    match public:
        case Ed25519PublicKey():
            algorithm = "EdDSA"
        case EllipticCurvePublicKey(curve=SECP256R1()):
            algorithm = "ES256"
        case RSAPublicKey(key_size=bits) if MIN_RSA_BITS <= bits <= MAX_RSA_BITS:
            algorithm = "RS256"
        case _:
            raise UnusableKey(
                f"key {json_body.quoted(kid)} must be Ed25519, P-256 or RSA of 2048 bits or more"
            )
    material = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return PublicKey(kid, algorithm, public, material)


def new_keypair() -> tuple[bytes, bytes]:
    """Make an Ed25519 key pair; return the private and the public key as PEM."""
    private = Ed25519PrivateKey.generate()
    return (
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )


def issue(private_pem: bytes, kid: str, claims: Mapping[str, Any]) -> str:
    """Sign a token, for development and tests. A production service never signs one."""
    private = serialization.load_pem_private_key(private_pem, password=None)
    if not isinstance(private, Ed25519PrivateKey | EllipticCurvePrivateKey | RSAPrivateKey):
        raise UnusableKey(
            f"the key {json_body.quoted(kid)} is not a private key that can sign tokens"
        )
    algorithm = key_of(kid, private.public_key()).algorithm
    return jwt.encode(dict(claims), private, algorithm=algorithm, headers={"kid": kid})
