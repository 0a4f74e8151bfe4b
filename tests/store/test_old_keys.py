"""Keys of an older version are found after an upgrade, also those that it writes while it ends."""

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
from tests.service.rig import ALICE, BOB, Front, fronted
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
from tidegate.service.request_types import ulid_of
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
# As the HTTP service of the older version called it.
OLD_PAY = (
    f"SELECT c.transfer_id FROM economy._create_pending_transfer({GUILD}, {ANNA}, {BEN}, %s,"
    " '{}', NULL, %s, true) AS c"
)


class Upgrade:
    """A database of the older version that is migrated before or after that version writes."""

    def __init__(self, database: str, *, beside: bool) -> None:
        self.database = database
        self._beside = beside  # A process of the older version goes on after the migration.

    @contextmanager
    def old_process(self) -> Iterator[OldProcess]:
        if self._beside:
            self._migrate()
        yield OldProcess(self.database)
        if not self._beside:
            self._migrate()

    def _migrate(self) -> None:
        migrate(self.database, SCHEMA, FLOWS.values())
        grant = "INSERT INTO inbox_grants (role, flow) VALUES ('tidegate_inbox', %s)"
        with superuser(self.database) as sql:
            for flow in (*CROSSINGS, "internal_transfer"):
                sql.execute(grant, (flow,))

    def ask(self, flow: str, cid: str | None, amount: int = 50, owner: int = ALICE) -> UUID:
        """As a program asks the inbox."""
        terms = {"account": "FUNDING"} if flow in CROSSINGS else {"from": "FUNDING", "to": "SPOT"}
        [(id_,)] = rows(
            self.database,
            "SELECT request_transfer(%s, %s, 'USDT', %s, %s, %s)",
            *(flow, owner, Decimal(amount), Jsonb(terms), cid),
        )
        assert isinstance(id_, UUID)
        return id_

    def refuses(self, flow: str, cid: str, amount: int = 50) -> str:
        """The message with which the inbox refuses it. Nothing is left of the request."""
        before = self.keys()
        with pytest.raises(psycopg.Error, match="IDEMPOTENCY_MISMATCH") as caught:
            self.ask(flow, cid, amount)
        assert caught.value.sqlstate == "TG422"
        assert self.keys() == before
        assert rows(self.database, "SELECT FROM inbox") == []
        return str(caught.value)

    def keys(self) -> list[tuple[int, str, UUID]]:
        return rows(self.database, "SELECT owner, cid, transfer_id FROM cids ORDER BY owner, cid")


def _old(bare: str) -> str:
    migrate_until(bare, BEFORE_SPACES)
    return bare


@pytest.fixture
def old(bare: str) -> str:
    """A database as the version before the key spaces left it."""
    return _old(bare)


@pytest.fixture(params=[False, True], ids=["from before", "written beside"])
def upgrade(bare: str, request: pytest.FixtureRequest) -> Upgrade:
    return Upgrade(_old(bare), beside=request.param)


Scene = Callable[[Front], Awaitable[None]]


def play(database: str, directory: Path, scene: Scene) -> None:
    async def whole() -> None:
        async with fronted(database, directory) as front:
            await scene(front)

    asyncio.run(whole())


def test_the_engine_knows_old_keys_of_users_and_operators(upgrade: Upgrade, tmp_path: Path) -> None:
    with upgrade.old_process() as process:
        made = process.transfer("internal_transfer", "u1", into_spot(ALICE), 10 * UNIT)
        paid = process.transfer("deposit", "d1", deposited(ALICE, "FUNDING"), 50 * UNIT)
        left = process.transfer("external_withdrawal", "w1", withdrawn(ALICE, "FUNDING"), 50 * UNIT)

    async def scene(front: Front) -> None:
        again = await front.transfer(WISH | {"cid": "u1"})
        assert (again.status, again.body["req_id"]) == (200, ulid_of(made))
        assert again.body["duplicate"]
        other = await front.transfer(WISH | {"cid": "u1", "amount": "11"})
        assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH")
        said = await front.desk("POST", "/deposit", DEPOSIT | {"cid": "d1"})
        assert (said.status, said.body["req_id"]) == (200, ulid_of(paid)), said
        other = await front.desk("POST", "/deposit", DEPOSIT | {"cid": "d1", "amount": "51"})
        assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH"), other
        said = await front.desk("POST", "/external_withdrawal", DEPOSIT | {"cid": "w1"})
        assert (said.status, said.body["req_id"]) == (200, ulid_of(left)), said
        # A user's old key does not block an operator, nor a new key of the user.
        fresh = await front.desk("POST", "/deposit", DEPOSIT | {"cid": "u1"})
        assert fresh.status == 201, fresh
        assert fresh.body["req_id"] not in (ulid_of(made), ulid_of(paid))

    play(upgrade.database, tmp_path, scene)


def test_the_engine_knows_old_keys_of_guilds(upgrade: Upgrade, tmp_path: Path) -> None:
    with upgrade.old_process() as process:
        given = deposited(GUILD, f"member:{ANNA}")
        issued = process.transfer("deposit", "issue:i1", given, 300, POINT)
        payment = between_members(GUILD, ANNA, BEN)
        paid = process.transfer("member_transfer", f"{ANNA}:p1", payment, 40, POINT)

    async def scene(front: Front) -> None:
        said = await front.gate.engine.transfer(issue(GUILD, ANNA, 300, "i1"))
        assert isinstance(said, Receipt)
        assert (said.transfer.id, said.duplicate) == (issued, True)
        wanted = Request(
            GUILD, "member_transfer", payment, POINT, 40, f"{ANNA}:p1", space=GUILD_SPACE
        )
        said = await front.gate.engine.transfer(wanted)
        assert isinstance(said, Receipt)
        assert (said.transfer.id, said.duplicate) == (paid, True)

    play(upgrade.database, tmp_path, scene)


