"""Constraints from flow tables: the database refuses answers that no flow allows."""

import asyncio
from dataclasses import replace
from enum import StrEnum
from itertools import product
from uuid import uuid4

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.store.scenario import EngineSetup, deposit, rows, run_to_end, running, superuser
from tidegate.app import all_flows
from tidegate.core.flow import Ask, Edge, End, Flow, Pass, Place, Verb
from tidegate.core.ports import StoreFault
from tidegate.flows import FLOWS
from tidegate.store.flow_checks import checksum, differing
from tidegate.store.flow_install import CHECKED
from tidegate.store.migrate import migrate
from tidegate.store.postgres import PostgresStore
from tidegate.store.schemas import MigrationRefused

Answered = tuple[int, str, str, str, str, str]  # version, from, waypoints, to, verb, answer

INSERT_HISTORY = (
    "INSERT INTO history (transfer_id, flow, version, from_state, waypoints, to_state, verb,"
    " answer, reason, actor, at, hash) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, '', '', now(), '')"
)
# This leaves out columns that an older schema does not have.
INSERT_TRANSFER = """
    INSERT INTO transfers
    SELECT (jsonb_populate_record(NULL::transfers, jsonb_build_object(
               'id', v.id, 'flow', v.flow, 'state', v.state, 'lane', v.lane, 'due_lane', v.lane,
               'held', false, 'owner', 1, 'due_at', now(), 'version', 0, 'attempts', 0,
               'retries', 0, 'paged', false, 'parties', '{}'::jsonb, 'asset_id', 1, 'amount', 1,
               'fee', 0, 'head_hash', '', 'created_at', now(), 'updated_at', now()))).*
      FROM (VALUES (%s::uuid, %s::text, %s::text, %s::text)) AS v (id, flow, state, lane)
"""


OLDER_CHECKSUMS = {
    "internal_transfer": "a37a4985d3baf18a",
    "deposit": "0fd0e0425714ba18",
    "external_withdrawal": "87b0313ca1209e80",
    "pool_transfer": "f9724e76ea21e511",
    "member_transfer": "652b3728ba093510",
}


class Step(StrEnum):
    OPEN = "it's open"
    CHECKING = "CHECKING"
    HELD = "HELD"
    PAID = "PAID"
    GONE = "GONE"


def own_flow(rejected_end: Step = Step.GONE) -> Flow:
    """A flow that is not one of ours, as another program would install it."""
    return Flow(
        "own flow",
        first=Step.OPEN,
        rows={
            Step.OPEN: Pass(Place.SOURCE, to=Step.CHECKING),
            Step.CHECKING: Ask(Place.SOURCE, "policy", Verb.CHECK, Step.HELD, rejected_end),
            Step.HELD: Ask(Place.SOURCE, "source", Verb.CHECK, Step.PAID, Step.GONE),
            Step.PAID: End(Place.SOURCE),
            Step.GONE: End(Place.SOURCE),
        },
        codes={Step.PAID: 7},
        roles=frozenset({"policy"}),
    )


def answered(edge: Edge) -> Answered:
    path = edge.path
    version = 0 if edge.first else 5
    return version, path[0], " ".join(path[1:-1]), path[-1], edge.verb, edge.answer


def possible_answers(flow: Flow) -> list[Answered]:
    """Every combination of states, waypoints and verbs of the flow, allowed or not."""
    states = [str(state) for state in flow.rows]
    waypoints = sorted({" ".join(edge.path[1:-1]) for edge in flow.answers()} | {""})
    verbs = [str(verb) for verb in Verb]
    return list(product((0, 1, 5), states, waypoints, states, verbs, ("done", "rejected")))


def allowed(database: str, flow: Flow, candidates: list[Answered]) -> set[Answered]:
    """The candidates that the constraint in the database accepts."""
    columns = [list(column) for column in zip(*candidates, strict=True)]
    with superuser(database) as connection:
        [(definition,)] = connection.execute(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE conrelid = 'history'::regclass AND conname = 'flow_rules'",
        ).fetchall()
        condition = definition.removeprefix("CHECK ").replace("%", "%%")
        found = connection.execute(
            "SELECT version, from_state, waypoints, to_state, verb, answer"
            "  FROM (SELECT %s::text AS flow, c.*"
            "          FROM unnest(%s::integer[], %s::text[], %s::text[], %s::text[], %s::text[],"
            "                      %s::text[])"
            "            AS c (version, from_state, waypoints, to_state, verb, answer)) AS c"
            f" WHERE {condition}",
            [flow.name, *columns],
        ).fetchall()
    return set(found)


