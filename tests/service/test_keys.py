"""The keys that tokens are verified with: fetched, rotated, kept fresh, refused when weak."""

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
    TERMS,
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
    """Serves a document that the test changes, or fails; and counts."""

    def __init__(self, document: bytes) -> None:
        self.document: bytes | BaseException = document
        self.asked = 0

    async def __call__(self) -> bytes:
        self.asked += 1
        await asyncio.sleep(0)
        if isinstance(self.document, BaseException):
            raise self.document
        return self.document


def fetching(issuer: Callable[[], Awaitable[bytes]], clock: Clock) -> tuple[Verifier, FetchedKeys]:
    keys = FetchedKeys(issuer, clock, KeyRefresh())
    terms = TokenPolicy(issuer=TERMS.issuer, audience=TERMS.audience, max_lifetime_s=10_000)
    return Verifier(keys, terms, clock), keys


def test_keys_are_rotated_with_both_known_for_a_while_and_then_removed() -> None:
    async def rotate() -> None:
        clock, issuer = Clock(), Issuer(jwks(("old", "EdDSA")))
        ours, keys = fetching(issuer, clock)
        old, new = by("EdDSA", "old", exp=NOW + 9_000), by("ES256", "new", exp=NOW + 9_000)
        assert ours.verify(old) is None
        assert await ours.authenticate(old) == USER
        issuer.document = jwks(("old", "EdDSA"), ("new", "ES256"))
        clock.now += 31
        assert await ours.authenticate(new) == USER
        assert ours.verify(old) == USER
        issuer.document = jwks(("new", "ES256"))
        await keys.refresh()
        assert ours.verify(old) == USER
        clock.now += 300
        await keys.refresh()
        assert ours.verify(old) is None
        assert await ours.authenticate(old) is None
        assert ours.verify(new) == USER
        assert issuer.asked == 3

    asyncio.run(rotate())


def test_a_key_that_changes_under_its_name_takes_its_tokens_along() -> None:
    async def change() -> None:
        clock, issuer = Clock(), Issuer(jwks(("k", "EdDSA")))
        ours, keys = fetching(issuer, clock)
        token = by("EdDSA", "k")
        assert await ours.authenticate(token) == USER
        first = keys.find("k", clock.now)
        clock.now += 300
        await keys.refresh()
        assert keys.find("k", clock.now) is first
        issuer.document = jwks(("k", "EdDSA renewed"))
        clock.now += 300
        await keys.refresh()
        assert ours.verify(token) is None
        assert ours.verify(by("EdDSA renewed", "k")) == USER

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
def test_while_the_issuer_is_down_known_keys_are_believed_until_their_time(
    failure: bytes | Exception,
) -> None:
    async def endure() -> None:
        clock, issuer = Clock(), Issuer(jwks(("k", "EdDSA")))
        ours, keys = fetching(issuer, clock)
        token = by("EdDSA", "k", exp=NOW + 9_000)
        assert await ours.authenticate(token) == USER
        issuer.document = failure
        for clock.now in range(NOW, NOW + 3_600, 10):
            await keys.refresh()
            assert ours.verify(token) == USER
        assert keys.trouble is not None
        assert issuer.asked <= 1 + 3_300 / 30
        clock.now = NOW + 3_600
        assert ours.verify(token) is None
        assert await ours.authenticate(token) is None
        issuer.document = jwks(("k", "EdDSA"))
        clock.now += 31
        assert await ours.authenticate(token) == USER
        assert not keys.trouble

    asyncio.run(endure())


def test_strangers_cannot_make_us_ask_for_keys_often() -> None:
    async def ask() -> None:
        clock, issuer = Clock(), Issuer(jwks(("k", "EdDSA")))
        ours, _ = fetching(issuer, clock)
        for second in range(61):
            clock.now = NOW + second
            tokens = [by("EdDSA of a stranger", f"x{second}-{n}") for n in range(3)]
            assert await asyncio.gather(*map(ours.authenticate, tokens)) == [None] * 3
            assert await ours.authenticate(by("EdDSA of a stranger", "k")) is None
            assert await ours.authenticate("no token") is None
            assert await ours.authenticate(by("EdDSA", "k", exp=NOW + 900)) == USER
        assert issuer.asked == 3

    asyncio.run(ask())


