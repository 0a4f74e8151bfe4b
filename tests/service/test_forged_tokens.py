"""Every invalid token is refused, and all refusals are the same."""

import asyncio
import base64
import hmac
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.algorithms import OKPAlgorithm

from tests.service.tokens import (
    HEADER,
    NOW,
    USER,
    base64url,
    claims,
    good,
    private,
    private_pem,
    public_pem,
    signed,
    verifier,
    with_claims,
    with_header,
)
from tidegate.service.keys import issue


def with_exp(text: str) -> str:
    text = json.dumps(claims(exp="EXP")).replace('"EXP"', text)
    return signed(HEADER, text.encode())


def symmetric(secret: bytes, **changes: Any) -> str:
    header = json.dumps({"alg": "HS256", "kid": "EdDSA", "typ": "JWT", **changes}).encode()
    text = f"{base64url(header)}.{base64url(json.dumps(claims()).encode())}"
    return f"{text}.{base64url(hmac.digest(secret, text.encode(), 'sha256'))}"


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
    parts[part] = base64url(bytes(raw))
    return ".".join(parts)


def foreign(kind: str, kid: str) -> str:
    return issue(private_pem(private(f"{kind} of an attacker")), kid, claims())


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
            f"exp {text:.20}": with_exp(text)
            for text in (
                *(f'"{NOW + 60}"', f"{NOW + 60}.0", f"{NOW + 60}.5", "NaN", "Infinity", "1e400"),
                *("-1", "0", "true", "[]", "{}", "9" * 19, "9" * 5_000, f"-{NOW + 60}", "1.8e9"),
            )
        },
        "exp passed": with_claims(exp=NOW - 5, iat=NOW - 60),
        "exp too far": with_claims(exp=NOW + 901),
        "exp too far, without iat": with_claims(exp=NOW + 901, iat=...),
        "iat in the future": with_claims(iat=NOW + 6),
        "iat a string": with_claims(iat=str(NOW)),
        "iat a bool": with_claims(iat=True),
        "nbf in the future": with_claims(nbf=NOW + 6),
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
    rs = int.from_bytes(order[:32]), int.from_bytes(order[32:])
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
        "zeros": f"{head}.{payload}.{base64url(bytes(64))}",
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
        "an attacker's key": foreign("EdDSA", "EdDSA"),
        "an attacker's key of another kind": foreign("ES256", "EdDSA"),
        "a known key under another's name": issue(private_pem(private("ES256")), "RS256", claims()),
        "an attacker's RSA key": foreign("RS256", "RS256"),
        "an attacker's P-256 key": foreign("ES256", "ES256"),
        "HS256 by the PEM": symmetric(public),
        "HS256 by the PEM, stripped": symmetric(public.strip()),
        "HS256 by the raw key": symmetric(raw),
        "HS256 by nothing": symmetric(b""),
        "HS256 by the PEM, as EdDSA": symmetric(public, alg="EdDSA"),
        "HS256 by the RSA PEM": symmetric(public_pem(private("RS256")), kid="RS256"),
        "ES256 in DER": f"{es.rpartition('.')[0]}.{base64url(encode_dss_signature(*rs))}",
        "ES256 of zeros": f"{es.rpartition('.')[0]}.{base64url(bytes(64))}",
    }


MUTANTS = {
    **by_header(),
    **by_time(),
    **by_person(),
    **by_claims_text(),
    **by_signature_or_key(),
}


def test_every_invalid_token_is_refused() -> None:
    assert len(MUTANTS) > 150
    assert len(set(MUTANTS.values())) == len(MUTANTS)
    checker = verifier()
    assert checker.verify(good()) == USER
    for _ in range(2):
        for name, mutant in MUTANTS.items():
            assert checker.verify(mutant) is None, name
            assert asyncio.run(checker.authenticate(mutant)) is None, name
    assert len(checker) == 1


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.characters(codec="utf-8"))
def test_a_token_with_one_other_character_is_refused(index: int, character: str) -> None:
    token = good()
    index %= len(token)
    changed = token[:index] + character + token[index + 1 :]
    assert (verifier().verify(changed) is not None) == (changed == token)
