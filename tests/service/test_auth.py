"""A token becomes an identity or nothing, whatever is wrong with it."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeAlias

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.utils import (
    encode_dss_signature,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tidegate.service.auth import DenyList, Identity, Terms, Verifier, fingerprint
from tidegate.service.keys import (
    FetchedKeys,
    FixedKeys,
    Key,
    Patience,
    UnusableKey,
    issue,
    key_of_jwk,
    key_of_pem,
    new_keypair,
)

NOW = 1_800_000_000
TERMS = Terms(issuer="https://login.example", audience="tidegate")
USER = Identity("4001", 4001, frozenset({"user"}))
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

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
    return {**TERMS.claims("4001", ["user"], NOW), "jti": "j-1", **changes}


def good(kind: str = "EdDSA", **changes: Any) -> str:
    return issue(private_pem(private(kind)), kind, claims(**changes))


def verifier(clock: Clock | None = None, terms: Terms = TERMS) -> Verifier:
    return Verifier(known("EdDSA", "ES256", "RS256"), terms, clock or Clock())


def armoured(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed(header: bytes, payload: bytes) -> str:
    """Whatever is written, rightly signed with the right key."""
    key = private("EdDSA")
    assert isinstance(key, ed25519.Ed25519PrivateKey)
    text = f"{armoured(header)}.{armoured(payload)}"
    return f"{text}.{armoured(key.sign(text.encode()))}"


def with_header(**changes: Any) -> str:
    header = {"alg": "EdDSA", "kid": "EdDSA", "typ": "JWT", **changes}
    kept = {name: value for name, value in header.items() if value is not ...}
    return signed(json.dumps(kept).encode(), json.dumps(claims()).encode())


def with_claims(**changes: Any) -> str:
    kept = {name: value for name, value in claims(**changes).items() if value is not ...}
    return signed(HEADER, json.dumps(kept).encode())


def with_exp(text: str) -> str:
    said = json.dumps(claims(exp="EXP")).replace('"EXP"', text)
    return signed(HEADER, said.encode())


def symmetric(secret: bytes, **changes: Any) -> str:
    header = json.dumps({"alg": "HS256", "kid": "EdDSA", "typ": "JWT", **changes}).encode()
    text = f"{armoured(header)}.{armoured(json.dumps(claims()).encode())}"
    return f"{text}.{armoured(hmac.digest(secret, text.encode(), 'sha256'))}"


def unsigned(algorithm: str) -> str:
    return with_header(alg=algorithm).rpartition(".")[0] + "."


def spare_bits(token: str) -> str:
    """The same signature in base64 whose unused last bits are not zero."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + alphabet[alphabet.index(token[-1]) + 1]


