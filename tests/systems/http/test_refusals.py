"""Refusals with and without proof, and undos."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.systems.http.account_service import (
    Canned,
    Fault,
    Gate,
    Trouble,
)
from tests.systems.http.setup import (
    ALICE,
    CAPTURE,
    CREDIT,
    DEBIT,
    EMPTY_UNDO,
    HOLD,
    IMPATIENT,
    LOSSES,
    REFUND,
    RELEASE,
    Remote,
    play,
    with_version,
)
from tidegate.core.answers import Alarm, Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.transfer import Question
from tidegate.systems.http import key_of


def test_a_certified_service_refuses_the_same_key_for_ever() -> None:
    async def scene(remote: Remote) -> None:
        assert isinstance(await remote.ask(DEBIT), Rejected)
        remote.service.bank.balances[ALICE] += 500
        assert isinstance(await remote.ask(DEBIT), Rejected)
        assert isinstance(await remote.ask(with_version(DEBIT, 10)), Done)
        assert remote.balance == 400
        assert remote.service.requests_to("/rollback") == []

    play(scene, sticky=True, balance=0)


@pytest.mark.parametrize("question", [DEBIT, HOLD, CREDIT], ids=lambda question: question.verb)
def test_an_uncertified_refusal_is_rejected_once_its_rollback_is_acknowledged(
    question: Question,
) -> None:
    async def scene(remote: Remote) -> None:
        remote.service.bank.frozen.add(ALICE)
        answer = await remote.ask(question)
        key = key_of(question)
        assert answer == Rejected("ACCOUNT_FROZEN", {"key": key, "voided_by": f"{key}:void"})
        _, rollback = remote.service.received
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
    async def scene(remote: Remote) -> None:
        remote.service.meet("/rollback", trouble)
        answer = await remote.ask(DEBIT)
        assert isinstance(answer, Unknown)
        assert answer.reason.startswith("INSUFFICIENT_BALANCE, not voided: ")
        assert len(remote.service.received) == 2
        # A repeated question gets the same answer, whether or not the tombstone existed already.
        await remote.service.settled()
        assert isinstance(await remote.ask(DEBIT), Rejected)
        assert remote.balance == 0

    play(scene, sticky=False, balance=0, **IMPATIENT)


def test_a_conflict_in_the_rollback_pages() -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet("/rollback", Canned(409, b"{}"))
        answer = await remote.ask(DEBIT)
        assert isinstance(answer, Unknown)
        assert answer.alarm is Alarm.PAGE

    play(scene, sticky=False, balance=0)


def test_a_service_that_is_unreachable_for_the_rollback_leaves_the_refusal_unknown() -> None:
    async def scene(remote: Remote) -> None:
        remote.service.meet("/withdraw", Fault.LEAVE)
        answer = await remote.ask(DEBIT)
        assert answer == Unknown("INSUFFICIENT_BALANCE, not voided: not sent: ConnectError")

    play(scene, sticky=False, balance=0)


def test_a_late_duplicate_after_a_deposit_is_refused_by_the_tombstone() -> None:
    async def scene(remote: Remote) -> None:
        assert isinstance(await remote.ask(DEBIT), Rejected)
        remote.service.bank.balances[ALICE] += 500
        original = remote.service.requests_to("/withdraw")[0]
        assert await remote.service.redeliver(original) == b'{"error": "UNDONE"}'
        assert remote.balance == 500
        answer = await remote.ask(DEBIT)
        assert isinstance(answer, Rejected)
        assert answer.reason == "UNDONE"

    play(scene, sticky=False, balance=0)


def test_without_the_rollback_the_late_duplicate_would_have_moved_money() -> None:
    """This shows why the proof is needed: the service of the test above forgets its refusals."""

    async def scene(remote: Remote) -> None:
        remote.service.meet("/rollback", Fault.ERROR_BEFORE)
        assert isinstance(await remote.ask(DEBIT), Unknown)
        remote.service.bank.balances[ALICE] += 500
        original = remote.service.requests_to("/withdraw")[0]
        assert await remote.service.redeliver(original) == b'{"success": true}'
        # This is safe: the answer was never Rejected, and the repeated question is Done.
        assert isinstance(await remote.ask(DEBIT), Done)
        assert remote.balance == 400

    play(scene, sticky=False, balance=0)


@pytest.mark.parametrize("question", [DEBIT, CREDIT], ids=lambda question: question.verb)
def test_a_slow_client_cannot_undo_an_operation_that_another_got_as_done(
    question: Question,
) -> None:
    async def scene(remote: Remote) -> None:
        gate = Gate(asyncio.Event(), asyncio.Event())
        remote.service.meet("/rollback", gate)
        remote.service.bank.frozen.add(ALICE)
        slow = asyncio.create_task(remote.ask(question))
        await gate.reached.wait()
        remote.service.bank.frozen.clear()
        async with remote.other() as other:
            assert isinstance((await other.ask([question]))[0], Done)
        balance = remote.balance
        gate.opened.set()
        assert isinstance(await slow, Unknown)
        assert isinstance(await remote.ask(question), Done)
        assert remote.balance == balance != 1000

    play(scene, sticky=False)


def test_two_clients_that_are_refused_both_get_rejected() -> None:
    async def scene(remote: Remote) -> None:
        async with remote.other() as other:
            answers = await asyncio.gather(remote.accounts.ask([DEBIT]), other.ask([DEBIT]))
        assert [type(answer) for (answer,) in answers] == [Rejected, Rejected]

    play(scene, sticky=False, balance=0)


@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_a_refund_gives_back_once(sticky: bool) -> None:
    async def scene(remote: Remote) -> None:
        assert isinstance(await remote.ask(DEBIT), Done)
        assert isinstance(await remote.ask(REFUND), Done)
        assert isinstance(await remote.ask(REFUND), Done)
        assert isinstance(await remote.ask(with_version(REFUND, 10)), Done)
        assert remote.balance == 1000

    play(scene, sticky=sticky)


@pytest.mark.parametrize("fault", LOSSES, ids=lambda fault: fault.name)
def test_after_a_lost_reply_a_refund_gives_back_once(fault: Fault) -> None:
    async def scene(remote: Remote) -> None:
        assert isinstance(await remote.ask(DEBIT), Done)
        remote.service.meet("/rollback", fault)
        assert isinstance(await remote.ask(REFUND), Unknown)
        assert isinstance(await remote.ask(REFUND), Done)
        await remote.service.settled()
        assert remote.balance == 1000

    play(scene, **IMPATIENT)


@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_an_undo_before_its_original_leaves_a_tombstone(sticky: bool) -> None:
    async def scene(remote: Remote) -> None:
        assert isinstance(await remote.ask(EMPTY_UNDO), Done)
        answer = await remote.ask(DEBIT)
        assert isinstance(answer, Rejected)
        assert answer.reason == "UNDONE"
        assert remote.balance == 1000

    play(scene, sticky=sticky)


def test_an_undo_of_a_done_operation_that_the_service_does_not_know_halts() -> None:
    async def scene(remote: Remote) -> None:
        assert await remote.ask(REFUND) == Unknown("HTTP 422: UNDO_UNFOUNDED", Alarm.HALT)
        assert remote.service.bank.operations == {}

    play(scene)


@pytest.mark.parametrize("question", [REFUND, RELEASE, CAPTURE], ids=lambda question: question.verb)
@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_a_refused_undo_is_rejected_only_by_a_certified_service(
    question: Question, sticky: bool
) -> None:
    async def scene(remote: Remote) -> None:
        path = "/commit" if question.verb is Verb.CAPTURE else "/rollback"
        remote.service.meet(path, Canned(422, b'{"error": "ACCOUNT_DISABLED"}'))
        answer = await remote.ask(question)
        # An undo is never voided: that could undo twice, or release a hold that must be captured.
        assert len(remote.service.received) == 1
        assert isinstance(answer, Rejected if sticky else Unknown)
        if isinstance(answer, Unknown):
            assert answer.alarm is Alarm.PAGE

    play(scene, sticky=sticky)


def test_a_hold_is_captured_once() -> None:
    async def scene(remote: Remote) -> None:
        for question in (HOLD, CAPTURE, CAPTURE):
            assert isinstance(await remote.ask(question), Done)
        assert remote.balance == 900

    play(scene)


def test_a_hold_is_released_once() -> None:
    async def scene(remote: Remote) -> None:
        for question in (HOLD, RELEASE, RELEASE):
            assert isinstance(await remote.ask(question), Done)
        assert remote.balance == 1000

    play(scene)


@pytest.mark.parametrize(
    "changes", [{"amount": 101}, {"party": Party("remote", "FUNDING", 8)}, {"verb": Verb.HOLD}]
)
@pytest.mark.parametrize("sticky", [True, False], ids=["certified", "not certified"])
def test_the_same_key_with_another_body_pages(changes: dict[str, Any], sticky: bool) -> None:
    async def scene(remote: Remote) -> None:
        assert isinstance(await remote.ask(DEBIT), Done)
        answer = await remote.ask(msgspec.structs.replace(DEBIT, **changes))
        assert isinstance(answer, Unknown)
        assert answer.alarm is Alarm.PAGE
        assert remote.balance == 900

    play(scene, sticky=sticky)
