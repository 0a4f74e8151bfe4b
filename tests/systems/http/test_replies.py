"""The answers to replies of a remote service: a refusal counts only with proof of no effect."""

import asyncio
import socket

import msgspec
import pytest

from tests.systems.http.account_service import (
    Canned,
    Fault,
)
from tests.systems.http.setup import (
    CAPTURE,
    CREDIT,
    DEBIT,
    HOLD,
    REFUND,
    RELEASE,
    TLS,
    TRANSFER,
    Remote,
    play,
    with_version,
)
from tidegate.core.answers import Alarm, Done, Rejected, Unknown, Unreachable
from tidegate.core.transfer import Question
from tidegate.systems.http import HttpAccounts, HttpSettings, key_of
from tidegate.systems.http.answers import DEFAULT_REFUSALS, REASON_CHARS

DOUBTFUL: dict[str, Canned] = {
    f"{status} with a listed refusal": Canned(status, b'{"error": "Insufficient funds"}')
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
    "with a content encoding": Canned(200, b'{"success": true}', ("Content-Encoding: gzip",)),
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
def test_a_reply_that_is_not_clearly_done_or_refused_is_unknown(
    canned: Canned, sticky: bool
) -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet("/withdraw", canned)
        answer = await remote.ask(DEBIT)
        assert isinstance(answer, Unknown)
        assert answer.alarm is (Alarm.PAGE if canned.status == 409 else Alarm.NONE)
        assert len(answer.reason) <= REASON_CHARS
        assert answer.reason.isprintable()
        # Only one request was sent: no redirect was followed, nothing was retried or voided.
        assert [request.path for request in remote.service.received] == ["/withdraw"]

    play(scene, sticky=sticky)


@pytest.mark.parametrize("question", [DEBIT, CREDIT, REFUND, HOLD, CAPTURE, RELEASE])
def test_success_with_200_is_done_with_any_other_fields(question: Question) -> None:
    async def scene(remote: Remote) -> None:
        body = f'{{"success": true, "balance": "900", "req_id": "{key_of(question)}"}}'
        for path in ("/withdraw", "/deposit", "/commit", "/rollback"):
            remote.service.meet(path, Canned(200, body.encode()))
        assert await remote.ask(question) == Done({"key": key_of(question)})

    play(scene)


@pytest.mark.parametrize("status", [200, 400, 422])
def test_a_listed_refusal_from_a_certified_service_is_rejected(status: int) -> None:
    async def scene(remote: Remote) -> None:
        for version, error in enumerate(sorted(DEFAULT_REFUSALS)):
            remote.service.meet("/withdraw", Canned(status, msgspec.json.encode({"error": error})))
            answer = await remote.ask(with_version(DEBIT, version))
            assert isinstance(answer, Rejected)
            assert answer.reason == error
            assert answer.evidence["key"] == f"{TRANSFER}:{version}"
        assert len(remote.service.received) == len(DEFAULT_REFUSALS)

    play(scene)


def test_the_default_refusals_are_exactly_the_refusals_about_the_money() -> None:
    codes = (
        "INSUFFICIENT_BALANCE ACCOUNT_FROZEN ACCOUNT_DISABLED SOURCE_ACCOUNT_NOT_FOUND"
        " TARGET_ACCOUNT_NOT_FOUND INVALID_AMOUNT PRECISION_OVERFLOW AMOUNT_TOO_SMALL"
        " AMOUNT_TOO_LARGE OVERFLOW INVALID_ASSET ASSET_SUSPENDED TRANSFER_NOT_ALLOWED"
        " SAME_ACCOUNT INVALID_ACCOUNT_TYPE UNSUPPORTED_ACCOUNT_TYPE UNDONE"
    )
    texts = {"Insufficient funds", "Account frozen", "Invalid user", "Invalid amount"}
    assert texts | set(codes.split()) == DEFAULT_REFUSALS


def test_the_listed_refusals_are_a_setting() -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet(
            "/withdraw",
            Canned(400, b'{"error": "Computer says no"}'),
            Canned(400, b'{"error": "INSUFFICIENT_BALANCE"}'),
        )
        assert isinstance(await remote.ask(DEBIT), Rejected)
        assert isinstance(await remote.ask(DEBIT), Unknown)

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
def test_a_doubt_is_unknown_with_its_alarm(error: str, alarm: Alarm) -> None:
    async def scene(remote: Remote) -> None:
        body = msgspec.json.encode({"error": error})
        remote.service.meet("/rollback", Canned(200, body), Canned(422, body), Canned(409, body))
        for expected in (alarm, alarm, max(alarm, Alarm.PAGE)):
            answer = await remote.ask(REFUND)
            assert isinstance(answer, Unknown)
            assert answer.alarm is expected

    play(scene)


@pytest.mark.parametrize(
    "body", [b'{"success": true, "req_id": "x"}', b'{"error": 1, "req_id": 1}']
)
def test_a_reply_about_another_key_pages(body: bytes) -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet("/withdraw", Canned(200, body))
        assert await remote.ask(DEBIT) == Unknown(
            "HTTP 200: the reply contains another req_id, or none", Alarm.PAGE
        )

    play(scene)


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
                await accounts.ask([with_version(DEBIT, version) for version in range(count)])
            with pytest.raises(Unreachable):
                await accounts.query(DEBIT)

    asyncio.run(scene())


def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    async def scene() -> None:
        # Longer than a host name may be, so no name server is asked.
        name = ".".join(["x" * 60] * 5)
        settings = HttpSettings(name="remote", base_url=f"http://{name}")
        async with HttpAccounts(settings, TLS) as accounts:
            with pytest.raises(Unreachable):
                await accounts.ask([DEBIT, CREDIT])

    asyncio.run(scene())


def test_a_missing_tls_handshake_is_unreachable() -> None:
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


def test_the_client_does_not_retry_a_failed_connection() -> None:
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


def test_a_refused_connection_for_some_questions_is_unknown_for_those() -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet("/withdraw", Fault.LEAVE)
        answers = await remote.accounts.ask([DEBIT, CREDIT, with_version(DEBIT, 10)])
        assert isinstance(answers[0], Done)
        assert answers[1:] == [Unknown("not sent: ConnectError")] * 2

    play(scene, concurrency=1)


def test_no_questions_get_no_answers() -> None:
    async def scene(remote: Remote) -> None:
        assert await remote.accounts.ask([]) == []
        assert remote.service.received == []

    play(scene)