def test_one_fetch_serves_all_and_outlives_the_request_that_began_it() -> None:
    async def share() -> None:
        clock, gate, asked = Clock(), asyncio.Event(), []

        async def slow() -> bytes:
            asked.append(1)
            await gate.wait()
            return jwks(("k", "EdDSA"))

        ours, keys = fetching(slow, clock)
        token = by("EdDSA", "k")
        first, *others = (asyncio.create_task(ours.authenticate(token)) for _ in range(5))
        refreshed = asyncio.create_task(keys.refresh())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*others) == [USER] * 4
        await refreshed
        assert first.cancelled()
        assert len(asked) == 1

    asyncio.run(share())


def test_a_fetch_that_hangs_is_given_up() -> None:
    async def hang() -> None:
        async def never() -> bytes:
            await asyncio.sleep(600)
            return b""

        keys = FetchedKeys(never, Clock(), KeyRefresh(fetch_s=0.01))
        await keys.refresh()
        assert keys.trouble == "TimeoutError: "

    asyncio.run(hang())


def test_keys_keep_themselves_fresh() -> None:
    async def keep() -> None:
        clock, issuer = Clock(), Issuer(jwks(("k", "EdDSA")))
        keys = FetchedKeys(issuer, clock, KeyRefresh(retry_s=0.001, refresh_s=0.001))
        for _ in range(3):
            await keys.keep_fresh()
            clock.now += 1
        assert issuer.asked == 3
        assert keys.find("k", clock.now) is not None

    asyncio.run(keep())


def test_keys_that_cannot_be_had_are_a_failure_of_the_round() -> None:
    async def keep() -> None:
        clock, issuer = Clock(), Issuer(b"this is no document")
        keys = FetchedKeys(issuer, clock, KeyRefresh(retry_s=0.001, refresh_s=0.001))
        with pytest.raises(OSError, match="Malformed"):
            await keys.keep_fresh()

    asyncio.run(keep())


def test_a_clock_that_is_put_back_makes_keys_due() -> None:
    async def put_back() -> None:
        clock, issuer = Clock(), Issuer(jwks(("k", "EdDSA")))
        _, keys = fetching(issuer, clock)
        await keys.refresh()
        clock.now -= 3_600
        await keys.refresh()
        assert issuer.asked == 2

    asyncio.run(put_back())


def test_a_document_may_list_keys_for_others() -> None:
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
        assert keys.trouble is None
        assert {kid: key.algorithm for kid, key in keys._keys.items()} == {
            "ed": "EdDSA",
            "es": "ES256",
            "rs": "RS256",
        }

    asyncio.run(pick())


def test_a_key_that_is_weak_or_of_another_kind_is_refused_at_start() -> None:
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


def test_a_configured_jwk_is_the_key_it_describes() -> None:
    for kind in ("EdDSA", "ES256", "RS256"):
        jwk = json.loads(jwks((kind, kind), use="sig", alg=kind, key_ops=["verify"]))["keys"][0]
        key: PublicKey = key_of_jwk(jwk)
        assert key.material == key_of_pem(kind, public_pem(private(kind))).material
        assert Verifier(FixedKeys([key]), TERMS, Clock()).verify(good(kind)) == USER


def test_a_new_keypair_signs_what_its_public_half_verifies() -> None:
    signing, checking = new_keypair()
    ours = Verifier(FixedKeys([key_of_pem("dev", checking)]), TERMS, Clock())
    assert ours.verify(issue(signing, "dev", TERMS.claims("4001", {"user"}, NOW + 0.7))) == USER
    assert ours.verify(issue(new_keypair()[0], "dev", claims())) is None
    assert hashlib.sha256(signing).digest() != hashlib.sha256(new_keypair()[0]).digest()


@pytest.mark.parametrize("wrong", [{"retry_s": 0}, {"refresh_s": 1}, {"ttl_s": 1}, {"fetch_s": 0}])
def test_wrong_times_are_refused_at_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        KeyRefresh(**wrong)
