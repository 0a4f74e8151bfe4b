"""The Python client against a real Tidegate: answers, problems, and silence."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import Up, running, tidegate
from tidegate.client import (
    ApiProblem,
    Client,
    KeysNotFound,
    OutcomeUnknown,
    load_keyring,
    make_keyring,
)
from tidegate.service.auth import TokenPolicy
from tidegate.supervisor.demo_tokens import token

slow = pytest.mark.slow
OWNER = 4001
WISH = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1.5"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("up") / "all") as everything:
        yield everything


@pytest.fixture
def owner(up: Up) -> Iterator[Client]:
    with Client(up.url, token(up.directory, str(OWNER), "user")) as client:
        yield client


@pytest.fixture
def desk(up: Up) -> Iterator[Client]:
    with Client(up.url, token(up.directory, "olga", "operator")) as client:
        yield client


def test_silence_is_not_an_answer() -> None:
    with Client("http://127.0.0.1:9", "t", timeout_s=2) as client:
        with pytest.raises(OutcomeUnknown, match=r"http://127\.0\.0\.1:9 does not answer"):
            client.transfer(WISH)
        assert client.readiness() is None
        assert not client.ready()


def test_a_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    keys, terms = tmp_path / "keys", TokenPolicy(issuer="i", audience="a")
    with pytest.raises(KeysNotFound, match="tidegate up"):
        load_keyring(keys)
    public = make_keyring(keys, terms)
    first = load_keyring(keys)
    assert first.terms == terms
    assert make_keyring(keys, TokenPolicy(issuer="j", audience="a")) == public
    second = load_keyring(keys)
    assert (second.private, second.kid, second.terms.issuer) == (first.private, first.kid, "j")
    assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600}
    assert first.kid in public.read_text()
    (keys / "private.pem").write_text("nothing of the kind")
    with pytest.raises(KeysNotFound, match="cannot be read as a private key"):
        load_keyring(keys)


@slow
def test_a_transfer_is_made_found_and_listed(owner: Client) -> None:
    made = owner.transfer(WISH | {"cid": "once"}, wait_s=10)
    assert made["state"] == "COMMITTED"
    assert owner.transfer(WISH | {"cid": "once"})["req_id"] == made["req_id"]
    assert owner.get(made["req_id"])["amount"] == "1.500000"
    listed = owner.list(limit=5, state="COMMITTED")["transfers"]
    assert made["req_id"] in [each["req_id"] for each in listed]
    assert len(owner.batch([WISH, WISH | {"amount": "0"}])["results"]) == 2
    assert {each["account"] for each in owner.balances()["balances"]} == {"FUNDING", "SPOT"}
    assert "USDT" in str(owner.assets())


@slow
def test_a_problem_carries_all_that_was_said(owner: Client) -> None:
    with pytest.raises(ApiProblem) as told:
        owner.transfer(WISH | {"amount": "99999999"}, wait_s=10)
    problem = told.value
    assert (problem.code, problem.status) == ("INSUFFICIENT_BALANCE", 422)
    assert problem.request_id
    assert not problem.retryable
    assert problem.body["state"] == "FAILED"
    with pytest.raises(ApiProblem) as told:
        owner.halt("mutiny")
    assert (told.value.code, told.value.status) == ("FORBIDDEN", 403)


@slow
def test_the_desk_moves_money_in_and_out_and_sees_everything(desk: Client, owner: Client) -> None:
    crossing = {"user_id": OWNER, "account": "FUNDING", "asset": "USDC", "amount": "3"}
    made = desk.deposit(crossing | {"cid": "in"})
    assert made["state"] == "COMPLETED"
    desk.external_withdrawal(crossing | {"cid": "out"})
    life = desk.history(made["req_id"])
    assert [entry["verb"] for entry in life["history"]] == ["debit", "credit"]
    found = desk.search(owner=OWNER, flow="deposit", limit=100)["transfers"]
    assert made["req_id"] in [each["req_id"] for each in found]
    status = {"user_id": OWNER, "account": "FUNDING", "asset": "USDC"}
    desk.account_status(status | {"status": "FROZEN"})
    desk.account_status(status | {"status": "ACTIVE"})
    desk.set_asset("POINT", {"status": "SUSPENDED"})
    desk.set_asset("POINT", {"status": "ACTIVE"})
    with pytest.raises(ApiProblem, match="INVALID_REQUEST"):
        desk.retry(made["req_id"])


@slow
def test_a_halt_is_retryable_and_does_not_make_it_unready(desk: Client, owner: Client) -> None:
    desk.halt("a test")
    try:
        with pytest.raises(ApiProblem) as told:
            owner.transfer(WISH)
        assert (told.value.code, told.value.retryable) == ("HALTED", True)
        assert owner.ready()
        assert (owner.readiness() or {})["halted"]
    finally:
        desk.resume("the test is over")
    time.sleep(0.1)
    assert owner.transfer(WISH, wait_s=10)["state"] == "COMMITTED"


@slow
def test_with_an_address_only_the_owner_of_the_token_is_served(up: Up) -> None:
    """The token decides whose money moves: a `--user` that differs must not be ignored."""
    up.tidegate("fund", "4002", "FUNDING", "USDT", "5")
    before = up.balances(4001), up.balances(4002)
    env = {"TIDEGATE_TOKEN": token(up.directory, "4001", "user")}
    words = ("transfer", "FUNDING", "SPOT", "USDT", "1", "--url", up.url)
    refused = tidegate(*words, "--user", "4002", env=env)
    assert refused.returncode == 2
    assert "a token of 4001, not of user 4002" in refused.stderr
    for others in (("balances",), ("pool", "pay", "1", "4003", "5"), ("pool", "list")):
        answer = tidegate(*others, "--url", up.url, "--user", "4002", env=env)
        assert (answer.returncode, "not of user 4002" in answer.stderr) == (2, True), others
    assert (up.balances(4001), up.balances(4002)) == before
    made = tidegate(*words, "--user", "4001", "--cid", "url", env=env)
    assert made.returncode == 0, made.stderr
    wish = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1", "user_id": 4002}
    with Client(up.url, env["TIDEGATE_TOKEN"]) as client, pytest.raises(ApiProblem) as problem:
        client.transfer(wish)
    assert problem.value.code == "FORBIDDEN"
