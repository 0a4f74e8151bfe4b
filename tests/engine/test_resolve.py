"""Two operators answer a stuck question. The system and the flow decide what follows."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeAlias

import pytest

from tests.engine.rig import OWNER, Execute, Rig, made, request, rigged
from tidegate.core.answers import Answer, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.kind import Transfer
from tidegate.core.refusals import Refusal
from tidegate.core.transfer import Question
from tidegate.engine.engine import Engine
from tidegate.engine.gate import Gate
from tidegate.engine.resolution import confirm, propose
from tidegate.store import operator_reads, resolutions
from tidegate.store.postgres import PostgresStore
from tidegate.store.resolutions import Proposal
from tidegate.systems.ledger import SUSPENSE, Ledger, LedgerStatus

EVIDENCE = {"ticket": "OPS-17", "statement": "venue statement of the 15th"}
Scene: TypeAlias = Callable[[Rig, Gate, Transfer], Awaitable[None]]


async def no_answer(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
    """Gives no answer to a question, but refuses it when asked to void it."""
    if all(question.void for question in questions):
        return execute()
    return [Unknown("no answer")] * len(questions)


async def executes_without_answer(
    questions: Sequence[Question], execute: Execute
) -> Sequence[Answer]:
    answers = execute()
    return answers if questions[0].void else [Unknown("no answer")] * len(questions)


def play(
    database: str, direction: str, twist: Callable[..., Awaitable[Sequence[Answer]]], scene: Scene
) -> None:
    async def run() -> None:
        async with rigged("postgres", database) as rig:
            await rig.endow(1_000)
            rig.outside.twist = twist
            store = rig.store
            assert isinstance(store, PostgresStore)
            async with rig.engine() as engine:
                gate = Gate(engine, store, Ledger(), None, dict(await store.assets()))
                transfer = await made(engine, request(direction, 300))
                for _ in range(100):
                    if rig.outside.calls:
                        break
                    await asyncio.sleep(0.02)
                await scene(rig, gate, transfer)

    asyncio.run(run())


async def resolve(gate: Gate, transfer: Transfer, kind: str) -> str:
    [now] = await gate.store.find([transfer.id])
    proposal = Proposal(now.id, now.version, kind, "settled by hand", EVIDENCE, "olga")
    id_ = await propose(gate, now, proposal)
    assert isinstance(id_, int)
    found = await resolutions.find(gate.store, id_)
    assert found is not None
    assert "you proposed this" in await confirm(gate, found, "olga"), "one person is not two"
    return await confirm(gate, found, "otto")


def test_a_rejection_is_made_true_before_the_refund(database: str) -> None:
    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        assert await resolve(gate, transfer, "rejected") == "rejected: settled by hand"
        [ended] = await rig.ended([transfer])
        assert (ended.state, ended.error) == ("ROLLED_BACK", "settled by hand")
        original = rig.outside.calls[0]
        assert isinstance(rig.outside.venue.execute(original)[0], Rejected), "a late duplicate"
        assert (await rig.funding(), rig.venue_account(OWNER).available) == (1_000, 1_000)
        answers = await operator_reads.history(gate.store, transfer.id)
        by_hand = next(a for a in answers if a.actor)
        assert by_hand.actor == "olga and otto"
        assert by_hand.evidence == EVIDENCE

    play(database, "in", no_answer, scene)


def test_an_earlier_decision_of_the_system_is_used(database: str) -> None:
    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        assert await resolve(gate, transfer, "rejected") == "done"
        [ended] = await rig.ended([transfer])
        assert ended.state == "COMMITTED"
        assert (await rig.funding(), rig.venue_account(OWNER).available) == (700, 1_300)

    play(database, "in", executes_without_answer, scene)


def test_done_by_operators_moves_the_transfer_as_the_flow_says(database: str) -> None:
    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        assert await resolve(gate, transfer, "done") == "done"
        [ended] = await rig.ended([transfer])
        assert ended.state == "COMMITTED"

    play(database, "in", executes_without_answer, scene)


def test_a_system_that_does_not_confirm_its_refusal_leaves_the_question_open(database: str) -> None:
    async def never_answers(questions: Sequence[Question], _: Execute) -> Sequence[Answer]:
        return [Unknown("no answer")] * len(questions)

    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        assert "does not confirm" in await resolve(gate, transfer, "rejected")
        [still] = await rig.store.find([transfer.id])
        assert still.state == "TARGET_PENDING"

    play(database, "in", never_answers, scene)


def test_a_refused_refund_can_be_sent_to_suspense(database: str) -> None:
    async def refuses_refunds(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
        refund = questions[0].verb is Verb.REFUND and not questions[0].void
        return [Rejected("ACCOUNT_CLOSED")] if refund else execute()

    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        for _ in range(200):
            [now] = await rig.store.find([transfer.id])
            if now.state == "COMPENSATING" and now.version >= 3:
                break
            await rig.set_status(LedgerStatus.DISABLED)
            await asyncio.sleep(0.02)
        outcome = await resolve(gate, transfer, "suspense")
        assert outcome == "rejected: settled by hand"
        [ended] = await rig.ended([transfer])
        assert ended.state == "ROLLED_BACK"
        books = await rig.books()
        assert books[SUSPENSE].available == 300
        assert rig.venue_account(OWNER).available == 700
        assert books["FUNDING"].available == 1_000

    play_disabled(database, refuses_refunds, scene)


def play_disabled(
    database: str, twist: Callable[..., Awaitable[Sequence[Answer]]], scene: Scene
) -> None:
    """As `play`, from the venue into an account that refuses every credit."""

    async def run() -> None:
        async with rigged("postgres", database) as rig:
            await rig.endow(1_000)
            await rig.set_status(LedgerStatus.DISABLED)
            rig.outside.twist = twist
            store = rig.store
            assert isinstance(store, PostgresStore)
            async with rig.engine() as engine:
                gate = Gate(engine, store, Ledger(), None, dict(await store.assets()))
                await scene(rig, gate, await made(engine, request("out", 300)))

    asyncio.run(run())


@asynccontextmanager
async def without_venue(rig: Rig) -> AsyncIterator[Gate]:
    """Another process on the same store that knows the flow but does not have the venue."""
    assert isinstance(rig.store, PostgresStore)
    async with Engine(replace(rig.parts(2), outside=[])) as engine:
        yield Gate(engine, rig.store, Ledger(), None, dict(await rig.store.assets()))


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_process_without_the_system_reports_it_and_leaves_the_resolution_open(
    database: str, direction: str
) -> None:
    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        [now] = await gate.store.find([transfer.id])
        assert now.lane == "venue"
        proposal = Proposal(now.id, now.version, "rejected", "settled by hand", EVIDENCE, "olga")
        async with without_venue(rig) as other:
            id_ = await propose(other, now, proposal)
            assert isinstance(id_, int)
            found = await resolutions.find(gate.store, id_)
            assert found is not None
            outcome = await confirm(other, found, "otto")
            assert outcome == (
                "this process does not have the system venue; confirm at a process that does"
            )
            assert await resolutions.find(gate.store, id_) == found, "it is not confirmed"
        assert await confirm(gate, found, "otto") == "rejected: settled by hand"
        [ended] = await rig.ended([transfer])
        assert ended.state == ("ROLLED_BACK" if direction == "in" else "FAILED")

    play(database, direction, no_answer, scene)


def test_a_rejection_needs_every_system_of_the_transfer(database: str) -> None:
    """Only a process that has the source knows whether the source can take money back."""

    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        async def halt_and_execute(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            await rig.store.halt("the ledger must not be asked", "test")
            return execute()

        rig.outside.twist = halt_and_execute
        for _ in range(200):
            [now] = await gate.store.find([transfer.id])
            if now.lane == "ledger":
                break
            await asyncio.sleep(0.02)
        assert now.state == "TARGET_PENDING"
        proposal = Proposal(now.id, now.version, "rejected", "settled by hand", EVIDENCE, "olga")
        async with without_venue(rig) as other:
            id_ = await propose(other, now, proposal)
            assert isinstance(id_, int)
            found = await resolutions.find(gate.store, id_)
            assert found is not None
            assert "does not have the system venue" in await confirm(other, found, "otto")

    play(database, "out", no_answer, scene)


def test_done_needs_no_system_and_is_accepted_by_any_process(database: str) -> None:
    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        async with without_venue(rig) as other:
            assert await resolve(other, transfer, "done") == "done"
        [ended] = await rig.ended([transfer])
        assert ended.state == "COMMITTED"

    play(database, "in", executes_without_answer, scene)


@pytest.mark.parametrize(
    "change", [{"version": 9}, {"kind": "perhaps"}, {"reason": ""}, {"evidence": {}}]
)
def test_a_proposal_needs_the_open_question_a_reason_and_evidence(
    database: str, change: dict[str, object]
) -> None:
    async def scene(_: Rig, gate: Gate, transfer: Transfer) -> None:
        [now] = await gate.store.find([transfer.id])
        fields = {"version": now.version, "kind": "done", "reason": "r", "evidence": EVIDENCE}
        proposal = Proposal(transfer.id, proposed_by="olga", **(fields | change))  # type: ignore[arg-type]
        assert await propose(gate, now, proposal) is Refusal.INVALID_REQUEST

    play(database, "in", no_answer, scene)
