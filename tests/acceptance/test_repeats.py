"""IDP: the engine's questions are repeated under the same key."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from ulid import ULID

from tests.acceptance.rig import USDT, Stack, User
from tests.acceptance.scenes import CID
from tests.conftest import SCHEMA
from tidegate.core.account import Account
from tidegate.core.answers import Answer, Done
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.transfer import Question
from tidegate.engine.gate import CORE
from tidegate.engine.request_forms import LEDGER
from tidegate.store.postgres import PostgresStore
from tidegate.systems.ledger import FUNDING, Ledger

AMOUNT = 10_000_000


def ask_ledger(stack: Stack, questions: Sequence[Question]) -> Sequence[Answer]:
    """Ask the ledger in the service's database, and commit."""

    async def main() -> Sequence[Answer]:
        ledger = Ledger(LEDGER)
        async with PostgresStore(stack.database, SCHEMA) as store, store.transaction() as tx:
            await ledger.lock(tx, sorted({_account(question) for question in questions}))
            return await ledger.ask(tx, questions)

    return asyncio.run(main())


def _account(question: Question) -> Account:
    return Account(question.party.owner, question.party.book, question.asset_id)


def ask(user: User, question: Question) -> Answer:
    """Ask the system of the question."""
    if question.party.system == LEDGER:
        return ask_ledger(user.stack, [question])[0]
    return user.stack.ask_core(lambda core: core.ask([question]))[0]


def asked(user: User, verb: Verb) -> Question:
    """The question that the engine has asked about the user's only transfer."""
    [(id_, _, _)] = user.transfers()
    [(version, source, target)] = user.stack.rows(
        "SELECT h.version, t.parties -> 'source', t.parties -> 'target'"
        " FROM history AS h JOIN transfers AS t ON t.id = h.transfer_id"
        " WHERE t.id = %s AND h.verb = %s",
        id_,
        str(verb),
    )
    party = Party(*(target if verb is Verb.CREDIT else source))
    undo = verb is Verb.REFUND
    assert isinstance(id_, UUID)
    return Question(
        id_, version, verb, party, USDT, AMOUNT, undoes=0 if undo else None, expect_done=undo
    )


def twice(user: User, verb: Verb, *systems: str) -> None:
    """Every repetition succeeds and leaves the balances unchanged."""
    question, before = asked(user, verb), user.held()
    assert question.party.system in systems
    for _ in range(3):
        assert isinstance(ask(user, question), Done)
        assert user.held() == before


@pytest.mark.parametrize(("direction", "system"), [("in", LEDGER), ("out", CORE)])
def test_IDP_001_a_second_withdraw_succeeds_and_debits_nothing(
    shared: Stack, direction: str, system: str
) -> None:
    user = shared.user(funding=100, spot=100)
    assert user.move(direction, "10").status == 201
    twice(user, Verb.DEBIT, system)
    user.has(*((90, 110) if direction == "in" else (110, 90)))


@pytest.mark.parametrize(("direction", "system"), [("in", CORE), ("out", LEDGER)])
def test_IDP_002_a_second_deposit_succeeds_and_credits_nothing(
    shared: Stack, direction: str, system: str
) -> None:
    user = shared.user(funding=100, spot=100)
    assert user.move(direction, "10").status == 201
    twice(user, Verb.CREDIT, system)
    user.has(*((90, 110) if direction == "in" else (110, 90)))


@pytest.mark.parametrize(
    ("direction", "closed", "system"), [("in", "SPOT", LEDGER), ("out", "FUNDING", CORE)]
)
def test_IDP_003_a_second_refund_succeeds_and_credits_nothing(
    shared: Stack, direction: str, closed: str, system: str
) -> None:
    user = shared.user(funding=100, spot=100)
    user.set_status(closed, "DISABLED")
    assert user.move(direction, "10").body["state"] == "ROLLED_BACK"
    twice(user, Verb.REFUND, system)
    twice(user, Verb.DEBIT, system)
    user.has(100, 100)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("direction", "moment", "after"),
    [("out", "after debit", (110, 90)), ("in", "after credit", (90, 110))],
)
def test_IDP_004_many_recoveries_of_one_transfer_have_one_effect(
    stack: Stack, direction: str, moment: str, after: tuple[int, int]
) -> None:
    """Each process dies after the system's answer and before it is recorded."""
    api = stack.start_api(moment)
    user = stack.user(funding=100, spot=100)
    api.arm()
    user.move_into_death(direction, "10", CID)
    api.dies(moment)
    held = user.held()
    for _ in range(3):
        stack.recover_into_death(moment)
        assert user.held() == held
    stack.start_api()
    [(id_, _, _)] = user.transfers()
    user.ends(str(ULID.from_uuid(id_)), "COMMITTED")
    user.has(*after)


def test_a_late_duplicate_of_a_refused_withdraw_stays_refused(shared: Stack) -> None:
    """Even after a deposit, because the refusal is stored under its key."""
    for direction, account in (("in", "FUNDING"), ("out", "SPOT")):
        user = shared.user(funding=5, spot=5)
        assert user.move(direction, "10").body["state"] == "FAILED"
        user.fund(account, "100")
        question = asked(user, Verb.DEBIT)
        assert type(ask(user, question)).__name__ == "Rejected"
        user.has(*((105, 5) if direction == "in" else (5, 105)))


def test_the_same_key_with_another_amount_is_no_answer(shared: Stack) -> None:
    user = shared.user(funding=100, spot=100)
    assert user.move("in", "10").status == 201
    for verb in (Verb.DEBIT, Verb.CREDIT):
        question = asked(user, verb)
        other = Question(
            question.transfer_id, question.version, verb, question.party, USDT, AMOUNT + 1
        )
        assert type(ask(user, other)).__name__ == "Unknown"
    assert question.party.book != FUNDING
    user.has(90, 110)
