"""A valid token becomes an identity, is cached, and can be denied."""

import base64
from typing import Any

import pytest

from tests.service.tokens import (
    NOW,
    POLICY,
    USER,
    Clock,
    base64url,
    claims,
    good,
    private,
    private_pem,
    verifier,
    with_claims,
    with_header,
)
from tidegate.service.auth import DenyList, Identity, TokenPolicy, fingerprint
from tidegate.service.keys import issue

P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

GOOD = {
    **{kind: good(kind) for kind in ("EdDSA", "ES256", "RS256")},
    "typ at+jwt": with_header(typ="at+jwt"),
    "no typ": with_header(typ=...),
    "an unknown header": with_header(x5t="abc"),
    "one of several audiences": with_claims(aud=["other", "tidegate"]),
    "without iat and jti": with_claims(iat=..., jti=...),
    "just begun": with_claims(nbf=NOW + 5, iat=NOW + 5),
    "just ended": with_claims(exp=NOW - 4, iat=NOW - 60),
    "just ended, without iat": with_claims(exp=NOW - 4, iat=...),
    "with the longest lifetime": with_claims(exp=NOW + 900),
    "one role": with_claims(roles=..., role="user"),
    "unknown claims": with_claims(name="Ж" * 10, amr=[{"a": 1.5}]),
}


@pytest.mark.parametrize("token", GOOD.values(), ids=GOOD.keys())
def test_a_valid_token_is_accepted(token: str) -> None:
    checker = verifier()
    assert checker.verify(token) == USER
    assert checker.verify(token) == USER


def test_only_the_role_user_makes_the_subject_an_owner() -> None:
    checker = verifier()
    assert checker.verify(good(sub="alice", roles=["operator", "approver"])) == Identity(
        "alice", None, frozenset({"operator", "approver"})
    )
    assert checker.verify(good(roles=["auditor"])) == Identity("4001", None, frozenset({"auditor"}))
    both = checker.verify(good(sub=str(2**63 - 1), roles=["user", "operator", "user"]))
    assert both == Identity(str(2**63 - 1), 2**63 - 1, frozenset({"user", "operator"}))


def test_a_cached_token_is_refused_after_its_exp() -> None:
    clock = Clock()
    checker = verifier(
        clock, TokenPolicy(issuer=POLICY.issuer, audience=POLICY.audience, leeway_s=0)
    )
    token = good(exp=NOW + 60)
    assert checker.verify(token) == USER
    clock.now = NOW + 59.999
    assert checker.verify(token) == USER
    clock.now = NOW + 60
    assert checker.verify(token) is None
    assert len(checker) == 0


def test_a_token_is_accepted_during_the_leeway_but_not_cached() -> None:
    clock = Clock()
    checker = verifier(clock)
    token = good(exp=NOW + 60)
    assert checker.verify(token) == USER
    clock.now = NOW + 64
    assert checker.verify(token) == USER
    assert len(checker) == 0
    clock.now = NOW + 65
    assert checker.verify(token) is None


def test_the_cache_is_bounded_and_keeps_the_tokens_used_last() -> None:
    policy = TokenPolicy(issuer=POLICY.issuer, audience=POLICY.audience, remembered=3)
    checker = verifier(policy=policy)
    tokens = [good(jti=f"j-{n}") for n in range(6)]
    for token in tokens:
        assert checker.verify(token) == USER
        assert checker.verify(tokens[0]) == USER
        assert len(checker) <= 3
    assert list(checker._cache) == [tokens[4], tokens[5], tokens[0]]


def test_a_denied_token_is_refused_even_if_cached() -> None:
    clock = Clock()
    checker = verifier(clock)
    tokens = {name: good(jti=name, exp=NOW + 60) for name in ("a", "b", "c")}
    without_jti = issue(private_pem(private("ES256")), "ES256", claims(exp=NOW + 60, sub="7"))
    for token in (*tokens.values(), without_jti):
        assert checker.verify(token) is not None
    checker.deny("a", NOW + 60)
    checker.deny(fingerprint(tokens["b"]), NOW + 60)
    checker.deny_subject("7", NOW + 60)
    for clock.now in (NOW, NOW + 59, NOW + 64.9):
        answers = [checker.verify(token) for token in (*tokens.values(), without_jti)]
        assert answers == [None, None, USER, None]
    clock.now = NOW
    assert checker.verify(good("RS256", sub="7", jti="new")) is None
    assert checker.verify(good("RS256", sub="8", jti="new")) is not None


def test_another_signature_of_a_denied_token_is_denied() -> None:
    checker = verifier()
    token = good("ES256", jti="twin")
    text, _, signature = token.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    mirrored = raw[:32] + (P256_ORDER - int.from_bytes(raw[32:])).to_bytes(32)
    twin = f"{text}.{base64url(mirrored)}"
    assert twin != token
    assert checker.verify(twin) == USER
    checker.deny(fingerprint(token), NOW + 900)
    assert checker.verify(twin) is None


def test_a_denial_ends_and_is_removed() -> None:
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
def test_a_wrong_policy_is_refused_at_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        TokenPolicy(**{"issuer": "i", "audience": "a", **wrong})


def test_reading_the_deny_list_repeatedly_does_not_grow_it() -> None:
    denied, marks = DenyList(), [f"token-{number}" for number in range(100)]
    for second in range(0, 3_600, 5):
        for mark in marks:
            denied.add(mark, second + 86_400.0, float(second))
    assert len(denied) == len(denied._ends) == 100
    assert all(denied.has(mark, 3_595 + 86_399.0) for mark in marks)
    denied.add("another", 200_000.0, 3_595 + 86_400.0)
    assert len(denied) == len(denied._ends) == 1