def constraints(database: str) -> dict[str, dict[str, bool]]:
    """For each table, its flow constraints, and whether they are validated for all rows."""
    found: dict[str, dict[str, bool]] = {table: {} for table in CHECKED}
    for table, name, validated in rows(
        database,
        "SELECT conrelid::regclass::text, conname, convalidated FROM pg_constraint"
        " WHERE starts_with(conname, 'flow_') AND contype = 'c' ORDER BY conname",
    ):
        found[table][name] = validated
    return found


@pytest.mark.parametrize("name", FLOWS)
def test_every_answer_that_a_flow_allows_is_accepted(database: str, name: str) -> None:
    edges = list(FLOWS[name].answers())
    assert edges
    with superuser(database) as connection:
        for edge in edges:
            connection.execute(INSERT_HISTORY, (uuid4(), name, *answered(edge)))


@pytest.mark.parametrize("name", FLOWS)
def test_of_all_possible_answers_only_those_of_the_flow_are_accepted(
    migrated: str, name: str
) -> None:
    flow = FLOWS[name]
    legal = {answered(edge) for edge in flow.answers()}
    legal |= {(1, *row[1:]) for row in legal if row[0] == 5}
    candidates = possible_answers(flow)
    assert legal < set(candidates)
    assert allowed(migrated, flow, candidates) == legal


@pytest.mark.parametrize(
    "row",
    [
        (0, "INIT", "", "SOURCE_PENDING", "debit", "done"),
        (0, "INIT", "SOURCE_PENDING SOURCE_DONE", "COMMITTED", "debit", "done"),
        (0, "INIT", "SOURCE_PENDING", "TARGET_PENDING", "debit", "done"),
        (1, "INIT", "SOURCE_PENDING SOURCE_DONE", "TARGET_PENDING", "debit", "done"),
        (0, "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING", "debit", "done"),
        (1, "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING", "credit", "done"),
        (1, "TARGET_PENDING", "", "COMMITTED", "credit", "rejected"),
        (1, "TARGET_PENDING", "", "COMPENSATING", "credit", "done"),
        (1, "TARGET_PENDING", "", "ROLLED_BACK", "credit", "rejected"),
        (1, "TARGET_PENDING", "", "FAILED", "credit", "rejected"),
        (2, "COMPENSATING", "", "COMMITTED", "refund", "done"),
        (3, "COMMITTED", "", "COMPENSATING", "credit", "rejected"),
        (3, "ROLLED_BACK", "", "TARGET_PENDING", "refund", "done"),
        (3, "FAILED", "", "SOURCE_PENDING", "debit", "rejected"),
        (-1, "TARGET_PENDING", "", "COMMITTED", "credit", "done"),
    ],
)
def test_an_answer_that_the_flow_does_not_allow_is_refused(migrated: str, row: Answered) -> None:
    with (
        superuser(migrated) as connection,
        pytest.raises(psycopg.errors.CheckViolation) as caught,
    ):
        connection.execute(INSERT_HISTORY, (uuid4(), "internal_transfer", *row))
    assert caught.value.sqlstate == "23514"
    assert caught.value.diag.constraint_name == "flow_rules"


@pytest.mark.parametrize("name", FLOWS)
def test_a_transfer_rests_only_in_an_asking_state_or_an_end(database: str, name: str) -> None:
    with superuser(database) as connection:
        for (state, row), lane in product(FLOWS[name].rows.items(), ("ledger", None)):
            legal = isinstance(row, End) if lane is None else isinstance(row, Ask)
            if legal:
                connection.execute(INSERT_TRANSFER, (uuid4(), name, str(state), lane))
                continue
            with pytest.raises(psycopg.errors.CheckViolation) as caught:
                connection.execute(INSERT_TRANSFER, (uuid4(), name, str(state), lane))
            assert caught.value.diag.constraint_name == "flow_rules"


def test_an_ended_transfer_cannot_be_moved(database: str) -> None:
    asyncio.run(_deposited(database))
    with superuser(database) as connection:
        for change in (
            "lane = 'ledger', due_lane = 'ledger'",
            "state = 'CREDITING'",
            "state = 'ARRIVED'",
        ):
            with pytest.raises(psycopg.errors.CheckViolation):
                connection.execute(f"UPDATE transfers SET {change}")


