"""The inbox as a program with access to the database meets it: real roles, its own transaction."""

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
    """A program that logs in as a role of its own."""

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
    """Roles are the whole server's, so each has a name of its own."""
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
    """It may ask for internal transfers of everybody."""
    with login(database, "tidegate_inbox") as made:
        grant(database, made.role)
        yield made


def waiting(database: str) -> list[tuple[Any, ...]]:
    return rows(database, "SELECT id, requested_by::text, outcome FROM inbox ORDER BY id")


def test_a_request_reserves_its_key_and_keeps_who_asked(database: str, program: Program) -> None:
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


def test_a_request_that_is_rolled_back_was_never_made(database: str, program: Program) -> None:
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
        assert waiting(database) == [], "nobody else sees it before it is committed"
        connection.commit()
    assert rows(database, "SELECT transfer FROM public.orders") == [(id_,)]
    assert [row[0] for row in waiting(database)] == [id_]


def test_the_same_request_again_returns_the_first_id(database: str, program: Program) -> None:
    first = program.ask()
    assert program.ask(amount=Decimal("12.500")) == first, "the same amount, written longer"
    assert program.ask(expires_at="2999-01-01") == first, "an expiry is no part of what is asked"
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
        mine = ask(first)
        second.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            ask(second)  # It waits for what becomes of the first.
        first.commit()
        assert ask(second) == mine
    assert len(waiting(database)) == 1


def test_an_old_snapshot_is_told_to_try_again(database: str, program: Program) -> None:
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


def test_a_role_asks_only_for_what_it_was_granted(database: str) -> None:
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


def test_a_grant_to_a_group_is_one_to_its_members(database: str) -> None:
    with login(database) as group, login(database, "tidegate_inbox", group.role) as member:
        grant(database, group.role)
        id_ = member.ask()
        assert waiting(database) == [(id_, member.role, None)], "who asked is kept, not the group"


def test_who_acts_as_another_role_is_still_known(database: str) -> None:
    with (
        login(database, "tidegate_inbox") as group,
        login(database, "tidegate_inbox", group.role) as member,
    ):
        grant(database, group.role)
        with member.session() as connection:
            connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(group.role)))
            id_ = ask(connection)
        assert waiting(database) == [(id_, member.role, None)]


def test_without_the_inbox_role_nothing_can_be_asked(database: str) -> None:
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
def test_nobody_writes_the_tables_of_the_inbox_directly(program: Program, statement: str) -> None:
    program.ask()
    with program.session() as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)


def test_temporary_tables_do_not_take_the_place_of_ours(database: str, program: Program) -> None:
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


def test_a_program_sees_what_became_of_its_own_requests_only(database: str) -> None:
    peeking = """
        CREATE FUNCTION pg_temp.peek(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001
        AS $$ BEGIN RAISE NOTICE 'seen %', $1; RETURN true; END $$
    """
    with (
        login(database, "tidegate_inbox") as first,
        login(database, "tidegate_inbox") as second,
    ):
        for each in (first, second):
            grant(database, each.role)
        mine = first.ask(cid="mine")
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
            assert found == [(mine, None)]
            connection.execute(peeking)
            connection.execute("SELECT FROM inbox_requests WHERE pg_temp.peek(cid)")
        assert seen == ["seen mine"], "a condition of the reader's is tried on the reader's rows"


@pytest.mark.parametrize(
    ("change", "why"),
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
def test_what_makes_no_sense_is_refused_at_once(
    database: str, program: Program, change: dict[str, object], why: str
) -> None:
    grant(database, program.role, str(change.get("flow", "payout")))
    with pytest.raises(psycopg.errors.CheckViolation, match=why):
        program.ask(**change)
    assert waiting(database) == []
    assert rows(database, "SELECT FROM cids") == []


def test_the_engine_decides_requests_and_cannot_make_or_drop_them(
    database: str, program: Program
) -> None:
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
    untouched: str, flow: str, asset_id: int, amount: int, terms: dict[str, str]
) -> None:
    request = Request(7, flow, {}, asset_id, amount, terms=terms)
    [(computed,)] = rows(
        untouched,
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