def flipped(token: str, part: int) -> str:
    parts = token.split(".")
    raw = bytearray(base64.urlsafe_b64decode(parts[part] + "=="))
    raw[len(raw) // 2] ^= 1
    parts[part] = armoured(bytes(raw))
    return ".".join(parts)


def foreign(kind: str, kid: str) -> str:
    return issue(private_pem(private(f"{kind} of a stranger")), kid, claims())


HEADER = b'{"alg":"EdDSA","kid":"EdDSA","typ":"JWT"}'


def by_header() -> dict[str, str]:
    body = json.dumps(claims()).encode()
    jwk = json.loads(OKPAlgorithm.to_jwk(private("EdDSA").public_key()))  # type: ignore[arg-type]
    return {
        **{f"alg {name}, unsigned": unsigned(name) for name in ("none", "None", "NONE", "nOnE")},
        **{f"alg {name}, signed": with_header(alg=name) for name in ("none", "NONE", "")},
        **{
            f"alg {name!r}": with_header(alg=name)
            for name in ("ES256", "RS256", "HS256", "eddsa", "Ed25519", "EdDSA ")
        },
        **{f"alg {value!r}": with_header(alg=value) for value in (1, None, ["EdDSA"])},
        "alg missing": with_header(alg=...),
        **{
            f"kid {kid!r:.20}": with_header(kid=kid)
            for kid in (
                *("", "eddsa", "EdDSA ", "../../EdDSA", "' OR 1=1 --", "EdDSA\0", "k" * 3_000),
                *("ES256", "RS256", 1, None, True, ["EdDSA"], {"EdDSA": 1}),
            )
        },
        "kid missing": with_header(kid=...),
        "jwk": with_header(jwk=jwk),
        "jku": with_header(jku="https://evil.example/jwks"),
        "x5u": with_header(x5u="https://evil.example/cert"),
        "x5c": with_header(x5c=["MIIB"]),
        "crit unknown": with_header(crit=["x"], x=1),
        "crit empty": with_header(crit=[]),
        "b64 false": with_header(b64=False),
        "b64 false, critical": with_header(b64=False, crit=["b64"]),
        "b64 true": with_header(b64=True),
        "zip": with_header(zip="DEF"),
        "cty": with_header(cty="JWT"),
        "enc": with_header(enc="A256GCM"),
        **{
            f"typ {name!r}": with_header(typ=name)
            for name in ("JWE", "jose", "dpop+jwt", "", None, 1, ["JWT"], {"JWT": 1})
        },
        "alg twice": signed(b'{"alg":"none","alg":"EdDSA","kid":"EdDSA"}', body),
        "kid twice": signed(b'{"alg":"EdDSA","kid":"RS256","kid":"EdDSA"}', body),
        "a header that is a list": signed(b"[]", body),
        "a header that is no JSON": signed(b"alg=EdDSA", body),
        "a header that is not UTF-8": signed(b'{"alg":"EdDSA","kid":"\xff"}', body),
        "a header without end": signed(b"[" * 4_000, body),
    }


def by_time() -> dict[str, str]:
    return {
        **{f"{name} missing": with_claims(**{name: ...}) for name in ("iss", "aud", "exp", "sub")},
        **{f"{name} null": with_claims(**{name: None}) for name in claims()},
        **{
            f"exp {said:.20}": with_exp(said)
            for said in (
                *(f'"{NOW + 60}"', f"{NOW + 60}.0", f"{NOW + 60}.5", "NaN", "Infinity", "1e400"),
                *("-1", "0", "true", "[]", "{}", "9" * 19, "9" * 5_000, f"-{NOW + 60}", "1.8e9"),
            )
        },
        "exp passed": with_claims(exp=NOW - 5, iat=NOW - 60),
        "exp too far": with_claims(exp=NOW + 901),
        "exp too far, without iat": with_claims(exp=NOW + 901, iat=...),
        "iat to come": with_claims(iat=NOW + 6),
        "iat a string": with_claims(iat=str(NOW)),
        "iat a bool": with_claims(iat=True),
        "nbf to come": with_claims(nbf=NOW + 6),
        "nbf a string": with_claims(nbf=str(NOW)),
        "nbf a fraction": with_claims(nbf=NOW - 0.5),
        "nbf a bool": with_claims(nbf=True),
    }


def by_person() -> dict[str, str]:
    return {
        "iss of another": with_claims(iss="https://login.example.evil"),
        "iss with a slash": with_claims(iss="https://login.example/"),
        "iss in a list": with_claims(iss=["https://login.example"]),
        "aud of another": with_claims(aud="other"),
        "aud of others": with_claims(aud=["other", "another"]),
        "aud empty": with_claims(aud=[]),
        "aud in part": with_claims(aud="tidegate-test"),
        "aud mixed": with_claims(aud=["tidegate", 1]),
        "aud an object": with_claims(aud={"tidegate": 1}),
        **{
            f"sub {sub!r:.20}": with_claims(sub=sub)
            for sub in (
                *(
                    "",
                    "0",
                    "-1",
                    "+1",
                    "04001",
                    " 4001",
                    "4001\n",
                    "4_001",
                    "٤٠٠١",
                    "\uff14\uff10\uff10\uff11",
                ),
                *("4001.0", "4e3", "0x1", "alice", str(2**63), "9" * 19, "9" * 300, 4001, [4001]),
            )
        },
        **{
            f"roles {roles!r}": with_claims(roles=roles)
            for roles in (
                *([], ["root"], ["user", "root"], ["User"], "user", ["user", 1], [["user"]]),
                *({"user": 1}, [None], True),
            )
        },
        "roles missing": with_claims(roles=...),
        "role and roles": with_claims(role="user"),
        "role unknown": with_claims(roles=..., role="admin"),
        "role in a list": with_claims(roles=..., role=["user"]),
        **{f"jti {jti!r:.20}": with_claims(jti=jti) for jti in ("", 1, ["j"], "j" * 257)},
    }


def by_claims_text() -> dict[str, str]:
    text = json.dumps(claims())
    return {
        "sub twice": signed(HEADER, text.replace('"sub"', '"sub": "1", "sub"').encode()),
        "exp twice, once escaped": signed(
            HEADER, text.replace('"exp"', r'"\u0065xp": 1, "exp"').encode()
        ),
        "a claim twice below": signed(HEADER, (text[:-1] + ', "x": [{"a": 1, "a": 2}]}').encode()),
        "claims in a list": signed(HEADER, f"[{text}]".encode()),
        "claims that are no JSON": signed(HEADER, text[:-1].encode()),
        "garbage after the claims": signed(HEADER, (text + "{}").encode()),
        "claims with a byte order mark": signed(HEADER, b"\xef\xbb\xbf" + text.encode()),
        "claims in UTF-16": signed(HEADER, text.encode("utf-16")),
        "claims without bottom": signed(HEADER, b'{"a":' * 1_000),
    }


def by_signature_or_key() -> dict[str, str]:
    token = good()
    head, payload, signature = token.split(".")
    public = public_pem(private("EdDSA"))
    raw = private("EdDSA").public_key().public_bytes_raw()  # type: ignore[union-attr]
    es = good("ES256")
    order = base64.urlsafe_b64decode(es.rpartition(".")[2] + "==")
    numbers = int.from_bytes(order[:32]), int.from_bytes(order[32:])
    return {
        "no signature": f"{head}.{payload}.",
        "no third part": f"{head}.{payload}",
        "one part": head,
        "nothing": "",
        "dots": "..",
        "five parts": f"{head}.{payload}.{signature}.{payload}.{signature}",
        "four parts": f"{token}.{signature}",
        "no claims": f"{head}..{signature}",
        "no header": f".{payload}.{signature}",
        **{f"part {part} flipped": flipped(token, part) for part in range(3)},
        "half a signature": token[:-43],
        "a longer signature": token + "AAAA",
        "zeros": f"{head}.{payload}.{armoured(bytes(64))}",
        "of another token": f"{head}.{payload}.{good(jti='j-2').rpartition('.')[2]}",
        "spare bits": spare_bits(token),
        "padded": token + "==",
        "plain base64": f"{head}.{payload}.+/{signature[2:]}",
        "space before": " " + token,
        "line feed after": token + "\n",
        "space within": f"{head}. {payload}.{signature}",
        "Bearer": f"Bearer {token}",
        "letters of another alphabet": token.replace("e", "\u0435"),
        "half a pair": token + "\ud800",
        "NUL": token + "\0",
        "too long": good(note="x" * 6_500),
        "a stranger's key": foreign("EdDSA", "EdDSA"),
        "a stranger's key of another kind": foreign("ES256", "EdDSA"),
        "a known key under another's name": issue(private_pem(private("ES256")), "RS256", claims()),
        "a stranger's RSA key": foreign("RS256", "RS256"),
        "a stranger's P-256 key": foreign("ES256", "ES256"),
        "HS256 by the PEM": symmetric(public),
        "HS256 by the PEM, stripped": symmetric(public.strip()),
        "HS256 by the raw key": symmetric(raw),
        "HS256 by nothing": symmetric(b""),
        "HS256 by the PEM, as EdDSA": symmetric(public, alg="EdDSA"),
        "HS256 by the RSA PEM": symmetric(public_pem(private("RS256")), kid="RS256"),
        "ES256 in DER": f"{es.rpartition('.')[0]}.{armoured(encode_dss_signature(*numbers))}",
        "ES256 of zeros": f"{es.rpartition('.')[0]}.{armoured(bytes(64))}",
    }


MUTANTS = {
    **by_header(),
    **by_time(),
    **by_person(),
    **by_claims_text(),
    **by_signature_or_key(),
}


def test_every_mutant_gets_the_same_answer() -> None:
    assert len(MUTANTS) > 150
    assert len(set(MUTANTS.values())) == len(MUTANTS)
    ours = verifier()
    assert ours.verify(good()) == USER
    for _ in range(2):
        for name, mutant in MUTANTS.items():
            assert ours.verify(mutant) is None, name
            assert asyncio.run(ours.authenticate(mutant)) is None, name
    assert len(ours) == 1


GOOD = {
    **{kind: good(kind) for kind in ("EdDSA", "ES256", "RS256")},
    "typ at+jwt": with_header(typ="at+jwt"),
    "no typ": with_header(typ=...),
    "a header that means nothing to us": with_header(x5t="abc"),
    "one of several audiences": with_claims(aud=["other", "tidegate"]),
    "without iat and jti": with_claims(iat=..., jti=...),
    "just begun": with_claims(nbf=NOW + 5, iat=NOW + 5),
    "just ended": with_claims(exp=NOW - 4, iat=NOW - 60),
    "just ended, without iat": with_claims(exp=NOW - 4, iat=...),
    "of the longest life": with_claims(exp=NOW + 900),
    "one role": with_claims(roles=..., role="user"),
    "a claim that means nothing to us": with_claims(name="Ж" * 10, amr=[{"a": 1.5}]),
}


@pytest.mark.parametrize("token", GOOD.values(), ids=GOOD.keys())
def test_a_good_token_is_taken(token: str) -> None:
    ours = verifier()
    assert ours.verify(token) == USER
    assert ours.verify(token) == USER


def test_an_owner_is_who_has_the_role_user() -> None:
    ours = verifier()
    assert ours.verify(good(sub="alice", roles=["operator", "approver"])) == Identity(
        "alice", None, frozenset({"operator", "approver"})
    )
    assert ours.verify(good(roles=["auditor"])) == Identity("4001", None, frozenset({"auditor"}))
    both = ours.verify(good(sub=str(2**63 - 1), roles=["user", "operator", "user"]))
    assert both == Identity(str(2**63 - 1), 2**63 - 1, frozenset({"user", "operator"}))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.characters(codec="utf-8"))
