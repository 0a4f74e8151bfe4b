"""Two people give a stuck question its answer; the system and the flow have the last word."""

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


async def silent(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
    """Says nothing about what it is asked, but can be told to refuse it."""
    if all(question.void for question in questions):
        return execute()
    return [Unknown("no word")] * len(questions)


async def does_and_is_silent(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
    answers = execute()
    return answers if questions[0].void else [Unknown("no word")] * len(questions)


def play(
    database: str, way: str, twist: Callable[..., Awaitable[Sequence[Answer]]], scene: Scene
) -> None:
    async def whole() -> None:
        async with rigged("postgres", database) as rig:
            await rig.endow(1_000)
            rig.outside.twist = twist
            store = rig.store
            assert isinstance(store, PostgresStore)
            async with rig.engine() as engine:
                gate = Gate(engine, store, Ledger(), None, dict(await store.assets()))
                transfer = await made(engine, request(way, 300))
                for _ in range(100):
                    if rig.outside.calls:
                        break
                    await asyncio.sleep(0.02)
                await scene(rig, gate, transfer)

    asyncio.run(whole())


async def resolved(gate: Gate, transfer: Transfer, kind: str) -> str:
    [now] = await gate.store.find([transfer.id])
    proposal = Proposal(now.id, now.version, kind, "settled by hand", EVIDENCE, "olga")
    id_ = await propose(gate, now, proposal)
    assert isinstance(id_, int)
    found = await resolutions.find(gate.store, id_)
    assert found is not None
    assert "proposed by you" in await confirm(gate, found, "olga"), "one person is not two"
    return await confirm(gate, found, "otto")


def test_a_no_is_made_true_before_the_money_goes_home(database: str) -> None:
    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        assert await resolved(gate, transfer, "rejected") == "rejected: settled by hand"
        [ended] = await rig.ended([transfer])
        assert (ended.state, ended.error) == ("ROLLED_BACK", "settled by hand")
        late = rig.outside.calls[0]
        assert isinstance(rig.outside.venue.execute(late)[0], Rejected), "the late original"
        assert (await rig.funding(), rig.venue_account(OWNER).available) == (1_000, 1_000)
        answers = await operator_reads.history(gate.store, transfer.id)
        by_hand = next(a for a in answers if a.actor)
        assert by_hand.actor == "olga and otto"
        assert by_hand.evidence == EVIDENCE

    play(database, "in", silent, scene)


def test_a_system_that_had_decided_already_wins(database: str) -> None:
    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        assert await resolved(gate, transfer, "rejected") == "done"
        [ended] = await rig.ended([transfer])
        assert ended.state == "COMMITTED"
        assert (await rig.funding(), rig.venue_account(OWNER).available) == (700, 1_300)

    play(database, "in", does_and_is_silent, scene)


def test_a_yes_goes_through_the_flow_like_any_other(database: str) -> None:
    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        assert await resolved(gate, transfer, "done") == "done"
        [ended] = await rig.ended([transfer])
        assert ended.state == "COMMITTED"

    play(database, "in", does_and_is_silent, scene)


def test_a_system_that_does_not_confirm_its_refusal_leaves_the_question_open(database: str) -> None:
    async def mute(questions: Sequence[Question], _: Execute) -> Sequence[Answer]:
        return [Unknown("no word")] * len(questions)

    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        assert "does not confirm" in await resolved(gate, transfer, "rejected")
        [still] = await rig.store.find([transfer.id])
        assert still.state == "TARGET_PENDING"

    play(database, "in", mute, scene)


def test_a_refused_refund_can_be_sent_to_suspense(database: str) -> None:
    async def closed(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
        refund = questions[0].verb is Verb.REFUND and not questions[0].void
        return [Rejected("ACCOUNT_CLOSED")] if refund else execute()

    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        for _ in range(200):
            [now] = await rig.store.find([transfer.id])
            if now.state == "COMPENSATING" and now.version >= 3:
                break
            await rig.set_status(LedgerStatus.DISABLED)
            await asyncio.sleep(0.02)
        outcome = await resolved(gate, transfer, "suspense")
        assert outcome == "rejected: settled by hand"
        [ended] = await rig.ended([transfer])
        assert ended.state == "ROLLED_BACK"
        books = await rig.books()
        assert books[SUSPENSE].available == 300
        assert rig.venue_account(OWNER).available == 700
        assert books["FUNDING"].available == 1_000

    play_disabled(database, closed, scene)


def play_disabled(
    database: str, twist: Callable[..., Awaitable[Sequence[Answer]]], scene: Scene
) -> None:
    """As `play`, out of the venue into an account that takes nothing."""

    async def whole() -> None:
        async with rigged("postgres", database) as rig:
            await rig.endow(1_000)
            await rig.set_status(LedgerStatus.DISABLED)
            rig.outside.twist = twist
            store = rig.store
            assert isinstance(store, PostgresStore)
            async with rig.engine() as engine:
                gate = Gate(engine, store, Ledger(), None, dict(await store.assets()))
                await scene(rig, gate, await made(engine, request("out", 300)))

    asyncio.run(whole())


@asynccontextmanager
async def elsewhere(rig: Rig) -> AsyncIterator[Gate]:
    """Another process on the same store, which knows the flow and does not have the venue."""
    assert isinstance(rig.store, PostgresStore)
    async with Engine(replace(rig.parts(2), outside=[])) as engine:
        yield Gate(engine, rig.store, Ledger(), None, dict(await rig.store.assets()))


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_process_without_the_system_says_so_and_leaves_the_resolution_open(
    database: str, way: str
) -> None:
    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        [now] = await gate.store.find([transfer.id])
        assert now.lane == "venue"
        proposal = Proposal(now.id, now.version, "rejected", "settled by hand", EVIDENCE, "olga")
        async with elsewhere(rig) as other:
            id_ = await propose(other, now, proposal)
            assert isinstance(id_, int)
            found = await resolutions.find(gate.store, id_)
            assert found is not None
            said = await confirm(other, found, "otto")
            assert said == "this process does not have the system venue: confirm at one that does"
            assert await resolutions.find(gate.store, id_) == found, "nobody has confirmed it"
        assert await confirm(gate, found, "otto") == "rejected: settled by hand"
        [ended] = await rig.ended([transfer])
        assert ended.state == ("ROLLED_BACK" if way == "in" else "FAILED")

    play(database, way, silent, scene)


def test_a_no_needs_every_system_of_the_transfer(database: str) -> None:
    """Whether the source can take its money back is known only where the source is."""

    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        async def halts(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            await rig.store.halt("the ledger is not to be asked", "test")
            return execute()

        rig.outside.twist = halts
        for _ in range(200):
            [now] = await gate.store.find([transfer.id])
            if now.lane == "ledger":
                break
            await asyncio.sleep(0.02)
        assert now.state == "TARGET_PENDING"
        proposal = Proposal(now.id, now.version, "rejected", "settled by hand", EVIDENCE, "olga")
        async with elsewhere(rig) as other:
            id_ = await propose(other, now, proposal)
            assert isinstance(id_, int)
            found = await resolutions.find(gate.store, id_)
            assert found is not None
            assert "does not have the system venue" in await confirm(other, found, "otto")

    play(database, "out", silent, scene)


def test_a_yes_needs_no_system_and_is_taken_anywhere(database: str) -> None:
    async def scene(rig: Rig, gate: Gate, transfer: Transfer) -> None:
        async with elsewhere(rig) as other:
            assert await resolved(other, transfer, "done") == "done"
        [ended] = await rig.ended([transfer])
        assert ended.state == "COMMITTED"

    play(database, "in", does_and_is_silent, scene)


@pytest.mark.parametrize(
    "change", [{"version": 9}, {"kind": "perhaps"}, {"reason": ""}, {"evidence": {}}]
)
def test_a_proposal_needs_the_open_question_a_reason_and_evidence(
    database: str, change: dict[str, object]
) -> None:
    async def scene(_: Rig, gate: Gate, transfer: Transfer) -> None:
        [now] = await gate.store.find([transfer.id])
        given = {"version": now.version, "kind": "done", "reason": "r", "evidence": EVIDENCE}
        proposal = Proposal(transfer.id, proposed_by="olga", **(given | change))  # type: ignore[arg-type]
        assert await propose(gate, now, proposal) is Refusal.INVALID_REQUEST

    play(database, "in", silent, scene)
