"""The inbox for programs with access to the database: real roles, their own transactions."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import count
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb

from tests.conftest import SCHEMA
from tests.store.scenario import rows, superuser
from tidegate.core.request import Request
from tidegate.flows import FLOWS
from tidegate.store.flow_checks import checksums
from tidegate.store.postgres import PostgresStore

FUNDING_TO_SPOT = {"from": "FUNDING", "to": "SPOT"}
ASK = (
    "SELECT request_transfer(%(flow)s, %(owner)s, %(asset)s, %(amount)s, %(terms)s, %(cid)s,"
    " %(expires_at)s)"
)
PLAIN = {
    "flow": "internal_transfer",
    "owner": 7,
    "asset": "USDT",
    "amount": Decimal("12.5"),
    "terms": FUNDING_TO_SPOT,
    "cid": "order-1",
    "expires_at": None,
}
_numbers = count()


class Program:
    """A program that logs in with its own role."""

    def __init__(self, database: str, role: str) -> None:
        self.database, self.role = database, role

    @contextmanager
    def session(self, *, autocommit: bool = True) -> Iterator[psycopg.Connection[Any]]:
        address = make_conninfo(self.database, user=self.role)
        with psycopg.connect(address, autocommit=autocommit) as connection:
            connection.execute(f"SET search_path TO {SCHEMA}")
            yield connection

    def ask(self, **change: object) -> UUID:
        with self.session() as connection:
            return ask(connection, **change)


def ask(connection: psycopg.Connection[Any], **change: object) -> UUID:
    values = {**PLAIN, **change}
    values["terms"] = Jsonb(values["terms"])
    [(id_,)] = connection.execute(ASK, values).fetchall()
    assert isinstance(id_, UUID)
    return id_


def grant(database: str, role: str, flow: str = "internal_transfer", owners: str = "(,)") -> None:
    rows(database, "INSERT INTO inbox_grants VALUES (%s, %s, %s) RETURNING 1", role, flow, owners)


@contextmanager
def login(database: str, *memberships: str) -> Iterator[Program]:
    """A program with a new role. All databases of a server share roles, so the name is unique."""
    role = f"{conninfo_to_dict(database)['dbname']}_program_{next(_numbers)}"
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        for membership in memberships:
            names = sql.Identifier(membership), sql.Identifier(role)
            owner.execute(sql.SQL("GRANT {} TO {}").format(*names))
        try:
            yield Program(database, role)
        finally:
            owner.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
            owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


@pytest.fixture
def program(database: str) -> Iterator[Program]:
    """A program that may request internal transfers for all owners."""
    with login(database, "tidegate_inbox") as program:
        grant(database, program.role)
        yield program


def waiting(database: str) -> list[tuple[Any, ...]]:
    return rows(database, "SELECT id, requested_by::text, outcome FROM inbox ORDER BY id")


def test_a_request_reserves_its_key_and_records_the_role(database: str, program: Program) -> None:
    id_ = program.ask()
    assert waiting(database) == [(id_, program.role, None)]
    assert rows(database, "SELECT owner, cid, transfer_id FROM cids") == [(7, "order-1", id_)]
    [row] = rows(database, "SELECT asset_id, amount, terms, space, cid FROM inbox")
    assert row == (3, 12_500_000, FUNDING_TO_SPOT, "", "order-1")


def test_a_request_without_a_cid_is_known_by_its_id(database: str, program: Program) -> None:
    first, second = (program.ask(cid=None) for _ in range(2))
    assert first != second
    found = rows(database, "SELECT cid, transfer_id FROM cids ORDER BY transfer_id")
    assert found == [(str(id_), id_) for id_ in sorted([first, second])]


def test_a_request_that_is_rolled_back_leaves_nothing(database: str, program: Program) -> None:
    with program.session(autocommit=False) as connection:
        ask(connection)
        connection.rollback()
    assert waiting(database) == []
    assert rows(database, "SELECT FROM cids") == []


def test_the_request_commits_with_what_the_program_writes(database: str, program: Program) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute("CREATE TABLE public.orders (id integer, transfer uuid)")
        owner.execute(f'GRANT ALL ON public.orders TO "{program.role}"')
    with program.session(autocommit=False) as connection:
        id_ = ask(connection)
        connection.execute("INSERT INTO public.orders VALUES (1, %s)", (id_,))
        assert waiting(database) == [], "it is visible before the commit"
        connection.commit()
    assert rows(database, "SELECT transfer FROM public.orders") == [(id_,)]
    assert [row[0] for row in waiting(database)] == [id_]


def test_the_same_request_again_returns_the_first_id(database: str, program: Program) -> None:
    first = program.ask()
    assert program.ask(amount=Decimal("12.500")) == first, "the same amount with more digits"
    assert program.ask(expires_at="2999-01-01") == first, "the expiry is not compared"
    assert len(waiting(database)) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"amount": Decimal("12.6")},
        {"asset": "ETH"},
        {"terms": {"from": "SPOT", "to": "FUNDING"}},
    ],
)
def test_another_request_under_the_same_key_is_an_error(
    database: str, program: Program, change: dict[str, object]
) -> None:
    program.ask()
    with pytest.raises(psycopg.Error, match="IDEMPOTENCY_MISMATCH") as caught:
        program.ask(**change)
    assert caught.value.sqlstate == "TG422"
    assert len(waiting(database)) == 1


def test_two_sessions_with_one_key_become_one_request(database: str, program: Program) -> None:
    with program.session(autocommit=False) as first, program.session() as second:
        id_ = ask(first)
        second.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            ask(second)  # It waits for the end of the first transaction.
        first.commit()
        assert ask(second) == id_
    assert len(waiting(database)) == 1


def test_a_request_in_an_old_snapshot_fails_to_serialize(database: str, program: Program) -> None:
    with program.session(autocommit=False) as late:
        late.commit()
        late.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        late.execute("SELECT 1")
        first = program.ask()
        with pytest.raises(psycopg.errors.SerializationFailure):
            ask(late)
        late.rollback()
        assert ask(late) == first


def test_owners_do_not_share_keys(program: Program) -> None:
    assert program.ask(owner=7) != program.ask(owner=8)


def test_a_role_can_request_only_what_it_was_granted(database: str) -> None:
    with login(database, "tidegate_inbox") as clerk:
        refused = rf"role {clerk.role} may not request internal_transfer for owner 7: see inbox_gra"
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match=refused):
            clerk.ask()
        grant(database, clerk.role, "deposit", "[5,9]")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match=refused):
            clerk.ask()
        deposit = {"flow": "deposit", "terms": {"account": "FUNDING"}}
        clerk.ask(**deposit)
        for owner in (4, 10, None):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not request"):
                clerk.ask(**deposit, owner=owner)
        with (
            login(database, "tidegate_inbox") as other,
            pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not request"),
        ):
            other.ask(**deposit)
    assert len(waiting(database)) == 1


def test_a_grant_to_a_group_is_valid_for_its_members(database: str) -> None:
    with login(database) as group, login(database, "tidegate_inbox", group.role) as member:
        grant(database, group.role)
        id_ = member.ask()
        assert waiting(database) == [(id_, member.role, None)], "the member is recorded"


def test_the_login_role_is_recorded_after_set_role(database: str) -> None:
    with (
        login(database, "tidegate_inbox") as group,
        login(database, "tidegate_inbox", group.role) as member,
    ):
        grant(database, group.role)
        with member.session() as connection:
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(group.role)))
            id_ = ask(connection)
        assert waiting(database) == [(id_, member.role, None)]


def test_without_the_inbox_role_no_request_is_possible(database: str) -> None:
    with login(database) as stranger:
        grant(database, stranger.role)
        with pytest.raises(
            (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFunction)
        ):
            stranger.ask()
    assert waiting(database) == []


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO inbox (id, owner) VALUES (gen_random_uuid(), 7)",
        "UPDATE inbox SET amount = 1",
        "DELETE FROM inbox",
        "SELECT FROM inbox",
        "INSERT INTO cids VALUES (7, 'x', '', gen_random_uuid())",
        "INSERT INTO inbox_grants VALUES (session_user, 'deposit', '(,)')",
        "UPDATE inbox_grants SET owners = '(,)'",
        "INSERT INTO inbox_requests (owner) VALUES (7)",
        "UPDATE inbox_requests SET outcome = NULL",
        "SELECT _put_request(NULL::inbox)",
        "SELECT _known_request(7, 'order-1', '')",
        "SELECT forget_requests(0, 1)",
    ],
)
def test_no_program_writes_the_inbox_tables_directly(program: Program, statement: str) -> None:
    program.ask()
    with program.session() as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)


def test_temporary_tables_do_not_hide_our_tables(database: str, program: Program) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        name = conninfo_to_dict(database)["dbname"]
        names = sql.Identifier(str(name)), sql.Identifier(program.role)
        owner.execute(sql.SQL("GRANT TEMPORARY ON DATABASE {} TO {}").format(*names))
    with program.session() as connection:
        for table in ("inbox", "cids", "inbox_grants", "assets", "flow_tables"):
            connection.execute(f"CREATE TEMPORARY TABLE {table} (owner bigint, role name)")
        connection.execute(f"SET search_path TO pg_temp, {SCHEMA}")
        id_ = ask(connection)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not request"):
            ask(connection, flow="deposit")
    assert waiting(database) == [(id_, program.role, None)]


def test_a_program_sees_only_its_own_requests(database: str) -> None:
    create_peek = """
        CREATE FUNCTION pg_temp.peek(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001
        AS $$ BEGIN RAISE NOTICE 'seen %', $1; RETURN true; END $$
    """
    with (
        login(database, "tidegate_inbox") as first,
        login(database, "tidegate_inbox") as second,
    ):
        for program in (first, second):
            grant(database, program.role)
        own_id = first.ask(cid="mine")
        second.ask(cid="theirs")
        with psycopg.connect(database, autocommit=True) as owner:
            name = sql.Identifier(str(conninfo_to_dict(database)["dbname"]))
            owner.execute(
                sql.SQL("GRANT TEMPORARY ON DATABASE {} TO {}").format(
                    name, sql.Identifier(first.role)
                )
            )
        seen: list[str] = []
        with first.session() as connection:
            connection.add_notice_handler(lambda notice: seen.append(notice.message_primary or ""))
            found = connection.execute("SELECT id, outcome FROM inbox_requests").fetchall()
            assert found == [(own_id, None)]
            connection.execute(create_peek)
            connection.execute("SELECT FROM inbox_requests WHERE pg_temp.peek(cid)")
        assert seen == ["seen mine"], "the reader's function saw rows of other programs"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flow": "payout"}, "flow payout is not installed"),
        ({"flow": "member_transfer"}, "flow member_transfer cannot be requested here"),
        ({"asset": "GOLD"}, "there is no asset GOLD"),
        ({"asset": None}, "there is no asset"),
        ({"amount": Decimal("0.0000001")}, "at most 6 decimals"),
        ({"amount": Decimal(0)}, "not a positive amount"),
        ({"amount": Decimal(-1)}, "not a positive amount"),
        ({"amount": Decimal("NaN")}, "not a positive amount"),
        ({"amount": Decimal("Infinity")}, "not a positive amount"),
        ({"amount": Decimal("-Infinity")}, "not a positive amount"),
        ({"amount": Decimal("1e30")}, "not a positive amount"),
        ({"amount": Decimal("1e300")}, "not a positive amount"),
        ({"amount": None}, "not a positive amount"),
        ({"cid": ""}, "1 to 64 printable ASCII"),
        ({"cid": "x" * 65}, "1 to 64 printable ASCII"),
        ({"cid": "line\n"}, "1 to 64 printable ASCII"),
        ({"cid": "é"}, "1 to 64 printable ASCII"),
        ({"cid": "operator§x"}, "1 to 64 printable ASCII"),
        ({"terms": []}, "JSON object of texts"),
        ({"terms": None}, "JSON object of texts"),
        ({"terms": {"from": 1}}, "JSON object of texts"),
        ({"terms": {"from": None}}, "JSON object of texts"),
        ({"terms": {"": "x"}}, "JSON object of texts"),
        ({"terms": {"from": "x" * 4000}}, "at most 4000 characters"),
        ({"owner": 0}, "owner"),
        ({"owner": -7}, "owner"),
        ({"expires_at": "infinity"}, "expires_at"),
        ({"expires_at": "-infinity"}, "expires_at"),
        ({"expires_at": "294276-12-31"}, "expires_at"),
        ({"expires_at": "4000-01-01 BC"}, "expires_at"),
    ],
)
def test_an_invalid_request_is_refused_at_once(
    database: str, program: Program, change: dict[str, object], message: str
) -> None:
    grant(database, program.role, str(change.get("flow", "payout")))
    with pytest.raises(psycopg.errors.CheckViolation, match=message):
        program.ask(**change)
    assert waiting(database) == []
    assert rows(database, "SELECT FROM cids") == []


def test_the_engine_cannot_create_or_delete_requests(database: str, program: Program) -> None:
    program.ask()
    with superuser(database) as connection:
        connection.execute("SET ROLE tidegate_engine")
        for statement in (
            "DELETE FROM inbox",
            "INSERT INTO inbox SELECT * FROM inbox",
            "UPDATE inbox_grants SET owners = '(,)'",
            "SELECT request_transfer('deposit', 7, 'USDT', 1, '{}')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=150, deadline=None)
@given(
    flow=TEXT.filter(bool),
    asset_id=st.integers(1, 2**31 - 1),
    amount=st.integers(1, 10**38),
    terms=st.dictionaries(TEXT.filter(bool), TEXT, max_size=6),
)
def test_python_and_sql_compute_the_same_fingerprint(
    migrated: str, flow: str, asset_id: int, amount: int, terms: dict[str, str]
) -> None:
    request = Request(7, flow, {}, asset_id, amount, terms=terms)
    [(computed,)] = rows(
        migrated,
        "SELECT request_fingerprint(%s, %s, %s, %s)",
        flow,
        asset_id,
        amount,
        Jsonb(terms),
    )
    assert computed == request.fingerprint()


def test_a_request_whose_expiry_is_far_away_can_be_claimed(database: str, program: Program) -> None:
    id_ = program.ask(expires_at="9999-12-30")

    async def claimed() -> list[UUID]:
        async with PostgresStore(database, SCHEMA) as store:
            return [r.id for r in await store.inbox.claim(checksums(FLOWS.values()), 10)]

    assert asyncio.run(claimed()) == [id_]