def test_points_that_sql_issued_are_not_issued_again_by_the_library(
    old: str, tmp_path: Path
) -> None:
    """SQL wrote another fingerprint then, which nobody can compute any more."""
    rows(old, ISSUE, 700, "s1")
    migrate(old, SCHEMA, FLOWS.values())

    async def scene(front: Front) -> None:
        engine = front.gate.engine
        said = await engine.transfer(issue(GUILD, ANNA, 700, "s1"))
        assert said is Refusal.IDEMPOTENCY_MISMATCH
        assert isinstance(await engine.transfer(issue(GUILD, ANNA, 700, "s2")), Receipt)

    play(old, tmp_path, scene)


def test_the_pool_knows_old_keys(old: str) -> None:
    with psycopg.connect(old, autocommit=True) as sql:
        [(pooled,)] = sql.execute(PAY, (100, "p1")).fetchall()
        [(given,)] = sql.execute(ISSUE, (700, "s1")).fetchall()
        migrate(old, SCHEMA, FLOWS.values())
        assert sql.execute(PAY, (100, "p1")).fetchall() == [(pooled,)]
        assert sql.execute(ISSUE, (700, "s1")).fetchall() == [(given,)]
        assert rows(old, "SELECT FROM inbox") == [], "nothing new was asked for"
        for statement, amount, cid in ((PAY, 101, "p1"), (ISSUE, 701, "s1")):
            with pytest.raises(psycopg.Error, match="IDEMPOTENCY_MISMATCH"):
                sql.execute(statement, (amount, cid))
        assert rows(old, "SELECT FROM inbox") == []


def test_an_old_and_a_new_process_share_the_keys_of_the_pool(old: str) -> None:
    migrate(old, SCHEMA, FLOWS.values())
    with psycopg.connect(old, autocommit=True) as sql:
        [(first,)] = sql.execute(OLD_PAY, (100, "p1")).fetchall()
        assert sql.execute(PAY, (100, "p1")).fetchall() == [(first,)]
        [(second,)] = sql.execute(PAY, (100, "p2")).fetchall()
        assert sql.execute(OLD_PAY, (100, "p2")).fetchall() == [(second,)]
    assert rows(old, "SELECT count(*) FROM inbox") == [(2,)]


def test_points_that_the_library_issued_are_not_issued_again_by_sql(upgrade: Upgrade) -> None:
    with upgrade.old_process() as process:
        given = deposited(GUILD, f"member:{ANNA}")
        process.transfer("deposit", "issue:i1", given, 300, POINT)
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
    assert str(made) in upgrade.refuses(flow, "d1"), "the message names the transfer"
    upgrade.refuses(flow, "d1", amount=51)
    assert upgrade.ask(flow, "d1", owner=BOB) != made, "another owner has keys of their own"
    assert upgrade.ask(flow, "d2") != made


@pytest.mark.parametrize(
    ("old_flow", "asked"),
    [
        ("internal_transfer", "deposit"),
        ("internal_transfer", "external_withdrawal"),
        ("deposit", "external_withdrawal"),
        ("external_withdrawal", "deposit"),
    ],
)
def test_the_inbox_is_not_blocked_by_an_old_key_of_another_flow(
    upgrade: Upgrade, old_flow: str, asked: str
) -> None:
    parties = {"internal_transfer": into_spot(ALICE), "deposit": deposited(ALICE, "FUNDING")}
    with upgrade.old_process() as process:
        cast = parties.get(old_flow) or withdrawn(ALICE, "FUNDING")
        made = process.transfer(old_flow, "x1", cast, 50 * UNIT)
    asked_for = upgrade.ask(asked, "x1")
    assert asked_for != made
    assert upgrade.ask(asked, "x1") == asked_for, "it has a key of its own from now on"


def test_an_old_transfer_without_a_cid_blocks_no_cid(upgrade: Upgrade) -> None:
    with upgrade.old_process() as process:
        made = process.transfer("deposit", None, deposited(ALICE, "FUNDING"), 50 * UNIT)
    assert upgrade.ask("deposit", str(made)) != made, "its id is no cid that a caller chose"
    assert upgrade.ask("deposit", None) != upgrade.ask("deposit", None)


def test_the_inbox_refuses_a_users_old_cid(upgrade: Upgrade) -> None:
    with upgrade.old_process() as process:
        process.transfer("internal_transfer", "u1", into_spot(ALICE), 50 * UNIT)
    upgrade.refuses("internal_transfer", "u1")


def test_a_request_keeps_its_id_when_an_old_process_uses_its_cid_later(old: str) -> None:
    upgrade = Upgrade(old, beside=True)
    with upgrade.old_process() as process:
        first = upgrade.ask("deposit", "d1")
        process.transfer("deposit", "d1", deposited(ALICE, "FUNDING"), 50 * UNIT)
    assert upgrade.ask("deposit", "d1") == first, "its own key goes before one without a space"


def test_the_key_of_an_old_transfer_is_free_when_it_is_forgotten(upgrade: Upgrade) -> None:
    with upgrade.old_process() as process:
        made = process.transfer("deposit", "d1", deposited(ALICE, "FUNDING"), 50 * UNIT)
        process.archive(made)
    upgrade.refuses("deposit", "d1")
    assert [batch.cids for batch in archive(upgrade.database, SCHEMA, ArchiveAges(0, 0))] == [1]
    assert upgrade.ask("deposit", "d1") != made


def test_a_program_can_go_on_after_the_error(database: str) -> None:
    """With its own role and in its own transaction, from which it takes back the one call."""
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
