"""The Python client against a real Tidegate: replies, errors, and no reply."""

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
REQUEST = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1.5"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("up") / "all") as up:
        yield up


@pytest.fixture
def owner(up: Up) -> Iterator[Client]:
    with Client(up.url, token(up.directory, str(OWNER), "user")) as client:
        yield client


@pytest.fixture
def operator(up: Up) -> Iterator[Client]:
    with Client(up.url, token(up.directory, "olga", "operator")) as client:
        yield client


def test_without_a_reply_the_outcome_is_unknown() -> None:
    with Client("http://127.0.0.1:9", "t", timeout_s=2) as client:
        with pytest.raises(OutcomeUnknown, match=r"http://127\.0\.0\.1:9 does not answer"):
            client.transfer(REQUEST)
        assert client.readiness() is None
        assert not client.ready()


def test_a_key_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    keys, policy = tmp_path / "keys", TokenPolicy(issuer="i", audience="a")
    with pytest.raises(KeysNotFound, match="tidegate up"):
        load_keyring(keys)
    public = make_keyring(keys, policy)
    first = load_keyring(keys)
    assert first.policy == policy
    assert make_keyring(keys, TokenPolicy(issuer="j", audience="a")) == public
    second = load_keyring(keys)
    assert (second.private, second.kid, second.policy.issuer) == (first.private, first.kid, "j")
    assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600}
    assert first.kid in public.read_text()
    (keys / "private.pem").write_text("not a key")
    with pytest.raises(KeysNotFound, match="cannot be read as a private key"):
        load_keyring(keys)


@slow
def test_a_transfer_is_made_found_and_listed(owner: Client) -> None:
    created = owner.transfer(REQUEST | {"cid": "once"}, wait_s=10)
    assert created["state"] == "COMMITTED"
    assert owner.transfer(REQUEST | {"cid": "once"})["req_id"] == created["req_id"]
    assert owner.get(created["req_id"])["amount"] == "1.500000"
    listed = owner.list(limit=5, state="COMMITTED")["transfers"]
    assert created["req_id"] in [row["req_id"] for row in listed]
    assert len(owner.batch([REQUEST, REQUEST | {"amount": "0"}])["results"]) == 2
    assert {row["account"] for row in owner.balances()["balances"]} == {"FUNDING", "SPOT"}
    assert "USDT" in str(owner.assets())


@slow
def test_a_problem_contains_the_whole_reply(owner: Client) -> None:
    with pytest.raises(ApiProblem) as error:
        owner.transfer(REQUEST | {"amount": "99999999"}, wait_s=10)
    problem = error.value
    assert (problem.code, problem.status) == ("INSUFFICIENT_BALANCE", 422)
    assert problem.request_id
    assert not problem.retryable
    assert problem.body["state"] == "FAILED"
    with pytest.raises(ApiProblem) as error:
        owner.halt("mutiny")
    assert (error.value.code, error.value.status) == ("FORBIDDEN", 403)


@slow
def test_an_operator_can_deposit_withdraw_and_search(operator: Client, owner: Client) -> None:
    deposit = {"user_id": OWNER, "account": "FUNDING", "asset": "USDC", "amount": "3"}
    created = operator.deposit(deposit | {"cid": "in"})
    assert created["state"] == "COMPLETED"
    operator.external_withdrawal(deposit | {"cid": "out"})
    life = operator.history(created["req_id"])
    assert [entry["verb"] for entry in life["history"]] == ["debit", "credit"]
    found = operator.search(owner=OWNER, flow="deposit", limit=100)["transfers"]
    assert created["req_id"] in [row["req_id"] for row in found]
    status = {"user_id": OWNER, "account": "FUNDING", "asset": "USDC"}
    operator.account_status(status | {"status": "FROZEN"})
    operator.account_status(status | {"status": "ACTIVE"})
    operator.set_asset("POINT", {"status": "SUSPENDED"})
    operator.set_asset("POINT", {"status": "ACTIVE"})
    with pytest.raises(ApiProblem, match="INVALID_REQUEST"):
        operator.retry(created["req_id"])


@slow
def test_during_a_halt_requests_are_retryable_and_the_api_is_ready(
    operator: Client, owner: Client
) -> None:
    operator.halt("a test")
    try:
        with pytest.raises(ApiProblem) as error:
            owner.transfer(REQUEST)
        assert (error.value.code, error.value.retryable) == ("HALTED", True)
        assert owner.ready()
        assert (owner.readiness() or {})["halted"]
    finally:
        operator.resume("the test is over")
    time.sleep(0.1)
    assert owner.transfer(REQUEST, wait_s=10)["state"] == "COMMITTED"


@slow
def test_with_a_url_only_the_user_of_the_token_is_served(up: Up) -> None:
    """The token decides whose money moves, so a different `--user` must be an error."""
    up.tidegate("fund", "4002", "FUNDING", "USDT", "5")
    before = up.balances(4001), up.balances(4002)
    env = {"TIDEGATE_TOKEN": token(up.directory, "4001", "user")}
    arguments = ("transfer", "FUNDING", "SPOT", "USDT", "1", "--url", up.url)
    refused = tidegate(*arguments, "--user", "4002", env=env)
    assert refused.returncode == 2
    assert "a token of 4001, not of user 4002" in refused.stderr
    for others in (("balances",), ("pool", "pay", "1", "4003", "5"), ("pool", "list")):
        answer = tidegate(*others, "--url", up.url, "--user", "4002", env=env)
        assert (answer.returncode, "not of user 4002" in answer.stderr) == (2, True), others
    assert (up.balances(4001), up.balances(4002)) == before
    created = tidegate(*arguments, "--user", "4001", "--cid", "url", env=env)
    assert created.returncode == 0, created.stderr
    request = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1", "user_id": 4002}
    with Client(up.url, env["TIDEGATE_TOKEN"]) as client, pytest.raises(ApiProblem) as problem:
        client.transfer(request)
    assert problem.value.code == "FORBIDDEN"
