"""A remote service and a network that fail in every way they can."""

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
    Table,
    at,
    play,
)
from tidegate.core.answers import Alarm, Done, Rejected, Unknown
from tidegate.systems.http import HttpAccounts, HttpSettings


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
