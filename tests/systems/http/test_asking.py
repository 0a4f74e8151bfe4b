"""The requests and queries of the HTTP system, and the secrets that it never stores."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from tests.systems.http.account_service import (
    Canned,
    Fault,
    Gate,
)
from tests.systems.http.setup import (
    CAPTURE,
    CREDIT,
    DEBIT,
    HOLD,
    IMPATIENT,
    REFUND,
    RELEASE,
    SECRET,
    TLS,
    TRANSFER,
    Remote,
    play,
    with_version,
)
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.ports import System
from tidegate.core.transfer import Question
from tidegate.systems.http import HttpAccounts, HttpSettings, RemoteAsset, key_of


def test_it_is_a_system() -> None:
    async def scene(remote: Remote) -> tuple[str, bool]:
        system: System = remote.accounts
        return system.name, system.reversible

    assert play(scene) == ("remote", True)
    assert play(scene, reversible=False) == ("remote", False)


@pytest.mark.parametrize(
    ("question", "path"),
    [
        (DEBIT, "/withdraw"),
        (HOLD, "/withdraw"),
        (CREDIT, "/deposit"),
        (CAPTURE, "/commit"),
        (REFUND, "/rollback"),
        (RELEASE, "/rollback"),
    ],
    ids=lambda value: getattr(value, "verb", None),
)
def test_each_verb_is_sent_to_its_path_with_its_key(question: Question, path: str) -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet(path, Canned(200, b'{"success": true}'))
        assert isinstance(await remote.ask(question), Done)
        (request,) = remote.service.received
        key = f"{TRANSFER}:{question.version}"
        assert (request.method, request.path) == ("POST", path)
        assert request.headers["idempotency-key"] == request.fields["req_id"] == key
        assert request.headers["authorization"] == SECRET
        fields = {
            "verb": str(question.verb),
            "user_id": 7,
            "account": "FUNDING",
            "asset": "1",
            "amount": "100",
        }
        if question.undoes is not None:
            fields |= {"undoes": f"{TRANSFER}:{question.undoes}", "expect_done": True}
        if question.opens:
            fields["opens"] = True
        assert request.fields == {"req_id": key, **fields}

    play(scene)


def test_amounts_and_names_are_those_of_the_service() -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet("/withdraw", Canned(200, b'{"success": true}'))
        await remote.ask(msgspec.structs.replace(DEBIT, amount=2**100))
        (request,) = remote.service.received
        assert request.fields["asset"] == "USDC"
        assert request.fields["amount"] == "1267650600228229401496703.205376"

    play(scene, assets={1: RemoteAsset("USDC", 6)})


@pytest.mark.parametrize(
    "question",
    [
        msgspec.structs.replace(DEBIT, asset_id=2),
        msgspec.structs.replace(DEBIT, verb=Verb.CHECK),
        msgspec.structs.replace(REFUND, undoes=None),
    ],
    ids=["an asset without a name", "a check", "an undo without an operation"],
)
def test_a_question_that_cannot_be_expressed_is_not_sent_and_pages(question: Question) -> None:
    async def scene(remote: Remote) -> None:
        answer = await remote.ask(question)
        assert isinstance(answer, Unknown)
        assert answer.alarm is Alarm.PAGE
        assert remote.service.received == []

    play(scene, assets={1: RemoteAsset("USDC", 6)})


def test_paths_and_a_base_below_the_root_are_settings() -> None:
    async def scene(remote: Remote) -> None:
        settings = msgspec.structs.replace(
            remote.settings,
            base_url=remote.service.url + "/v2/",
            paths=msgspec.structs.replace(remote.settings.paths, withdraw="/take"),
        )
        remote.service.meet("/v2/take", Canned(200, b'{"success": true}'))
        async with HttpAccounts(settings, TLS) as accounts:
            assert isinstance((await accounts.ask([DEBIT]))[0], Done)

    play(scene)


def test_not_found_on_a_query_means_ask_again() -> None:
    async def scene(remote: Remote) -> None:
        assert await remote.accounts.query(DEBIT) is None
        assert isinstance(await remote.ask(DEBIT), Done)
        assert await remote.accounts.query(DEBIT) == Done({"key": key_of(DEBIT)})
        first, _, last = remote.service.received
        assert (first.method, first.path) == ("GET", f"/operations/{key_of(DEBIT)}")
        assert (last.method, last.path) == (first.method, first.path)

    play(scene)


def test_a_query_finds_the_answer_whose_reply_was_lost() -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet("/withdraw", Fault.CUT_AFTER)
        assert isinstance(await remote.ask(DEBIT), Unknown)
        assert isinstance(await remote.accounts.query(DEBIT), Done)
        assert remote.balance == 900

    play(scene)


@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_a_query_accepts_a_refusal_only_from_a_certified_service(sticky: bool) -> None:
    async def scene(remote: Remote) -> None:
        refusal = Canned(200, b'{"error": "INSUFFICIENT_BALANCE"}')
        remote.service.meet(f"/operations/{key_of(DEBIT)}", refusal)
        answer = await remote.accounts.query(DEBIT)
        assert isinstance(answer, Rejected if sticky else Unknown)
        assert len(remote.service.received) == 1

    play(scene, sticky=sticky)


@pytest.mark.parametrize("fault", [Fault.SILENT_BEFORE, Fault.ERROR_BEFORE, Fault.PROXY_BEFORE])
def test_a_query_without_a_clear_answer_is_unknown(fault: Fault) -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet(f"/operations/{key_of(DEBIT)}", fault)
        assert isinstance(await remote.accounts.query(DEBIT), Unknown)
        assert len(remote.service.received) == 1

    play(scene, **IMPATIENT)


def test_answers_keep_the_order_of_the_questions_and_concurrency_is_bounded() -> None:
    async def scene(remote: Remote) -> None:
        remote.service.delay_s = 0.01
        amounts = [100, 5000, 200] * 10
        questions = [with_version(DEBIT, n, amount=amount) for n, amount in enumerate(amounts)]
        answers = await remote.accounts.ask(questions)
        assert [type(answer) for answer in answers] == [Done, Rejected, Done] * 10
        assert remote.service.busiest == 4
        assert len(remote.service.received) == 30
        assert remote.balance == 4000 - 3000

    play(scene, balance=4000, concurrency=4)


def test_a_cancelled_batch_leaves_nothing_running() -> None:
    async def scene(remote: Remote) -> None:
        gates = [Gate(asyncio.Event(), asyncio.Event()) for _ in range(3)]
        remote.service.meet("/withdraw", *gates)
        asking = asyncio.create_task(
            remote.accounts.ask([with_version(DEBIT, n) for n in range(3)])
        )
        for gate in gates:
            await gate.reached.wait()
        before = asyncio.all_tasks()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(before) - len(asyncio.all_tasks()) >= 4
        assert isinstance(await remote.ask(DEBIT), Done)

    play(scene)


def test_credentials_are_never_stored_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scene(remote: Remote) -> list[Answer]:
        body = {"error": f"no: {SECRET}\n\x1b[31m{SECRET.split()[1]} " + "long " * 100}
        remote.service.meet("/withdraw", Canned(400, msgspec.json.encode(body)), Fault.CUT_AFTER)
        return [await remote.ask(DEBIT), await remote.ask(DEBIT)]

    texts = [
        play(scene),
        caplog.text,
        HttpSettings(name="a", base_url="http://b", headers={"c": SECRET}),
    ]
    assert "not a listed refusal: no: ***" in str(texts)
    assert "s3cr3t" not in str(texts)


@pytest.mark.parametrize(
    "settings",
    [
        {"base_url": "ftp://bank"},
        {"base_url": "bank"},
        {"base_url": "http://user:word@bank"},
        {"base_url": "http://bank?token=1"},
        {"headers": {"idempotency-key": "mine"}},
        {"connect_s": 9.0},
        {"call_s": 9.0},
        {"connect_s": 0.0},
        {"concurrency": 0},
        {"body_bytes": 0},
        {"refusals": frozenset({""})},
        {"refusals": frozenset({"x" * 201})},
        {"assets": {1: RemoteAsset("USDC", 19)}},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="settings of remote"):
        HttpSettings(**{"name": "remote", "base_url": "http://bank", **settings})