def test_a_token_with_one_other_character_is_refused(place: int, character: str) -> None:
    token = GOOD["EdDSA"]
    place %= len(token)
    changed = token[:place] + character + token[place + 1 :]
    assert (verifier().verify(changed) is not None) == (changed == token)


def test_a_remembered_token_does_not_outlive_its_exp() -> None:
    clock = Clock()
    ours = verifier(clock, Terms(issuer=TERMS.issuer, audience=TERMS.audience, leeway_s=0))
    token = good(exp=NOW + 60)
    assert ours.verify(token) == USER
    clock.now = NOW + 59.999
    assert ours.verify(token) == USER
    clock.now = NOW + 60
    assert ours.verify(token) is None
    assert len(ours) == 0


def test_a_token_lives_on_through_the_leeway_but_is_not_remembered() -> None:
    clock = Clock()
    ours = verifier(clock)
    token = good(exp=NOW + 60)
    assert ours.verify(token) == USER
    clock.now = NOW + 64
    assert ours.verify(token) == USER
    assert len(ours) == 0
    clock.now = NOW + 65
    assert ours.verify(token) is None


def test_no_more_tokens_are_remembered_than_allowed_and_the_used_ones_stay() -> None:
    ours = verifier(terms=Terms(issuer=TERMS.issuer, audience=TERMS.audience, remembered=3))
    tokens = [good(jti=f"j-{n}") for n in range(6)]
    for token in tokens:
        assert ours.verify(token) == USER
        assert ours.verify(tokens[0]) == USER
        assert len(ours) <= 3
    assert list(ours._remembered) == [tokens[4], tokens[5], tokens[0]]


