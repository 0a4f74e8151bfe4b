"""Faults of the remote service and of the network."""

import asyncio
import contextlib

import pytest

from tests.systems.http.account_service import (
    Fault,
)
from tests.systems.http.setup import (
    CREDIT,
    DEBIT,
    IMPATIENT,
    LOSSES,
    REFUND,
    TLS,
    Remote,
    play,
    with_version,
)
from tidegate.core.answers import Alarm, Done, Rejected, Unknown
from tidegate.systems.http import HttpAccounts, HttpSettings


@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
@pytest.mark.parametrize("fault", LOSSES, ids=lambda fault: fault.name)
def test_after_a_lost_reply_the_same_question_has_one_effect(fault: Fault, sticky: bool) -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet("/withdraw", fault)
        assert isinstance(await remote.ask(DEBIT), Unknown)
        # The client does not retry by itself.
        assert len(remote.service.received) == 1
        assert isinstance(await remote.ask(DEBIT), Done)
        await remote.service.settled()
        assert isinstance(await remote.ask(DEBIT), Done)
        assert len(remote.service.received) == 3
        assert remote.balance == 900

    play(scene, sticky=sticky, **IMPATIENT)


def test_a_request_delivered_twice_has_one_effect() -> None:
    async def scene(remote: Remote) -> None:
        for path in ("/withdraw", "/deposit", "/rollback"):
            remote.service.meet(path, Fault.TWICE)
        answers = [await remote.ask(question) for question in (DEBIT, CREDIT, REFUND)]
        assert [type(answer) for answer in answers] == [Done, Done, Done]
        assert remote.balance == 1000 - 100 + 100 + 100

    play(scene)


def test_a_second_reply_is_not_taken_for_the_reply_to_the_next_question() -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet("/withdraw", Fault.ANSWERS_TWICE)
        assert isinstance(await remote.ask(DEBIT), Done)
        assert isinstance(await remote.ask(with_version(DEBIT, 10, amount=5000)), Rejected)
        assert remote.service.connections == 2

    play(scene)


def test_with_names_key_the_connection_is_reused_and_a_second_reply_pages() -> None:
    async def scene(remote: Remote) -> None:
        remote.service.names_key = True
        remote.service.meet("/withdraw", Fault.ANSWERS_TWICE)
        refused = with_version(DEBIT, 10, amount=5000)
        assert isinstance(await remote.ask(DEBIT), Done)
        answer = await remote.ask(refused)
        assert isinstance(answer, Unknown)
        assert answer.alarm is Alarm.PAGE
        assert remote.service.connections == 1
        async with remote.other() as other:
            assert isinstance((await other.ask([refused]))[0], Rejected)

    play(scene, names_key=True)


def test_with_names_key_a_reply_without_its_key_is_unknown_and_pages() -> None:
    async def scene(remote: Remote) -> None:
        answer = await remote.ask(DEBIT)
        assert isinstance(answer, Unknown)
        assert answer.alarm is Alarm.PAGE

    play(scene, names_key=True)


@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_a_timeout_is_never_a_refusal(sticky: bool) -> None:
    async def scene(remote: Remote) -> None:
        questions = [DEBIT, with_version(DEBIT, 10), with_version(CREDIT, 11), REFUND]
        for path in ("/withdraw", "/withdraw", "/deposit", "/rollback"):
            remote.service.meet(path, Fault.SILENT_AFTER)
        # All of them were sent, so each of them may have been done.
        answers = await remote.accounts.ask(questions)
        assert [type(answer) for answer in answers] == [Unknown] * 4
        assert len(remote.service.received) == 4

    play(scene, sticky=sticky, **IMPATIENT)


def test_a_reply_that_never_ends_is_timed_out() -> None:
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


def test_a_batch_ends_in_time_and_reports_what_was_not_sent() -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet("/withdraw", *[Fault.SILENT_BEFORE] * 3)
        answers = await remote.accounts.ask([with_version(DEBIT, version) for version in range(3)])
        assert answers == [
            Unknown("no answer: TimeoutError"),
            Unknown("no answer: the batch ran out of time"),
            Unknown("the batch ran out of time"),
        ]
        assert len(remote.service.received) == 2

    play(scene, concurrency=1, batch_s=0.75, **IMPATIENT)
