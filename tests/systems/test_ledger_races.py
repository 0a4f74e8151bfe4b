"""Races of the ledger: accounts opened or changed by another session during a transaction."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from tests.conftest import SCHEMA
from tidegate.core.account import Account
from tidegate.core.answers import Answer, Done, Rejected
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.transfer import Question
from tidegate.store.postgres import PostgresStore
from tidegate.systems.ledger import FUNDING, Ledger

ACCOUNT = Account(7, FUNDING, 3)
OPERATIONS = "SELECT balance_after FROM ledger_operations WHERE transfer_id = %(id)s"
Meanwhile: TypeAlias = Callable[[], Awaitable[None]]


class Interrupted(Ledger):
    """A ledger during which another session acts, right after its first read."""

    def __init__(self, meanwhile: Meanwhile) -> None:
        super().__init__()
        self.meanwhile: Meanwhile | None = meanwhile

    async def _look(self, tx: Any, questions: Sequence[Question]) -> Any:
        operations = await super()._look(tx, questions)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return operations


def question(number: int, verb: Verb, amount: int = 100) -> Question:
    party = Party("ledger", ACCOUNT.book, ACCOUNT.owner)
    opens = verb is Verb.CREDIT
    return Question(UUID(int=number), 0, verb, party, ACCOUNT.asset_id, amount, opens=opens)


async def asked(store: PostgresStore, question: Question) -> Answer:
    async with store.transaction() as tx:
        await Ledger().lock(tx, [ACCOUNT])
        return (await Ledger().ask(tx, [question]))[0]


@asynccontextmanager
async def without_account(store: PostgresStore) -> AsyncIterator[Any]:
    """A transaction that found no account to lock; then another session opens the account."""
    async with store.transaction() as tx:
        await Ledger().lock(tx, [ACCOUNT])
        await tx.begun()  # Waits until the lock statement, which was only sent, has run.
        assert isinstance(await asked(store, question(1, Verb.CREDIT)), Done)
        yield tx


@pytest.mark.parametrize(("verb", "after"), [(Verb.DEBIT, 0), (Verb.CREDIT, 100)])
def test_changes_of_a_new_account_by_others_are_seen(verb: Verb, after: int, database: str) -> None:
    """Without a lock, the judged balance could have been spent by another session since."""

    async def scene() -> None:
        async with PostgresStore(database, SCHEMA) as store:

            async def spend() -> None:
                assert isinstance(await asked(store, question(2, Verb.DEBIT)), Done)

            async with without_account(store) as tx:
                [answer] = await Interrupted(spend).ask(tx, [question(3, verb)])
            assert isinstance(answer, Rejected if verb is Verb.DEBIT else Done)
            accounts = await Ledger().balances(store, ACCOUNT.owner)
            assert accounts[ACCOUNT].available == after
            id_ = question(3, verb).transfer_id
            rows = await store.run(OPERATIONS, {"id": id_})
            assert rows == [(after,)]

    asyncio.run(scene())


async def waits_for_a_lock(store: PostgresStore) -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    while await store.run(waiting, {}) == [(0,)]:  # noqa: ASYNC110  In another process.
        await asyncio.sleep(0.01)


def test_after_a_wait_for_a_lock_the_newest_balance_is_judged(database: str) -> None:
    """Two concurrent batches on one account: the second judges the balance that its lock returned,
    not the balance at the time when it requested the lock.
    """

    async def scene() -> None:
        async with PostgresStore(database, SCHEMA) as store:
            assert isinstance(await asked(store, question(1, Verb.CREDIT)), Done)
            async with store.transaction() as first:
                await Ledger().lock(first, [ACCOUNT])
                [spent] = await Ledger().ask(first, [question(2, Verb.DEBIT, 70)])
                second = asyncio.create_task(asked(store, question(3, Verb.DEBIT, 70)))
                await asyncio.wait_for(waits_for_a_lock(store), 10)
            assert isinstance(spent, Done)
            assert isinstance(await second, Rejected)
            assert isinstance(await asked(store, question(4, Verb.DEBIT, 30)), Done)
            accounts = await Ledger().balances(store, ACCOUNT.owner)
            assert accounts[ACCOUNT].available == 0

    asyncio.run(scene())


def test_later_rounds_of_a_transaction_see_the_balances_of_earlier_rounds(database: str) -> None:
    async def scene() -> None:
        async with PostgresStore(database, SCHEMA) as store:
            async with store.transaction() as tx:
                await Ledger().lock(tx, [ACCOUNT])
                answers = [
                    (await Ledger().ask(tx, [question(number, verb, amount)]))[0]
                    for number, verb, amount in [
                        (1, Verb.CREDIT, 100),
                        (2, Verb.DEBIT, 70),
                        (3, Verb.DEBIT, 70),
                        (4, Verb.CREDIT, 40),
                        (5, Verb.DEBIT, 70),
                    ]
                ]
            done = [isinstance(answer, Done) for answer in answers]
            assert done == [True, True, False, True, True]
            accounts = await Ledger().balances(store, ACCOUNT.owner)
            assert accounts[ACCOUNT].available == 0
            rows = "SELECT balance_after FROM ledger_operations ORDER BY transfer_id"
            assert await store.run(rows, {}) == [(100,), (30,), (30,), (70,), (0,)]

    asyncio.run(scene())