def test_the_deny_list_beats_the_memory() -> None:
    clock = Clock()
    ours = verifier(clock)
    tokens = {name: good(jti=name, exp=NOW + 60) for name in ("a", "b", "c")}
    nameless = issue(private_pem(private("ES256")), "ES256", claims(exp=NOW + 60, sub="7"))
    for token in (*tokens.values(), nameless):
        assert ours.verify(token) is not None
    ours.deny("a", NOW + 60)
    ours.deny(fingerprint(tokens["b"]), NOW + 60)
    ours.deny_subject("7", NOW + 60)
    for clock.now in (NOW, NOW + 59, NOW + 64.9):
        answers = [ours.verify(token) for token in (*tokens.values(), nameless)]
        assert answers == [None, None, USER, None]
    clock.now = NOW
    assert ours.verify(good("RS256", sub="7", jti="new")) is None
    assert ours.verify(good("RS256", sub="8", jti="new")) is not None


def test_another_signature_of_a_denied_token_is_denied() -> None:
    ours = verifier()
    token = good("ES256", jti="twin")
    text, _, signature = token.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    mirrored = raw[:32] + (P256_ORDER - int.from_bytes(raw[32:])).to_bytes(32)
    twin = f"{text}.{armoured(mirrored)}"
    assert twin != token
    assert ours.verify(twin) == USER
    ours.deny(fingerprint(token), NOW + 900)
    assert ours.verify(twin) is None


