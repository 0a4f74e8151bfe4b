"""The HTTP system against a real little service: only a proof of non-effect is a «no»."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec
import pytest

from tests.systems.account_service import (
    Account,
    AccountService,
    Canned,
    Fault,
    Gate,
    Trouble,
    account_service,
)
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import Verb
from tidegate.core.ports import System
from tidegate.core.transfer import Party, Question
from tidegate.systems.http import Asset, HttpAccounts, HttpSettings, key_of
from tidegate.systems.http_answers import DEFAULT_REFUSALS, REASON_CHARS

T = TypeVar("T")

TRANSFER = UUID("0190aaaa-bbbb-7ccc-8ddd-eeeeeeeeeeee")
ALICE = Account(7, "FUNDING", "1")
PARTY = Party("remote", "FUNDING", 7)
TLS = ssl.create_default_context()  # One for all: to load it takes longer than a whole scene.
SECRET = "Bearer s3cr3t-t0ken"

DEBIT = Question(TRANSFER, 0, Verb.DEBIT, PARTY, 1, 100)
CREDIT = Question(TRANSFER, 1, Verb.CREDIT, PARTY, 1, 100, opens=True)
REFUND = Question(TRANSFER, 2, Verb.REFUND, PARTY, 1, 100, undoes=0, expect_done=True)
HOLD = Question(TRANSFER, 3, Verb.HOLD, PARTY, 1, 100)
CAPTURE = Question(TRANSFER, 4, Verb.CAPTURE, PARTY, 1, 100, undoes=3, expect_done=True)
RELEASE = Question(TRANSFER, 5, Verb.RELEASE, PARTY, 1, 100, undoes=3, expect_done=True)
EMPTY_UNDO = Question(TRANSFER, 6, Verb.REFUND, PARTY, 1, 100, undoes=0)


class Table(NamedTuple):
    """A service and a client that sit at the same table."""

    service: AccountService
    accounts: HttpAccounts
    settings: HttpSettings

    @property
    def balance(self) -> int:
        return self.service.bank.balances[ALICE]

    async def ask(self, question: Question) -> Answer:
        return (await self.accounts.ask([question]))[0]

    def other(self) -> HttpAccounts:
        """Another process of ours, which talks to the same service."""
        return HttpAccounts(self.settings, TLS)


Play: TypeAlias = Callable[[Table], Awaitable[T]]


@contextlib.asynccontextmanager
async def laid(sticky: bool, balance: int, **settings: Any) -> AsyncIterator[Table]:
    async with account_service(sticky=sticky) as service:
        service.bank.balances[ALICE] = balance
        chosen = HttpSettings(
            name="remote",
            base_url=service.url,
            certified_sticky=sticky,
            headers={"Authorization": SECRET},
            **settings,
        )
        service.late_s = 1.5 * chosen.call_s
        async with HttpAccounts(chosen, TLS) as accounts:
            yield Table(service, accounts, chosen)


def play(scene: Play[T], *, sticky: bool = True, balance: int = 1000, **settings: Any) -> T:
    async def whole() -> T:
        async with laid(sticky, balance, **settings) as table:
            return await scene(table)

    return asyncio.run(whole())


# A client that does not wait long, for where the service is going to be silent.
IMPATIENT: dict[str, Any] = {"connect_s": 0.5, "call_s": 0.5}


def at(question: Question, version: int, **changes: Any) -> Question:
    return msgspec.structs.replace(question, version=version, **changes)


# What is sent.


def test_it_is_a_system() -> None:
    async def scene(table: Table) -> tuple[str, bool]:
        system: System = table.accounts
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
def test_each_verb_goes_to_its_path_under_one_key(question: Question, path: str) -> None:
    async def scene(table: Table) -> None:
        table.service.meet(path, Canned(200, b'{"success": true}'))
        assert isinstance(await table.ask(question), Done)
        (request,) = table.service.received
        key = f"{TRANSFER}:{question.version}"
        assert (request.method, request.path) == ("POST", path)
        assert request.headers["idempotency-key"] == request.fields["req_id"] == key
        assert request.headers["authorization"] == SECRET
        told = {
            "verb": str(question.verb),
            "user_id": 7,
            "account": "FUNDING",
            "asset": "1",
            "amount": "100",
        }
        if question.undoes is not None:
            told |= {"undoes": f"{TRANSFER}:{question.undoes}", "expect_done": True}
        if question.opens:
            told["opens"] = True
        assert request.fields == {"req_id": key, **told}

    play(scene)


def test_amounts_and_names_are_those_of_the_service() -> None:
    async def scene(table: Table) -> None:
        table.service.meet("/withdraw", Canned(200, b'{"success": true}'))
        await table.ask(msgspec.structs.replace(DEBIT, amount=2**100))
        (request,) = table.service.received
        assert request.fields["asset"] == "USDC"
        assert request.fields["amount"] == "1267650600228229401496703.205376"

    play(scene, assets={1: Asset("USDC", 6)})


@pytest.mark.parametrize(
    "question",
    [
        msgspec.structs.replace(DEBIT, asset_id=2),
        msgspec.structs.replace(DEBIT, verb=Verb.CHECK),
        msgspec.structs.replace(REFUND, undoes=None),
    ],
    ids=["an asset without a name", "a check", "an undo of nothing"],
)
def test_what_cannot_be_said_is_not_sent_and_pages(question: Question) -> None:
    async def scene(table: Table) -> None:
        answer = await table.ask(question)
        assert isinstance(answer, Unknown)
        assert answer.alarm is Alarm.PAGE
        assert table.service.received == []

    play(scene, assets={1: Asset("USDC", 6)})


def test_paths_and_a_base_below_the_root_are_settings() -> None:
    async def scene(table: Table) -> None:
        settings = msgspec.structs.replace(
            table.settings,
            base_url=table.service.url + "/v2/",
            paths=msgspec.structs.replace(table.settings.paths, withdraw="/take"),
        )
        table.service.meet("/v2/take", Canned(200, b'{"success": true}'))
        async with HttpAccounts(settings, TLS) as accounts:
            assert isinstance((await accounts.ask([DEBIT]))[0], Done)

    play(scene)


# What a reply means.

DOUBTFUL: dict[str, Canned] = {
    f"{status} with a white-listed error": Canned(status, b'{"error": "Insufficient funds"}')
    for status in (201, 202, 401, 403, 404, 408, 409, 410, 425, 429, 500, 502, 503, 504)
} | {
    "201 with success": Canned(201, b'{"success": true}'),
    "202 with success": Canned(202, b'{"success": true}'),
    "400 with success": Canned(400, b'{"success": true}'),
    "500 with success": Canned(500, b'{"success": true}'),
    "204 and empty": Canned(204, b""),
    "empty": Canned(200, b""),
    "proxy page": Canned(200, b"<html>Insufficient funds</html>", ("Content-Type: text/html",)),
    "proxy page, 400": Canned(400, b"<html>Insufficient funds</html>"),
    "redirect": Canned(307, b"", ("Location: /deposit",)),
    "moved": Canned(302, b'{"success": true}', ("Location: /deposit",)),
    "success as text": Canned(200, b'{"success": "true"}'),
    "success as number": Canned(200, b'{"success": 1}'),
    "no success": Canned(200, b'{"success": false}'),
    "success and error": Canned(200, b'{"success": true, "error": "Insufficient funds"}'),
    "no success, and error": Canned(200, b'{"success": false, "error": "Insufficient funds"}'),
    "success and no error": Canned(200, b'{"success": true, "error": null}'),
    "pending": Canned(200, b'{"status": "pending"}'),
    "success, pending": Canned(200, b'{"success": true, "status": "pending"}'),
    "error, pending": Canned(200, b'{"error": "Insufficient funds", "status": "pending"}'),
    "success twice": Canned(200, b'{"success": false, "success": true}'),
    "error twice": Canned(400, b'{"error": "Busy", "error": "Insufficient funds"}'),
    "twice, deep": Canned(200, b'{"success": true, "more": {"a": 1, "a": 2}}'),
    "cut short": Canned(200, b'{"success": true'),
    "something after it": Canned(200, b'{"success": true} {"error": "Insufficient funds"}'),
    "a list": Canned(200, b'[{"success": true}]'),
    "a bare true": Canned(200, b"true"),
    "not a number": Canned(200, b'{"success": true, "fee": NaN}'),
    "not UTF-8": Canned(200, b'{"success": true, "name": "\xff"}'),
    "UTF-16": Canned(200, '{"success": true}'.encode("utf-16")),
    "bottomless": Canned(200, b'{"success": true, "a": ' + b"[" * 60_000),
    "huge": Canned(200, b'{"success": true}' + b" " * 65_536),
    "huge refusal": Canned(422, b" " * 65_536 + b'{"error": "Insufficient funds"}'),
    "said to be compressed": Canned(200, b'{"success": true}', ("Content-Encoding: gzip",)),
    "another text": Canned(400, b'{"error": "Computer says no"}'),
    "another case": Canned(400, b'{"error": "insufficient funds"}'),
    "a text around it": Canned(400, b'{"error": "Insufficient funds."}'),
    "error in an object": Canned(400, b'{"error": {"code": "INSUFFICIENT_BALANCE"}}'),
    "error in a list": Canned(400, b'{"error": ["INSUFFICIENT_BALANCE"]}'),
    "code elsewhere": Canned(400, b'{"code": "INSUFFICIENT_BALANCE"}'),
    "our token": Canned(400, b'{"error": "UNAUTHORIZED"}'),
    "our rights": Canned(400, b'{"error": "FORBIDDEN"}'),
    "a rate": Canned(422, b'{"error": "RATE_LIMIT_EXCEEDED"}'),
    "a duplicate": Canned(422, b'{"error": "DUPLICATE_REQUEST"}'),
    "busy": Canned(200, b'{"error": "BUSY"}'),
    "no words": Canned(422, b"{}"),
}


@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
@pytest.mark.parametrize("canned", DOUBTFUL.values(), ids=DOUBTFUL.keys())
def test_whatever_is_not_a_clear_yes_or_no_is_unknown(canned: Canned, sticky: bool) -> None:
    async def scene(table: Table) -> None:
        table.service.meet("/withdraw", canned)
        answer = await table.ask(DEBIT)
        assert isinstance(answer, Unknown)
        assert answer.alarm is (Alarm.PAGE if canned.status == 409 else Alarm.NONE)
        assert len(answer.reason) <= REASON_CHARS
        assert answer.reason.isprintable()
        # One request and no other: no redirect was followed, nothing retried, nothing voided.
        assert [request.path for request in table.service.received] == ["/withdraw"]

    play(scene, sticky=sticky)


@pytest.mark.parametrize("question", [DEBIT, CREDIT, REFUND, HOLD, CAPTURE, RELEASE])
def test_success_with_200_is_done_whatever_else_is_told(question: Question) -> None:
    async def scene(table: Table) -> None:
        body = f'{{"success": true, "balance": "900", "req_id": "{key_of(question)}"}}'
        for path in ("/withdraw", "/deposit", "/commit", "/rollback"):
            table.service.meet(path, Canned(200, body.encode()))
        assert await table.ask(question) == Done({"key": key_of(question)})

    play(scene)


@pytest.mark.parametrize("status", [200, 400, 422])
def test_a_white_listed_refusal_by_a_certified_service_is_rejected(status: int) -> None:
    async def scene(table: Table) -> None:
        for version, error in enumerate(sorted(DEFAULT_REFUSALS)):
            table.service.meet("/withdraw", Canned(status, msgspec.json.encode({"error": error})))
            answer = await table.ask(at(DEBIT, version))
            assert isinstance(answer, Rejected)
            assert answer.reason == error
            assert answer.evidence["key"] == f"{TRANSFER}:{version}"
        assert len(table.service.received) == len(DEFAULT_REFUSALS)

    play(scene)


def test_the_default_white_list_holds_what_the_money_is_refused_for_and_no_more() -> None:
    codes = (
        "INSUFFICIENT_BALANCE ACCOUNT_FROZEN ACCOUNT_DISABLED SOURCE_ACCOUNT_NOT_FOUND"
        " TARGET_ACCOUNT_NOT_FOUND INVALID_AMOUNT PRECISION_OVERFLOW AMOUNT_TOO_SMALL"
        " AMOUNT_TOO_LARGE OVERFLOW INVALID_ASSET ASSET_SUSPENDED TRANSFER_NOT_ALLOWED"
        " SAME_ACCOUNT INVALID_ACCOUNT_TYPE UNSUPPORTED_ACCOUNT_TYPE UNDONE"
    )
    texts = {"Insufficient funds", "Account frozen", "Invalid user", "Invalid amount"}
    assert texts | set(codes.split()) == DEFAULT_REFUSALS


def test_the_white_list_is_a_setting() -> None:
    async def scene(table: Table) -> None:
        table.service.meet(
            "/withdraw",
            Canned(400, b'{"error": "Computer says no"}'),
            Canned(400, b'{"error": "INSUFFICIENT_BALANCE"}'),
        )
        assert isinstance(await table.ask(DEBIT), Rejected)
        assert isinstance(await table.ask(DEBIT), Unknown)

    play(scene, refusals=frozenset({"Computer says no"}))


@pytest.mark.parametrize(
    ("error", "alarm"),
    [
        ("BUSY", Alarm.NONE),
        ("KEY_REUSED", Alarm.PAGE),
        ("RETIRED", Alarm.PAGE),
        ("ALREADY_CLOSED", Alarm.PAGE),
        ("UNDO_UNFOUNDED", Alarm.HALT),
    ],
)
def test_a_doubt_keeps_its_alarm_and_settles_nothing(error: str, alarm: Alarm) -> None:
    async def scene(table: Table) -> None:
        body = msgspec.json.encode({"error": error})
        table.service.meet("/rollback", Canned(200, body), Canned(422, body), Canned(409, body))
        for loudest in (alarm, alarm, max(alarm, Alarm.PAGE)):
            answer = await table.ask(REFUND)
            assert isinstance(answer, Unknown)
            assert answer.alarm is loudest

    play(scene)


@pytest.mark.parametrize(
    "body", [b'{"success": true, "req_id": "x"}', b'{"error": 1, "req_id": 1}']
)
def test_an_answer_about_another_key_pages(body: bytes) -> None:
    async def scene(table: Table) -> None:
        table.service.meet("/withdraw", Canned(200, body))
        assert await table.ask(DEBIT) == Unknown(
            "HTTP 200: the answer names another key, or none", Alarm.PAGE
        )

    play(scene)


# Faults of the network and of the service.

LOSSES = [
    Fault.SILENT_BEFORE,
    Fault.SILENT_AFTER,
    Fault.ERROR_BEFORE,
    Fault.ERROR_AFTER,
    Fault.PROXY_BEFORE,
    Fault.PROXY_AFTER,
    Fault.CUT_BEFORE,
    Fault.CUT_AFTER,
    Fault.HUGE_AFTER,
    Fault.LATE,
]


@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
@pytest.mark.parametrize("fault", LOSSES, ids=lambda fault: fault.name)
def test_after_a_lost_reply_the_same_question_has_one_effect(fault: Fault, sticky: bool) -> None:
    async def scene(table: Table) -> None:
        table.service.meet("/withdraw", fault)
        assert isinstance(await table.ask(DEBIT), Unknown)
        # The client has not tried again by itself.
        assert len(table.service.received) == 1
        assert isinstance(await table.ask(DEBIT), Done)
        await table.service.settled()
        assert isinstance(await table.ask(DEBIT), Done)
        assert len(table.service.received) == 3
        assert table.balance == 900

    play(scene, sticky=sticky, **IMPATIENT)


def test_a_request_delivered_twice_has_one_effect() -> None:
    async def scene(table: Table) -> None:
        for path in ("/withdraw", "/deposit", "/rollback"):
            table.service.meet(path, Fault.TWICE)
        answers = [await table.ask(question) for question in (DEBIT, CREDIT, REFUND)]
        assert [type(answer) for answer in answers] == [Done, Done, Done]
        assert table.balance == 1000 - 100 + 100 + 100

    play(scene)


def test_a_second_answer_is_not_taken_for_that_to_the_next_question() -> None:
    async def scene(table: Table) -> None:
        table.service.meet("/withdraw", Fault.ANSWERS_TWICE)
        assert isinstance(await table.ask(DEBIT), Done)
        assert isinstance(await table.ask(at(DEBIT, 10, amount=5000)), Rejected)
        assert table.service.connections == 2

    play(scene)


def test_a_service_that_names_keys_keeps_its_connection_and_a_second_answer_pages() -> None:
    async def scene(table: Table) -> None:
        table.service.names_key = True
        table.service.meet("/withdraw", Fault.ANSWERS_TWICE)
        refused = at(DEBIT, 10, amount=5000)
        assert isinstance(await table.ask(DEBIT), Done)
        answer = await table.ask(refused)
        assert isinstance(answer, Unknown)
        assert answer.alarm is Alarm.PAGE
        assert table.service.connections == 1
        async with table.other() as other:
            assert isinstance((await other.ask([refused]))[0], Rejected)

    play(scene, names_key=True)


def test_a_service_that_should_name_keys_is_not_believed_without() -> None:
    async def scene(table: Table) -> None:
        answer = await table.ask(DEBIT)
        assert isinstance(answer, Unknown)
        assert answer.alarm is Alarm.PAGE

    play(scene, names_key=True)


@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_a_timeout_is_never_a_no(sticky: bool) -> None:
    async def scene(table: Table) -> None:
        questions = [DEBIT, at(DEBIT, 10), at(CREDIT, 11), REFUND]
        for path in ("/withdraw", "/withdraw", "/deposit", "/rollback"):
            table.service.meet(path, Fault.SILENT_AFTER)
        # Every one of them was sent, so that every one of them may have happened.
        answers = await table.accounts.ask(questions)
        assert [type(answer) for answer in answers] == [Unknown] * 4
        assert len(table.service.received) == 4

    play(scene, sticky=sticky, **IMPATIENT)


def test_a_service_that_drips_is_not_waited_for() -> None:
    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 Slow\r\nContent-Length: 1000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.close()

    async def scene() -> None:
        async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            settings = HttpSettings(name="remote", base_url=url, **IMPATIENT)
            async with HttpAccounts(settings, TLS) as accounts, asyncio.timeout(3):
                assert await accounts.ask([DEBIT]) == [Unknown("no answer: TimeoutError")]
            await asyncio.sleep(0.1)

    asyncio.run(scene())


def test_a_batch_ends_in_time_and_says_what_was_not_sent() -> None:
    async def scene(table: Table) -> None:
        table.service.meet("/withdraw", *[Fault.SILENT_BEFORE] * 3)
        answers = await table.accounts.ask([at(DEBIT, version) for version in range(3)])
        assert answers == [
            Unknown("no answer: TimeoutError"),
            Unknown("no answer: the batch ran out of time"),
            Unknown("the batch ran out of time"),
        ]
        assert len(table.service.received) == 2

    play(scene, concurrency=1, batch_s=0.75, **IMPATIENT)


# No word at all.


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_a_refused_connection_for_all_is_unreachable(count: int, sticky: bool) -> None:
    async def scene() -> None:
        url = f"http://127.0.0.1:{unused_port()}"
        settings = HttpSettings(name="remote", base_url=url, certified_sticky=sticky)
        async with HttpAccounts(settings, TLS) as accounts:
            with pytest.raises(Unreachable, match="remote: not sent: ConnectError"):
                await accounts.ask([at(DEBIT, version) for version in range(count)])
            with pytest.raises(Unreachable):
                await accounts.query(DEBIT)

    asyncio.run(scene())


def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    async def scene() -> None:
        # Longer than a name can be, so that no name server needs to be asked.
        name = ".".join(["x" * 60] * 5)
        settings = HttpSettings(name="remote", base_url=f"http://{name}")
        async with HttpAccounts(settings, TLS) as accounts:
            with pytest.raises(Unreachable):
                await accounts.ask([DEBIT, CREDIT])

    asyncio.run(scene())


def test_a_handshake_that_never_comes_is_unreachable() -> None:
    async def scene() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            url = f"https://127.0.0.1:{listener.getsockname()[1]}"
            settings = HttpSettings(name="remote", base_url=url, connect_s=0.3)
            async with HttpAccounts(settings, TLS) as accounts:
                with pytest.raises(Unreachable, match="ConnectTimeout"):
                    await accounts.ask([DEBIT, CREDIT])

    asyncio.run(scene())


def test_a_failed_connection_is_not_tried_again_by_the_client() -> None:
    connections = 0

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    async def scene() -> None:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with HttpAccounts(HttpSettings(name="remote", base_url=url), TLS) as accounts:
                with pytest.raises(Unreachable, match="ConnectError"):
                    await accounts.ask([DEBIT])

    asyncio.run(scene())
    assert connections == 1


def test_a_refused_connection_for_some_is_unknown_for_those() -> None:
    async def scene(table: Table) -> None:
        table.service.meet("/withdraw", Fault.LEAVE)
        answers = await table.accounts.ask([DEBIT, CREDIT, at(DEBIT, 10)])
        assert isinstance(answers[0], Done)
        assert answers[1:] == [Unknown("not sent: ConnectError")] * 2

    play(scene, concurrency=1)


def test_no_questions_no_answers() -> None:
    async def scene(table: Table) -> None:
        assert await table.accounts.ask([]) == []
        assert table.service.received == []

    play(scene)


# Refusals and their proof.


def test_a_certified_service_refuses_the_same_key_for_ever() -> None:
    async def scene(table: Table) -> None:
        assert isinstance(await table.ask(DEBIT), Rejected)
        table.service.bank.balances[ALICE] += 500
        assert isinstance(await table.ask(DEBIT), Rejected)
        assert isinstance(await table.ask(at(DEBIT, 10)), Done)
        assert table.balance == 400
        assert table.service.requests_to("/rollback") == []

    play(scene, sticky=True, balance=0)


@pytest.mark.parametrize("question", [DEBIT, HOLD, CREDIT], ids=lambda question: question.verb)
def test_an_uncertified_refusal_is_rejected_once_its_rollback_is_acknowledged(
    question: Question,
) -> None:
    async def scene(table: Table) -> None:
        table.service.bank.frozen.add(ALICE)
        answer = await table.ask(question)
        key = key_of(question)
        assert answer == Rejected("ACCOUNT_FROZEN", {"key": key, "voided_by": f"{key}:void"})
        _, rollback = table.service.received
        assert rollback.path == "/rollback"
        assert rollback.headers["idempotency-key"] == rollback.fields["req_id"] == f"{key}:void"
        assert rollback.fields["undoes"] == key
        assert rollback.fields["void"] is True

    play(scene, sticky=False)


UNACKNOWLEDGED: dict[str, Trouble] = {
    **{fault.name: fault for fault in LOSSES},
    "refused": Canned(422, b'{"error": "INSUFFICIENT_BALANCE"}'),
    "not found": Canned(404, b'{"success": true}'),
    "pending": Canned(200, b'{"status": "pending"}'),
    "accepted": Canned(202, b'{"success": true}'),
    "conflict": Canned(409, b'{"success": true}'),
}


@pytest.mark.parametrize("trouble", UNACKNOWLEDGED.values(), ids=UNACKNOWLEDGED.keys())
def test_without_the_acknowledgement_an_uncertified_refusal_is_unknown(trouble: Trouble) -> None:
    async def scene(table: Table) -> None:
        table.service.meet("/rollback", trouble)
        answer = await table.ask(DEBIT)
        assert isinstance(answer, Unknown)
        assert answer.reason.startswith("INSUFFICIENT_BALANCE, not voided: ")
        assert len(table.service.received) == 2
        # Asked again, it comes to the same end, whether or not the tombstone was there already.
        await table.service.settled()
        assert isinstance(await table.ask(DEBIT), Rejected)
        assert table.balance == 0

    play(scene, sticky=False, balance=0, **IMPATIENT)


def test_a_conflict_about_the_rollback_pages_too() -> None:
    async def scene(table: Table) -> None:
        table.service.meet("/rollback", Canned(409, b"{}"))
        answer = await table.ask(DEBIT)
        assert isinstance(answer, Unknown)
        assert answer.alarm is Alarm.PAGE

    play(scene, sticky=False, balance=0)


def test_a_service_gone_before_the_rollback_leaves_the_refusal_unknown() -> None:
    async def scene(table: Table) -> None:
        table.service.meet("/withdraw", Fault.LEAVE)
        answer = await table.ask(DEBIT)
        assert answer == Unknown("INSUFFICIENT_BALANCE, not voided: not sent: ConnectError")

    play(scene, sticky=False, balance=0)


def test_a_late_duplicate_after_a_top_up_meets_the_tombstone() -> None:
    async def scene(table: Table) -> None:
        assert isinstance(await table.ask(DEBIT), Rejected)
        table.service.bank.balances[ALICE] += 500
        original = table.service.requests_to("/withdraw")[0]
        assert await table.service.redeliver(original) == b'{"error": "UNDONE"}'
        assert table.balance == 500
        answer = await table.ask(DEBIT)
        assert isinstance(answer, Rejected)
        assert answer.reason == "UNDONE"

    play(scene, sticky=False, balance=0)


def test_without_the_rollback_the_late_duplicate_would_have_moved_money() -> None:
    """What the proof is for: the service of the test above does forget its refusals."""

    async def scene(table: Table) -> None:
        table.service.meet("/rollback", Fault.ERROR_BEFORE)
        assert isinstance(await table.ask(DEBIT), Unknown)
        table.service.bank.balances[ALICE] += 500
        original = table.service.requests_to("/withdraw")[0]
        assert await table.service.redeliver(original) == b'{"success": true}'
        # No harm done: it was never called Rejected, and asked again it is Done.
        assert isinstance(await table.ask(DEBIT), Done)
        assert table.balance == 400

    play(scene, sticky=False, balance=0)


@pytest.mark.parametrize("question", [DEBIT, CREDIT], ids=lambda question: question.verb)
def test_a_slow_asker_cannot_undo_what_another_was_told_is_done(question: Question) -> None:
    async def scene(table: Table) -> None:
        gate = Gate(asyncio.Event(), asyncio.Event())
        table.service.meet("/rollback", gate)
        table.service.bank.frozen.add(ALICE)
        slow = asyncio.create_task(table.ask(question))
        await gate.reached.wait()
        table.service.bank.frozen.clear()
        async with table.other() as other:
            assert isinstance((await other.ask([question]))[0], Done)
        balance = table.balance
        gate.opened.set()
        assert isinstance(await slow, Unknown)
        assert isinstance(await table.ask(question), Done)
        assert table.balance == balance != 1000

    play(scene, sticky=False)


def test_of_two_askers_that_are_refused_both_are_rejected() -> None:
    async def scene(table: Table) -> None:
        async with table.other() as other:
            answers = await asyncio.gather(table.accounts.ask([DEBIT]), other.ask([DEBIT]))
        assert [type(answer) for (answer,) in answers] == [Rejected, Rejected]

    play(scene, sticky=False, balance=0)


# Undoing.


@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_a_refund_gives_back_once(sticky: bool) -> None:
    async def scene(table: Table) -> None:
        assert isinstance(await table.ask(DEBIT), Done)
        assert isinstance(await table.ask(REFUND), Done)
        assert isinstance(await table.ask(REFUND), Done)
        assert isinstance(await table.ask(at(REFUND, 10)), Done)
        assert table.balance == 1000

    play(scene, sticky=sticky)


@pytest.mark.parametrize("fault", LOSSES, ids=lambda fault: fault.name)
def test_after_a_lost_reply_a_refund_gives_back_once(fault: Fault) -> None:
    async def scene(table: Table) -> None:
        assert isinstance(await table.ask(DEBIT), Done)
        table.service.meet("/rollback", fault)
        assert isinstance(await table.ask(REFUND), Unknown)
        assert isinstance(await table.ask(REFUND), Done)
        await table.service.settled()
        assert table.balance == 1000

    play(scene, **IMPATIENT)


@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_an_undo_before_its_original_leaves_a_tombstone(sticky: bool) -> None:
    async def scene(table: Table) -> None:
        assert isinstance(await table.ask(EMPTY_UNDO), Done)
        answer = await table.ask(DEBIT)
        assert isinstance(answer, Rejected)
        assert answer.reason == "UNDONE"
        assert table.balance == 1000

    play(scene, sticky=sticky)


def test_an_undo_of_what_we_hold_as_done_and_they_never_saw_halts() -> None:
    async def scene(table: Table) -> None:
        assert await table.ask(REFUND) == Unknown("HTTP 422: UNDO_UNFOUNDED", Alarm.HALT)
        assert table.service.bank.operations == {}

    play(scene)


@pytest.mark.parametrize("question", [REFUND, RELEASE, CAPTURE], ids=lambda question: question.verb)
@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_a_refused_undo_is_rejected_only_by_a_certified_service(
    question: Question, sticky: bool
) -> None:
    async def scene(table: Table) -> None:
        path = "/commit" if question.verb is Verb.CAPTURE else "/rollback"
        table.service.meet(path, Canned(422, b'{"error": "ACCOUNT_DISABLED"}'))
        answer = await table.ask(question)
        # An undo is never voided: that could undo twice, or release what is to be captured.
        assert len(table.service.received) == 1
        assert isinstance(answer, Rejected if sticky else Unknown)
        if isinstance(answer, Unknown):
            assert answer.alarm is Alarm.PAGE

    play(scene, sticky=sticky)


def test_a_hold_is_captured_once() -> None:
    async def scene(table: Table) -> None:
        for question in (HOLD, CAPTURE, CAPTURE):
            assert isinstance(await table.ask(question), Done)
        assert table.balance == 900

    play(scene)


def test_a_hold_is_released_once() -> None:
    async def scene(table: Table) -> None:
        for question in (HOLD, RELEASE, RELEASE):
            assert isinstance(await table.ask(question), Done)
        assert table.balance == 1000

    play(scene)


@pytest.mark.parametrize(
    "changes", [{"amount": 101}, {"party": Party("remote", "FUNDING", 8)}, {"verb": Verb.HOLD}]
)
@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_the_same_key_with_another_body_pages(changes: dict[str, Any], sticky: bool) -> None:
    async def scene(table: Table) -> None:
        assert isinstance(await table.ask(DEBIT), Done)
        answer = await table.ask(msgspec.structs.replace(DEBIT, **changes))
        assert isinstance(answer, Unknown)
        assert answer.alarm is Alarm.PAGE
        assert table.balance == 900

    play(scene, sticky=sticky)


# Looking.


def test_not_found_on_a_query_means_ask_again() -> None:
    async def scene(table: Table) -> None:
        assert await table.accounts.query(DEBIT) is None
        assert isinstance(await table.ask(DEBIT), Done)
        assert await table.accounts.query(DEBIT) == Done({"key": key_of(DEBIT)})
        first, _, last = table.service.received
        assert (first.method, first.path) == ("GET", f"/operations/{key_of(DEBIT)}")
        assert (last.method, last.path) == (first.method, first.path)

    play(scene)


def test_a_query_finds_what_happened_although_the_reply_was_lost() -> None:
    async def scene(table: Table) -> None:
        table.service.meet("/withdraw", Fault.CUT_AFTER)
        assert isinstance(await table.ask(DEBIT), Unknown)
        assert isinstance(await table.accounts.query(DEBIT), Done)
        assert table.balance == 900

    play(scene)


@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_a_query_believes_a_refusal_only_of_a_certified_service(sticky: bool) -> None:
    async def scene(table: Table) -> None:
        refusal = Canned(200, b'{"error": "INSUFFICIENT_BALANCE"}')
        table.service.meet(f"/operations/{key_of(DEBIT)}", refusal)
        answer = await table.accounts.query(DEBIT)
        assert isinstance(answer, Rejected if sticky else Unknown)
        assert len(table.service.received) == 1

    play(scene, sticky=sticky)


@pytest.mark.parametrize("fault", [Fault.SILENT_BEFORE, Fault.ERROR_BEFORE, Fault.PROXY_BEFORE])
def test_a_query_without_a_clear_answer_is_unknown(fault: Fault) -> None:
    async def scene(table: Table) -> None:
        table.service.meet(f"/operations/{key_of(DEBIT)}", fault)
        assert isinstance(await table.accounts.query(DEBIT), Unknown)
        assert len(table.service.received) == 1

    play(scene, **IMPATIENT)


# Bounds and secrets.


def test_answers_come_in_the_order_of_the_questions_and_no_more_than_the_bound_at_once() -> None:
    async def scene(table: Table) -> None:
        table.service.delay_s = 0.01
        amounts = [100, 5000, 200] * 10
        questions = [at(DEBIT, n, amount=amount) for n, amount in enumerate(amounts)]
        answers = await table.accounts.ask(questions)
        assert [type(answer) for answer in answers] == [Done, Rejected, Done] * 10
        assert table.service.busiest == 4
        assert len(table.service.received) == 30
        assert table.balance == 4000 - 3000

    play(scene, balance=4000, concurrency=4)


def test_a_cancelled_batch_leaves_nothing_running() -> None:
    async def scene(table: Table) -> None:
        gates = [Gate(asyncio.Event(), asyncio.Event()) for _ in range(3)]
        table.service.meet("/withdraw", *gates)
        asking = asyncio.create_task(table.accounts.ask([at(DEBIT, n) for n in range(3)]))
        for gate in gates:
            await gate.reached.wait()
        before = asyncio.all_tasks()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(before) - len(asyncio.all_tasks()) >= 4
        assert isinstance(await table.ask(DEBIT), Done)

    play(scene)


def test_the_credentials_are_never_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scene(table: Table) -> list[Answer]:
        told = {"error": f"no: {SECRET}\n\x1b[31m{SECRET.split()[1]} " + "long " * 100}
        table.service.meet("/withdraw", Canned(400, msgspec.json.encode(told)), Fault.CUT_AFTER)
        return [await table.ask(DEBIT), await table.ask(DEBIT)]

    kept = [
        play(scene),
        caplog.text,
        HttpSettings(name="a", base_url="http://b", headers={"c": SECRET}),
    ]
    assert "not white-listed: no: ***" in str(kept)
    assert "s3cr3t" not in str(kept)


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
        {"assets": {1: Asset("USDC", 19)}},
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="settings of remote"):
        HttpSettings(**{"name": "remote", "base_url": "http://bank", **settings})
