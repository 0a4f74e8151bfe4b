"""A good token becomes an identity, is remembered for a while, and can be denied."""

import base64
from typing import Any

import pytest

from tests.service.tokens import (
    NOW,
    TERMS,
    USER,
    Clock,
    armoured,
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


def test_a_remembered_token_does_not_outlive_its_exp() -> None:
    clock = Clock()
    ours = verifier(clock, TokenPolicy(issuer=TERMS.issuer, audience=TERMS.audience, leeway_s=0))
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
    ours = verifier(terms=TokenPolicy(issuer=TERMS.issuer, audience=TERMS.audience, remembered=3))
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
        TokenPolicy(**{"issuer": "i", "audience": "a", **wrong})


def test_a_list_that_is_read_again_and_again_does_not_grow() -> None:
    denied, marks = DenyList(), [f"token-{number}" for number in range(100)]
    for second in range(0, 3_600, 5):
        for mark in marks:
            denied.add(mark, second + 86_400.0, float(second))
    assert len(denied) == len(denied._ends) == 100
    assert all(denied.has(mark, 3_595 + 86_399.0) for mark in marks)
    denied.add("another", 200_000.0, 3_595 + 86_400.0)
    assert len(denied) == len(denied._ends) == 1
