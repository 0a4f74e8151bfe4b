"""Keys of an older version are found after an upgrade, even if written during the upgrade."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.conftest import SCHEMA
from tests.service.rig import ALICE, BOB, ApiClient, running_service
from tests.store.older import (
    BEFORE_SPACES,
    OldProcess,
    between_members,
    deposited,
    into_spot,
    migrate_until,
    withdrawn,
)
from tests.store.scenario import rows, superuser
from tests.store.test_inbox import ask, grant, login
from tidegate.core.refusals import Refusal
from tidegate.core.request import GUILD as GUILD_SPACE
from tidegate.core.request import Request
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import issue
from tidegate.flows import FLOWS
from tidegate.service.formats import ulid_of
from tidegate.store.archive import ArchiveAges, archive
from tidegate.store.migrate import migrate

GUILD, ANNA, BEN = 77, 1, 2
POINT = 6
UNIT = 10**6
CROSSINGS = {"deposit": deposited, "external_withdrawal": withdrawn}
DEPOSIT = {"user_id": ALICE, "account": "FUNDING", "asset": "USDT", "amount": "50"}
WISH = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "10"}
ISSUE = f"SELECT economy.fn_issue_currency({GUILD}, {ANNA}, %s, %s)"
PAY = f"SELECT economy.fn_create_pending_transfer({GUILD}, {ANNA}, {BEN}, %s, p_cid => %s)"
# The statement of the older version's HTTP service.
OLD_PAY = (
    f"SELECT c.transfer_id FROM economy._create_pending_transfer({GUILD}, {ANNA}, {BEN}, %s,"
    " '{}', NULL, %s, true) AS c"
)


class Upgrade:
    """A database of the older version that is migrated before or after that version writes."""

    def __init__(self, database: str, *, concurrent: bool) -> None:
        self.database = database
        # Whether a process of the older version continues to write after the migration.
        self._concurrent = concurrent

    @contextmanager
    def old_process(self) -> Iterator[OldProcess]:
        if self._concurrent:
            self._migrate()
        yield OldProcess(self.database)
        if not self._concurrent:
            self._migrate()

    def _migrate(self) -> None:
        migrate(self.database, SCHEMA, FLOWS.values(), economy=True)
        grant = "INSERT INTO inbox_grants (role, flow) VALUES ('tidegate_inbox', %s)"
        with superuser(self.database) as sql:
            for flow in (*CROSSINGS, "internal_transfer"):
                sql.execute(grant, (flow,))

    def ask(self, flow: str, cid: str | None, amount: int = 50, owner: int = ALICE) -> UUID:
        """Request a transfer through the inbox, as a program does."""
        terms = {"account": "FUNDING"} if flow in CROSSINGS else {"from": "FUNDING", "to": "SPOT"}
        [(id_,)] = rows(
            self.database,
            "SELECT request_transfer(%s, %s, 'USDT', %s, %s, %s)",
            *(flow, owner, Decimal(amount), Jsonb(terms), cid),
        )
        assert isinstance(id_, UUID)
        return id_

    def refuses(self, flow: str, cid: str, amount: int = 50) -> str:
        """Return the message with which the inbox refuses the request. It must leave no row."""
        before = self.keys()
        with pytest.raises(psycopg.Error, match="IDEMPOTENCY_MISMATCH") as caught:
            self.ask(flow, cid, amount)
        assert caught.value.sqlstate == "TG422"
        assert self.keys() == before
        assert rows(self.database, "SELECT FROM inbox") == []
        return str(caught.value)

    def keys(self) -> list[tuple[int, str, UUID]]:
        return rows(self.database, "SELECT owner, cid, transfer_id FROM cids ORDER BY owner, cid")


def _old(unmigrated: str) -> str:
    migrate_until(unmigrated, BEFORE_SPACES)
    return unmigrated


@pytest.fixture
def old(unmigrated: str) -> str:
    """A database as the version before key spaces left it."""
    return _old(unmigrated)


@pytest.fixture(params=[False, True], ids=["from before", "written beside"])
def upgrade(unmigrated: str, request: pytest.FixtureRequest) -> Upgrade:
    return Upgrade(_old(unmigrated), concurrent=request.param)


Scenario = Callable[[ApiClient], Awaitable[None]]


def run(database: str, directory: Path, scenario: Scenario) -> None:
    async def run_scenario() -> None:
        async with running_service(database, directory) as api:
            await scenario(api)

    asyncio.run(run_scenario())


def test_the_engine_knows_old_keys_of_users_and_operators(upgrade: Upgrade, tmp_path: Path) -> None:
    with upgrade.old_process() as process:
        made = process.transfer("internal_transfer", "u1", into_spot(ALICE), 10 * UNIT)
        paid = process.transfer("deposit", "d1", deposited(ALICE, "FUNDING"), 50 * UNIT)
        left = process.transfer("external_withdrawal", "w1", withdrawn(ALICE, "FUNDING"), 50 * UNIT)

    async def scenario(api: ApiClient) -> None:
        again = await api.transfer(WISH | {"cid": "u1"})
        assert (again.status, again.body["req_id"]) == (200, ulid_of(made))
        assert again.body["duplicate"]
        other = await api.transfer(WISH | {"cid": "u1", "amount": "11"})
        assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH")
        reply = await api.operator("POST", "/deposit", DEPOSIT | {"cid": "d1"})
        assert (reply.status, reply.body["req_id"]) == (200, ulid_of(paid)), reply
        other = await api.operator("POST", "/deposit", DEPOSIT | {"cid": "d1", "amount": "51"})
        assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH"), other
        reply = await api.operator("POST", "/external_withdrawal", DEPOSIT | {"cid": "w1"})
        assert (reply.status, reply.body["req_id"]) == (200, ulid_of(left)), reply
        # A user's old key does not block an operator, nor a new key of the user.
        fresh = await api.operator("POST", "/deposit", DEPOSIT | {"cid": "u1"})
        assert fresh.status == 201, fresh
        assert fresh.body["req_id"] not in (ulid_of(made), ulid_of(paid))

    run(upgrade.database, tmp_path, scenario)


def test_the_engine_knows_old_keys_of_guilds(upgrade: Upgrade, tmp_path: Path) -> None:
    with upgrade.old_process() as process:
        parties = deposited(GUILD, f"member:{ANNA}")
        issued = process.transfer("deposit", "issue:i1", parties, 300, POINT)
        payment = between_members(GUILD, ANNA, BEN)
        paid = process.transfer("member_transfer", f"{ANNA}:p1", payment, 40, POINT)

    async def scenario(api: ApiClient) -> None:
        reply = await api.gate.engine.transfer(issue(GUILD, ANNA, 300, "i1"))
        assert isinstance(reply, Receipt)
        assert (reply.transfer.id, reply.duplicate) == (issued, True)
        wanted = Request(
            GUILD, "member_transfer", payment, POINT, 40, f"{ANNA}:p1", space=GUILD_SPACE
        )
        reply = await api.gate.engine.transfer(wanted)
        assert isinstance(reply, Receipt)
        assert (reply.transfer.id, reply.duplicate) == (paid, True)

    run(upgrade.database, tmp_path, scenario)


def test_points_that_sql_issued_are_not_issued_again_by_the_library(
    old: str, tmp_path: Path
) -> None:
    """SQL wrote a different fingerprint then, which can no longer be computed."""
    rows(old, ISSUE, 700, "s1")
    migrate(old, SCHEMA, FLOWS.values(), economy=True)

    async def scenario(api: ApiClient) -> None:
        engine = api.gate.engine
        reply = await engine.transfer(issue(GUILD, ANNA, 700, "s1"))
        assert reply is Refusal.IDEMPOTENCY_MISMATCH
        assert isinstance(await engine.transfer(issue(GUILD, ANNA, 700, "s2")), Receipt)

    run(old, tmp_path, scenario)


def test_the_pool_knows_old_keys(old: str) -> None:
    with psycopg.connect(old, autocommit=True) as sql:
        [(pooled,)] = sql.execute(PAY, (100, "p1")).fetchall()
        [(issued,)] = sql.execute(ISSUE, (700, "s1")).fetchall()
        migrate(old, SCHEMA, FLOWS.values(), economy=True)
        assert sql.execute(PAY, (100, "p1")).fetchall() == [(pooled,)]
        assert sql.execute(ISSUE, (700, "s1")).fetchall() == [(issued,)]
        assert rows(old, "SELECT FROM inbox") == [], "a new request was created"
        for statement, amount, cid in ((PAY, 101, "p1"), (ISSUE, 701, "s1")):
            with pytest.raises(psycopg.Error, match="IDEMPOTENCY_MISMATCH"):
                sql.execute(statement, (amount, cid))
        assert rows(old, "SELECT FROM inbox") == []


def test_an_old_and_a_new_process_share_the_keys_of_the_pool(old: str) -> None:
    migrate(old, SCHEMA, FLOWS.values(), economy=True)
    with psycopg.connect(old, autocommit=True) as sql:
        [(first,)] = sql.execute(OLD_PAY, (100, "p1")).fetchall()
        assert sql.execute(PAY, (100, "p1")).fetchall() == [(first,)]
        [(second,)] = sql.execute(PAY, (100, "p2")).fetchall()
        assert sql.execute(OLD_PAY, (100, "p2")).fetchall() == [(second,)]
    assert rows(old, "SELECT count(*) FROM inbox") == [(2,)]


def test_points_that_the_library_issued_are_not_issued_again_by_sql(upgrade: Upgrade) -> None:
    with upgrade.old_process() as process:
        parties = deposited(GUILD, f"member:{ANNA}")
        process.transfer("deposit", "issue:i1", parties, 300, POINT)
    with pytest.raises(psycopg.Error, match="IDEMPOTENCY_MISMATCH") as caught:
        rows(upgrade.database, ISSUE, 300, "i1")
    assert caught.value.sqlstate == "TG422"
    assert rows(upgrade.database, "SELECT FROM inbox") == []


@pytest.mark.parametrize("archived", [False, True], ids=["kept", "archived"])
@pytest.mark.parametrize("flow", CROSSINGS)
def test_the_inbox_refuses_the_cid_of_an_operators_old_transfer(
    upgrade: Upgrade, flow: str, archived: bool
) -> None:
    with upgrade.old_process() as process:
        made = process.transfer(flow, "d1", CROSSINGS[flow](ALICE, "FUNDING"), 50 * UNIT)
        if archived:
            process.archive(made)
    assert str(made) in upgrade.refuses(flow, "d1"), "the message does not name the transfer"
    upgrade.refuses(flow, "d1", amount=51)
    assert upgrade.ask(flow, "d1", owner=BOB) != made, "owners share keys"
    assert upgrade.ask(flow, "d2") != made


@pytest.mark.parametrize(
    ("old_flow", "flow"),
    [
        ("internal_transfer", "deposit"),
        ("internal_transfer", "external_withdrawal"),
        ("deposit", "external_withdrawal"),
        ("external_withdrawal", "deposit"),
    ],
)
def test_the_inbox_is_not_blocked_by_an_old_key_of_another_flow(
    upgrade: Upgrade, old_flow: str, flow: str
) -> None:
    parties = {"internal_transfer": into_spot(ALICE), "deposit": deposited(ALICE, "FUNDING")}
    with upgrade.old_process() as process:
        old_parties = parties.get(old_flow) or withdrawn(ALICE, "FUNDING")
        made = process.transfer(old_flow, "x1", old_parties, 50 * UNIT)
    requested = upgrade.ask(flow, "x1")
    assert requested != made
    assert upgrade.ask(flow, "x1") == requested, "the new request has no key"


def test_an_old_transfer_without_a_cid_blocks_no_cid(upgrade: Upgrade) -> None:
    with upgrade.old_process() as process:
        made = process.transfer("deposit", None, deposited(ALICE, "FUNDING"), 50 * UNIT)
    assert upgrade.ask("deposit", str(made)) != made, "its id is not a cid of a caller"
    assert upgrade.ask("deposit", None) != upgrade.ask("deposit", None)


def test_the_inbox_refuses_a_users_old_cid(upgrade: Upgrade) -> None:
    with upgrade.old_process() as process:
        process.transfer("internal_transfer", "u1", into_spot(ALICE), 50 * UNIT)
    upgrade.refuses("internal_transfer", "u1")


def test_a_request_keeps_its_id_when_an_old_process_uses_its_cid_later(old: str) -> None:
    upgrade = Upgrade(old, concurrent=True)
    with upgrade.old_process() as process:
        first = upgrade.ask("deposit", "d1")
        process.transfer("deposit", "d1", deposited(ALICE, "FUNDING"), 50 * UNIT)
    assert upgrade.ask("deposit", "d1") == first, "a key with a space is preferred"


def test_the_key_of_an_old_transfer_is_free_after_it_is_deleted(upgrade: Upgrade) -> None:
    with upgrade.old_process() as process:
        made = process.transfer("deposit", "d1", deposited(ALICE, "FUNDING"), 50 * UNIT)
        process.archive(made)
    upgrade.refuses("deposit", "d1")
    assert [batch.cids for batch in archive(upgrade.database, SCHEMA, ArchiveAges(0, 0))] == [1]
    assert upgrade.ask("deposit", "d1") != made


def test_a_program_can_continue_after_the_error(database: str) -> None:
    """In its own transaction, it rolls back only the failed call, by a savepoint."""
    made = OldProcess(database).transfer("deposit", "d1", deposited(ALICE, "FUNDING"), 50 * UNIT)
    wanted = {"flow": "deposit", "owner": ALICE, "terms": {"account": "FUNDING"}}
    with login(database, "tidegate_inbox") as clerk:
        grant(database, clerk.role, "deposit")
        with clerk.session(autocommit=False) as connection:
            with (
                pytest.raises(psycopg.Error, match=f"for transfer {made} of an older") as caught,
                connection.transaction(),
            ):
                ask(connection, **wanted, cid="d1")
            assert caught.value.sqlstate == "TG422"
            fresh = ask(connection, **wanted, cid="d2")
            connection.commit()
    assert rows(database, "SELECT id FROM inbox") == [(fresh,)]
    keys = rows(database, "SELECT cid FROM cids ORDER BY cid")
    assert keys == [("d1",), ("operator§d2",)]