def test_a_flow_of_another_program_is_enforced_too(database: str) -> None:
    flow = own_flow()
    assert migrate(database, SCHEMA, [flow]) == [f"{SCHEMA}: flow own flow"]
    assert migrate(database, SCHEMA, [*FLOWS.values(), flow], economy=True) == []
    candidates = possible_answers(flow)
    legal = {answered(edge) for edge in flow.answers()}
    assert allowed(database, flow, candidates) == legal | {
        (1, *row[1:]) for row in legal if row[0] == 5
    }
    assert rows(
        database,
        "SELECT state, place, is_end, code FROM flow_states"
        " WHERE flow = 'own flow' ORDER BY code, state",
    ) == [
        ("PAID", "source", True, 7),
        ("CHECKING", "source", False, None),
        ("GONE", "source", True, None),
        ("HELD", "source", False, None),
        ("it's open", "source", False, None),
    ]


NO_TO_GONE = (5, "CHECKING", "", "GONE", "check", "rejected")
NO_TO_PAID = (5, "CHECKING", "", "PAID", "check", "rejected")


def test_a_changed_flow_table_is_installed_again(database: str) -> None:
    before, after = own_flow(), own_flow(rejected_end=Step.PAID)
    migrate(database, SCHEMA, [before])
    assert allowed(database, before, [NO_TO_GONE, NO_TO_PAID]) == {NO_TO_GONE}
    assert migrate(database, SCHEMA, [after]) == [f"{SCHEMA}: flow own flow"]
    assert allowed(database, after, [NO_TO_GONE, NO_TO_PAID]) == {NO_TO_PAID}
    assert migrate(database, SCHEMA, [after]) == []


def test_a_flow_that_the_history_violates_is_refused_and_the_old_one_stays(
    database: str,
) -> None:
    before, after = own_flow(), own_flow(rejected_end=Step.PAID)
    migrate(database, SCHEMA, [before])
    with superuser(database) as connection:
        connection.execute(INSERT_HISTORY, (uuid4(), before.name, *NO_TO_GONE))
    with pytest.raises(MigrationRefused, match="flow own flow: history has rows"):
        migrate(database, SCHEMA, [after])
    assert allowed(database, before, [NO_TO_GONE, NO_TO_PAID]) == {NO_TO_GONE}
    installed = rows(database, "SELECT checksum FROM flow_tables WHERE flow = 'own flow'")
    assert installed == [(checksum(before),)]


def test_a_flow_that_the_archive_violates_is_refused_too(database: str) -> None:
    before, after = own_flow(), own_flow(rejected_end=Step.PAID)
    migrate(database, SCHEMA, [before])
    archived = INSERT_HISTORY.replace("INTO history", "INTO archived_history")
    with superuser(database) as connection:
        connection.execute(archived, (uuid4(), before.name, *NO_TO_GONE))
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(archived, (uuid4(), before.name, *NO_TO_PAID))
    with pytest.raises(MigrationRefused, match="flow own flow: archived_history has rows"):
        migrate(database, SCHEMA, [after])
    assert allowed(database, before, [NO_TO_GONE, NO_TO_PAID]) == {NO_TO_GONE}


def test_a_removed_constraint_is_restored(database: str) -> None:
    with superuser(database) as connection:
        connection.execute("ALTER TABLE history DROP CONSTRAINT flow_rules")
        connection.execute("ALTER TABLE archived_transfers DROP CONSTRAINT flow_rules")
    again = [f"{SCHEMA}: flow_rules of {table}" for table in ("history", "archived_transfers")]
    assert sorted(migrate(database, SCHEMA, FLOWS.values(), economy=True)) == sorted(again)
    assert constraints(database) == {table: {"flow_rules": True} for table in CHECKED}
    assert migrate(database, SCHEMA, FLOWS.values(), economy=True) == []


def test_a_constraint_that_was_replaced_by_hand_is_restored(database: str) -> None:
    with superuser(database) as connection:
        connection.execute(
            "ALTER TABLE history DROP CONSTRAINT flow_rules,"
            " ADD CONSTRAINT flow_rules CHECK (version >= 0)"
        )
    assert migrate(database, SCHEMA, []) == [f"{SCHEMA}: flow_rules of history"]
    flow = FLOWS["deposit"]
    candidates = possible_answers(flow)
    assert allowed(database, flow, candidates) < set(candidates)