def test_a_denial_ends_and_is_forgotten() -> None:
    denied = DenyList()
    denied.add("a", 10, 0)
    denied.add("a", 5, 0)
    denied.add("b", 20, 0)
    denied.add("b", 30, 0)
    denied.add("late", 1, 2)
    assert [denied.has(mark, 9) for mark in ("a", "b", "c", "late")] == [True, True, False, False]
    assert not denied.has("a", 10)
    denied.add("c", 40, 25)
    assert len(denied) == 2
    assert denied.has("b", 29)
    denied.add("d", 30, 50)
    assert len(denied) == 0


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
    keys = FetchedKeys(issuer, clock, Patience())
    terms = Terms(issuer=TERMS.issuer, audience=TERMS.audience, max_lifetime_s=10_000)
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

        keys = FetchedKeys(never, Clock(), Patience(fetch_s=0.01))
        await keys.refresh()
        assert keys.trouble == "TimeoutError: "

    asyncio.run(hang())


def test_keys_keep_themselves_fresh() -> None:
    async def keep() -> None:
        clock, issuer = Clock(), Issuer(jwks(("k", "EdDSA")))
        patience = Patience(retry_s=0.001, refresh_s=0.001)
        keys = FetchedKeys(issuer, clock, patience)
        keeper = asyncio.create_task(keys.keep_fresh())
        while issuer.asked < 3:
            clock.now += 1
            await asyncio.sleep(0.001)
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        assert keys.find("k", clock.now) is not None

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
            Issuer(json.dumps({"keys": others + listed}).encode()), Clock(), Patience()
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
        key: Key = key_of_jwk(jwk)
        assert key.material == key_of_pem(kind, public_pem(private(kind))).material
        assert Verifier(FixedKeys([key]), TERMS, Clock()).verify(good(kind)) == USER


def test_a_new_keypair_signs_what_its_public_half_verifies() -> None:
    signing, checking = new_keypair()
    ours = Verifier(FixedKeys([key_of_pem("dev", checking)]), TERMS, Clock())
    assert ours.verify(issue(signing, "dev", TERMS.claims("4001", {"user"}, NOW + 0.7))) == USER
    assert ours.verify(issue(new_keypair()[0], "dev", claims())) is None
    assert hashlib.sha256(signing).digest() != hashlib.sha256(new_keypair()[0]).digest()


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": ""},
        {"audience": ""},
        {"leeway_s": 31},
        {"leeway_s": -1},
        {"max_lifetime_s": 0},
        {"remembered": 0},
    ],
)
def test_wrong_terms_are_refused_at_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Terms(**{"issuer": "i", "audience": "a", **wrong})


@pytest.mark.parametrize("wrong", [{"retry_s": 0}, {"refresh_s": 1}, {"ttl_s": 1}, {"fetch_s": 0}])
def test_wrong_times_are_refused_at_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Patience(**wrong)
