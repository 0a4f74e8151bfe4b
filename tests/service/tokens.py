"""Tokens for tests: valid ones, and ones with a valid signature on any content."""

import base64
import json
from functools import cache
from typing import Any, TypeAlias

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tidegate.service.auth import Identity, TokenPolicy, Verifier
from tidegate.service.keys import FixedKeys, issue, key_of_pem

NOW = 1_800_000_000
POLICY = TokenPolicy(issuer="https://login.example", audience="tidegate")
USER = Identity("4001", 4001, frozenset({"user"}))
HEADER = b'{"alg":"EdDSA","kid":"EdDSA","typ":"JWT"}'

Private: TypeAlias = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Clock:
    def __init__(self) -> None:
        self.now: float = NOW

    def __call__(self) -> float:
        return self.now


@cache
def private(kind: str) -> Private:
    match kind.partition(" ")[0]:
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(65537, 2048)


def private_pem(key: Private) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def public_pem(key: Private) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def known(*kinds: str) -> FixedKeys:
    return FixedKeys(key_of_pem(kind, public_pem(private(kind))) for kind in kinds)


def claims(**changes: Any) -> dict[str, Any]:
    return {**POLICY.claims("4001", ["user"], NOW), "jti": "j-1", **changes}


def good(kind: str = "EdDSA", **changes: Any) -> str:
    return issue(private_pem(private(kind)), kind, claims(**changes))


def verifier(clock: Clock | None = None, policy: TokenPolicy = POLICY) -> Verifier:
    return Verifier(known("EdDSA", "ES256", "RS256"), policy, clock or Clock())


def base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed(header: bytes, payload: bytes) -> str:
    """Sign any header and payload with the known key."""
    key = private("EdDSA")
    assert isinstance(key, ed25519.Ed25519PrivateKey)
    text = f"{base64url(header)}.{base64url(payload)}"
    return f"{text}.{base64url(key.sign(text.encode()))}"


def with_header(**changes: Any) -> str:
    header = {"alg": "EdDSA", "kid": "EdDSA", "typ": "JWT", **changes}
    fields = {name: value for name, value in header.items() if value is not ...}
    return signed(json.dumps(fields).encode(), json.dumps(claims()).encode())


def with_claims(**changes: Any) -> str:
    fields = {name: value for name, value in claims(**changes).items() if value is not ...}
    return signed(HEADER, json.dumps(fields).encode())