def test_rows_written_without_a_constraint_are_reported_and_new_ones_are_checked(
    database: str,
) -> None:
    wrong = (uuid4(), "deposit", 1, "CREDITING", "", "GONE", "credit", "done")
    with superuser(database) as connection:
        connection.execute("ALTER TABLE history DROP CONSTRAINT flow_rules")
        connection.execute(INSERT_HISTORY, wrong)
    for _ in range(2):
        with pytest.raises(MigrationRefused, match=r"flow deposit: history has rows.* run `tide"):
            migrate(database, SCHEMA, FLOWS.values(), economy=True)
        with superuser(database) as connection, pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(INSERT_HISTORY, (uuid4(), *wrong[1:]))
    with superuser(database) as connection:
        connection.execute("DELETE FROM history")
    assert migrate(database, SCHEMA, FLOWS.values(), economy=True) == [
        f"{SCHEMA}: flow_rules of history"
    ]
    assert constraints(database)["history"] == {"flow_rules": True}


def test_a_name_that_the_server_would_cut_off_is_refused(database: str) -> None:
    long = replace(own_flow(), name="f" * 58)
    assert migrate(database, SCHEMA, [long]) == [f"{SCHEMA}: flow {long.name}"]
    with pytest.raises(MigrationRefused, match="longer than 63 bytes"):
        migrate(database, SCHEMA, [replace(long, name="f" * 59)])
    with pytest.raises(MigrationRefused, match="longer than 63 bytes"):
        migrate(database, "ö" * 32, [])


def test_each_store_has_the_flow_version_it_was_migrated_to(database: str) -> None:
    before, after = own_flow(), own_flow(rejected_end=Step.PAID)
    migrate(database, SCHEMA, [before])
    migrate(database, "store_two", [after])
    assert allowed(database, before, [NO_TO_GONE, NO_TO_PAID]) == {NO_TO_GONE}
    with pytest.raises(StoreFault, match="flow own flow: the database has another version"):
        asyncio.run(_verified(database, after))
    assert migrate(database, SCHEMA, [after]) == [f"{SCHEMA}: flow own flow"]
    assert allowed(database, before, [NO_TO_GONE, NO_TO_PAID]) == {NO_TO_PAID}
    asyncio.run(_verified(database, after))


def test_a_start_with_a_different_flow_version_is_refused_by_name(database: str) -> None:
    installed = dict(rows(database, "SELECT flow, checksum FROM flow_tables"))
    assert differing(installed, FLOWS.values()) == []
    assert differing(installed, [*FLOWS.values(), own_flow()]) == ["own flow"]
    assert differing({**installed, "deposit": "other"}, FLOWS.values()) == ["deposit"]
    migrate(database, SCHEMA, [own_flow()])
    asyncio.run(_verified(database, own_flow()))
    with pytest.raises(StoreFault, match="own flow"):
        asyncio.run(_verified(database, own_flow(rejected_end=Step.PAID)))


async def _verified(database: str, flow: Flow) -> None:
    async with PostgresStore(database, SCHEMA) as store:
        await store.verify([flow])


async def _deposited(database: str) -> None:
    async with running(EngineSetup(database)) as engine:
        await run_to_end(engine, deposit(1, 100))


def test_the_constraints_of_a_table_are_few_and_small(database: str) -> None:
    """The server parses them for every statement that writes to the table."""
    migrate(database, SCHEMA, all_flows())
    found = rows(
        database,
        "SELECT conrelid::regclass::text, count(*), sum(length(conbin::text))"
        "  FROM pg_constraint"
        " WHERE contype = 'c' AND conrelid = ANY(%s::text[]::regclass[]) GROUP BY 1 ORDER BY 1",
        ["history", "transfers", "ledger_accounts", "ledger_operations"],
    )
    assert [(table, number) for table, number, _ in found] == [
        ("history", 2),
        ("ledger_accounts", 1),
        ("ledger_operations", 1),
        ("transfers", 2),
    ]
    assert all(size < 13_000 for _, _, size in found), found


def test_the_checksum_of_a_flow_is_the_same_as_in_older_versions() -> None:
    """Processes of older versions run during a migration, and compare the checksum."""
    assert {name: checksum(flow)[:16] for name, flow in FLOWS.items()} == OLDER_CHECKSUMS
