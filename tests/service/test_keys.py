"""The keys for verifying tokens: fetched, rotated, refreshed, and refused when weak."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.service.tokens import (
    NOW,
    POLICY,
    USER,
    Clock,
    claims,
    good,
    known,
    private,
    private_pem,
    public_pem,
)
from tidegate.service.auth import TokenPolicy, Verifier
from tidegate.service.keys import (
    FetchedKeys,
    FixedKeys,
    KeyRefresh,
    PublicKey,
    UnusableKey,
    issue,
    key_of_jwk,
    key_of_pem,
    new_keypair,
)


def jwks(*keys: tuple[str, str], **changes: Any) -> bytes:
    parts = []
    for kid, kind in keys:
        public: Any = private(kind).public_key()
        match kind.partition(" ")[0]:
            case "EdDSA":
                text = OKPAlgorithm.to_jwk(public)
            case "ES256":
                text = ECAlgorithm.to_jwk(public)
            case _:
                text = RSAAlgorithm.to_jwk(public)
        parts.append({**json.loads(text), "kid": kid, **changes})
    return json.dumps({"keys": parts}).encode()


def by(kind: str, kid: str, **changes: Any) -> str:
    return issue(private_pem(private(kind)), kid, claims(**changes))


class Issuer:
    """Serves a document that the test can change, or fails; counts the fetches."""

    def __init__(self, document: bytes) -> None:
        self.document: bytes | BaseException = document
        self.fetches = 0

    async def __call__(self) -> bytes:
        self.fetches += 1
        await asyncio.sleep(0)
        if isinstance(self.document, BaseException):
            raise self.document
        return self.document


def fetching(issuer: Callable[[], Awaitable[bytes]], clock: Clock) -> tuple[Verifier, FetchedKeys]:
    keys = FetchedKeys(issuer, clock, KeyRefresh())
    terms = TokenPolicy(issuer=POLICY.issuer, audience=POLICY.audience, max_lifetime_s=10_000)
    return Verifier(keys, terms, clock), keys


def test_keys_are_rotated_with_both_keys_known_for_a_while() -> None:
    async def rotate() -> None:
        clock, issuer = Clock(), Issuer(jwks(("old", "EdDSA")))
        checker, keys = fetching(issuer, clock)
        old, new = by("EdDSA", "old", exp=NOW + 9_000), by("ES256", "new", exp=NOW + 9_000)
        assert checker.verify(old) is None
        assert await checker.authenticate(old) == USER
        issuer.document = jwks(("old", "EdDSA"), ("new", "ES256"))
        clock.now += 31
        assert await checker.authenticate(new) == USER
        assert checker.verify(old) == USER
        issuer.document = jwks(("new", "ES256"))
        await keys.refresh()
        assert checker.verify(old) == USER
        clock.now += 300
        await keys.refresh()
        assert checker.verify(old) is None
        assert await checker.authenticate(old) is None
        assert checker.verify(new) == USER
        assert issuer.fetches == 3

    asyncio.run(rotate())


def test_a_changed_key_with_the_same_kid_invalidates_its_tokens() -> None:
    async def change() -> None:
        clock, issuer = Clock(), Issuer(jwks(("k", "EdDSA")))
        checker, keys = fetching(issuer, clock)
        token = by("EdDSA", "k")
        assert await checker.authenticate(token) == USER
        first = keys.find("k", clock.now)
        clock.now += 300
        await keys.refresh()
        assert keys.find("k", clock.now) is first
        issuer.document = jwks(("k", "EdDSA renewed"))
        clock.now += 300
        await keys.refresh()
        assert checker.verify(token) is None
        assert checker.verify(by("EdDSA renewed", "k")) == USER

    asyncio.run(change())


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionError("down"),
        TimeoutError(),
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        jwks(("k", "EdDSA"), ("k", "ES256")),
        b'{"keys": [], "keys": []}',
        b" " * 300_000,
    ],
)
def test_while_the_issuer_is_down_known_keys_are_trusted_for_their_ttl(
    failure: bytes | Exception,
) -> None:
    async def fail() -> None:
        clock, issuer = Clock(), Issuer(jwks(("k", "EdDSA")))
        checker, keys = fetching(issuer, clock)
        token = by("EdDSA", "k", exp=NOW + 9_000)
        assert await checker.authenticate(token) == USER
        issuer.document = failure
        for clock.now in range(NOW, NOW + 3_600, 10):
            await keys.refresh()
            assert checker.verify(token) == USER
        assert keys.last_error is not None
        assert issuer.fetches <= 1 + 3_300 / 30
        clock.now = NOW + 3_600
        assert checker.verify(token) is None
        assert await checker.authenticate(token) is None
        issuer.document = jwks(("k", "EdDSA"))
        clock.now += 31
        assert await checker.authenticate(token) == USER
        assert not keys.last_error

    asyncio.run(fail())


def test_tokens_with_unknown_kids_cannot_cause_many_fetches() -> None:
    async def ask() -> None:
        clock, issuer = Clock(), Issuer(jwks(("k", "EdDSA")))
        checker, _ = fetching(issuer, clock)
        for second in range(61):
            clock.now = NOW + second
            tokens = [by("EdDSA of an attacker", f"x{second}-{n}") for n in range(3)]
            assert await asyncio.gather(*map(checker.authenticate, tokens)) == [None] * 3
            assert await checker.authenticate(by("EdDSA of an attacker", "k")) is None
            assert await checker.authenticate("no token") is None
            assert await checker.authenticate(by("EdDSA", "k", exp=NOW + 900)) == USER
        assert issuer.fetches == 3

    asyncio.run(ask())


def test_one_fetch_serves_all_callers_even_if_the_first_is_cancelled() -> None:
    async def share() -> None:
        clock, gate, calls = Clock(), asyncio.Event(), []

        async def slow() -> bytes:
            calls.append(1)
            await gate.wait()
            return jwks(("k", "EdDSA"))

        checker, keys = fetching(slow, clock)
        token = by("EdDSA", "k")
        first, *others = (asyncio.create_task(checker.authenticate(token)) for _ in range(5))
        refreshed = asyncio.create_task(keys.refresh())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*others) == [USER] * 4
        await refreshed
        assert first.cancelled()
        assert len(calls) == 1

    asyncio.run(share())


def test_a_fetch_that_hangs_times_out() -> None:
    async def hang() -> None:
        async def never() -> bytes:
            await asyncio.sleep(600)
            return b""

        keys = FetchedKeys(never, Clock(), KeyRefresh(fetch_s=0.01))
        await keys.refresh()
        assert keys.last_error == "TimeoutError: "

    asyncio.run(hang())


def test_keep_fresh_fetches_again_when_due() -> None:
    async def keep() -> None:
        clock, issuer = Clock(), Issuer(jwks(("k", "EdDSA")))
        keys = FetchedKeys(issuer, clock, KeyRefresh(retry_s=0.001, refresh_s=0.001))
        for _ in range(3):
            await keys.keep_fresh()
            clock.now += 1
        assert issuer.fetches == 3
        assert keys.find("k", clock.now) is not None

    asyncio.run(keep())


def test_keep_fresh_raises_if_the_keys_cannot_be_fetched() -> None:
    async def keep() -> None:
        clock, issuer = Clock(), Issuer(b"this is not a document")
        keys = FetchedKeys(issuer, clock, KeyRefresh(retry_s=0.001, refresh_s=0.001))
        with pytest.raises(OSError, match="Malformed"):
            await keys.keep_fresh()

    asyncio.run(keep())


def test_a_clock_that_is_set_back_makes_a_fetch_due() -> None:
    async def set_back() -> None:
        clock, issuer = Clock(), Issuer(jwks(("k", "EdDSA")))
        _, keys = fetching(issuer, clock)
        await keys.refresh()
        clock.now -= 3_600
        await keys.refresh()
        assert issuer.fetches == 2

    asyncio.run(set_back())


def test_a_document_may_list_keys_for_other_services() -> None:
    async def pick() -> None:
        listed = json.loads(jwks(("ed", "EdDSA"), ("es", "ES256"), ("rs", "RS256")))["keys"]
        others: list[object] = [
            {"kty": "oct", "kid": "oct", "k": "AAAA"},
            {"kty": "EC", "kid": "p384", "crv": "P-384", "x": "AA", "y": "AA"},
            {**listed[0], "kid": "enc", "use": "enc"},
            {**listed[0], "kid": "signer", "key_ops": ["sign"]},
            {**listed[0], "kid": "odd-ops", "key_ops": "verify"},
            {**listed[0], "kid": "alg", "alg": "ES256"},
            {**listed[0], "kid": "private", "d": "AAAA"},
            {**listed[0], "kid": "cut", "x": "AAAA"},
            {**listed[0], "kid": "number", "x": 5},
            {"kty": "RSA", "kid": "empty"},
            {"kty": ["RSA"], "kid": "list"},
            {**listed[0], "kid": 7},
            {**listed[0], "kid": ""},
            "key",
            None,
        ]
        keys = FetchedKeys(
            Issuer(json.dumps({"keys": others + listed}).encode()), Clock(), KeyRefresh()
        )
        await keys.refresh()
        assert keys.last_error is None
        assert {kid: key.algorithm for kid, key in keys._keys.items()} == {
            "ed": "EdDSA",
            "es": "ES256",
            "rs": "RS256",
        }

    asyncio.run(pick())


def test_a_key_that_is_weak_or_of_another_type_is_refused_at_start() -> None:
    small = rsa.generate_private_key(65537, 1024)
    for pem in (
        public_pem(small),
        public_pem(ec.generate_private_key(ec.SECP384R1())),
        private_pem(private("EdDSA")),
        b"secret",
        b"",
    ):
        with pytest.raises(UnusableKey) as refused:
            key_of_pem("k", pem)
        assert str(refused.value).isprintable()
    for kid in ("", "k" * 201, "a\nb", "é"):
        with pytest.raises(UnusableKey):
            key_of_pem(kid, public_pem(private("EdDSA")))
    with pytest.raises(UnusableKey, match="two keys are named EdDSA"):
        known("EdDSA", "EdDSA")
    with pytest.raises(UnusableKey, match="no kid"):
        key_of_jwk({})


def test_a_configured_jwk_is_read_correctly() -> None:
    for kind in ("EdDSA", "ES256", "RS256"):
        jwk = json.loads(jwks((kind, kind), use="sig", alg=kind, key_ops=["verify"]))["keys"][0]
        key: PublicKey = key_of_jwk(jwk)
        assert key.material == key_of_pem(kind, public_pem(private(kind))).material
        assert Verifier(FixedKeys([key]), POLICY, Clock()).verify(good(kind)) == USER


def test_a_new_keypair_signs_and_verifies() -> None:
    signing, checking = new_keypair()
    checker = Verifier(FixedKeys([key_of_pem("dev", checking)]), POLICY, Clock())
    assert checker.verify(issue(signing, "dev", POLICY.claims("4001", {"user"}, NOW + 0.7))) == USER
    assert checker.verify(issue(new_keypair()[0], "dev", claims())) is None
    assert hashlib.sha256(signing).digest() != hashlib.sha256(new_keypair()[0]).digest()


@pytest.mark.parametrize("wrong", [{"retry_s": 0}, {"refresh_s": 1}, {"ttl_s": 1}, {"fetch_s": 0}])
def test_wrong_times_are_refused_at_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        KeyRefresh(**wrong)
