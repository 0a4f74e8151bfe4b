"""The hash chain of the history: each row covers the ones before it, the transfer the last."""

import asyncio
from uuid import UUID

from tests.store.chain import broken_chains
from tests.store.scenario import (
    EngineSetup,
    Remote,
    agreeing,
    deposit,
    from_remote,
    refusing,
    rows,
    run_to_end,
    running,
    superuser,
    to_remote,
    to_savings,
)
from tidegate.core.answers import Answer, Done, Rejected
from tidegate.core.transfer import Question


def broken_transfers(database: str) -> list[UUID]:
    with superuser(database) as connection:
        return list(broken_chains(connection))


def with_evidence(question: Question) -> Answer:
    """Answers with evidence, whose order and characters must not matter."""
    evidence = {"z": "last", "a": "«first»", "block": "0x1f"}
    if question.amount == 13:
        return Rejected("ACCOUNT_FROZEN", evidence)
    return Done(evidence)


async def _end_in_all_ways(database: str) -> list[str]:
    async with running(EngineSetup(database, Remote(with_evidence))) as engine:
        requests = [
            deposit(1, 1000),
            to_savings(1, 10),
            to_savings(1, 5000),
            to_remote(1, 20),
            to_remote(1, 13),
            from_remote(1, 30),
            from_remote(1, 13),
        ]
        return [(await run_to_end(engine, request)).state for request in requests]


def test_every_hash_can_be_recomputed_from_the_stored_rows(database: str) -> None:
    states = asyncio.run(_end_in_all_ways(database))
    assert states == [
        "COMPLETED",
        "COMMITTED",
        "FAILED",
        "COMMITTED",
        "ROLLED_BACK",
        "COMMITTED",
        "FAILED",
    ]
    assert broken_transfers(database) == []
    counted = rows(database, "SELECT count(*), count(DISTINCT hash) FROM history")
    assert counted == [(2 + 2 + 1 + 2 + 3 + 2 + 1,) * 2]


def test_a_long_refusal_is_hashed_as_it_is_stored(database: str) -> None:
    def verbose(question: Question) -> Answer:
        return Rejected("no " * 400) if question.verb == "credit" else Done()

    async def refused() -> None:
        async with running(EngineSetup(database, Remote(verbose))) as engine:
            await run_to_end(engine, deposit(1, 100))
            assert (await run_to_end(engine, to_remote(1, 10))).state == "ROLLED_BACK"

    asyncio.run(refused())
    assert broken_transfers(database) == []


EDITS = [
    "UPDATE history SET reason = 'other' WHERE transfer_id = %s AND version = 1",
    "UPDATE history SET evidence = '{}' WHERE transfer_id = %s AND version = 1",
    "UPDATE history SET actor = 'nobody' WHERE transfer_id = %s AND version = 0",
    "UPDATE history SET at = at + interval '1 microsecond' WHERE transfer_id = %s AND version = 2",
    "UPDATE history SET hash = sha256(hash) WHERE transfer_id = %s AND version = 0",
    "DELETE FROM history WHERE transfer_id = %s AND version = 0",
    "DELETE FROM history WHERE transfer_id = %s AND version = 1",
    "DELETE FROM history WHERE transfer_id = %s AND version = 2",
    "DELETE FROM history WHERE transfer_id = %s",
    "UPDATE transfers SET head_hash = sha256(head_hash) WHERE id = %s",
    "UPDATE transfers SET version = version + 1 WHERE id = %s",
]


def test_every_edit_is_found(database: str) -> None:
    asyncio.run(_end_in_all_ways(database))
    [(victim,)] = rows(database, "SELECT id FROM transfers WHERE state = 'ROLLED_BACK'")
    with superuser(database) as connection:
        for edit in EDITS:
            with connection.transaction(force_rollback=True):
                assert connection.execute(edit, (victim,)).rowcount > 0
                assert list(broken_chains(connection)) == [victim], edit
        assert list(broken_chains(connection)) == []


async def _two_equal_transfers(database: str) -> None:
    async with running(EngineSetup(database, Remote(agreeing))) as engine:
        await run_to_end(engine, deposit(1, 1000))
        for _ in range(2):
            await run_to_end(engine, to_remote(1, 7))


def test_rows_swapped_between_two_transfers_are_found(database: str) -> None:
    asyncio.run(_two_equal_transfers(database))
    ids = rows(database, "SELECT id FROM transfers WHERE flow = 'internal_transfer' ORDER BY id")
    [(first,), (second,)] = ids
    with superuser(database) as connection:
        connection.execute(
            "UPDATE history AS h SET at = o.at, hash = o.hash FROM history AS o"
            " WHERE h.version = 1 AND o.version = 1 AND h.transfer_id <> o.transfer_id"
            " AND h.transfer_id = ANY(%(ids)s) AND o.transfer_id = ANY(%(ids)s)",
            {"ids": [first, second]},
        )
    assert broken_transfers(database) == [first, second]


async def _rolled_back(database: str) -> None:
    async with running(EngineSetup(database, Remote(refusing))) as engine:
        await run_to_end(engine, deposit(1, 1000))
        await engine.transfer(to_remote(1, 7), 5.0)


def test_rows_swapped_inside_a_transfer_are_found(database: str) -> None:
    asyncio.run(_rolled_back(database))
    [(victim,)] = rows(database, "SELECT id FROM transfers WHERE flow = 'internal_transfer'")
    with superuser(database) as connection, connection.transaction():
        for old, new in ((1, -1), (2, 1), (-1, 2)):
            connection.execute("ALTER TABLE history DROP CONSTRAINT IF EXISTS flow_rules")
            connection.execute(
                "UPDATE history SET version = %s WHERE transfer_id = %s AND version = %s",
                (new, victim, old),
            )
    assert broken_transfers(database) == [victim]
