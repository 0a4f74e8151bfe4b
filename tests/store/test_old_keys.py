"""Keys from before the key spaces are found after an upgrade, with the fingerprints stored then."""

import asyncio
import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.conftest import SCHEMA
from tests.service.rig import ALICE, Front, fronted
from tests.store.scenario import rows, superuser
from tidegate.core.transfer import Party
from tidegate.engine.births import Receipt
from tidegate.engine.forms import issue
from tidegate.flows import FLOWS
from tidegate.service.shapes import ulid_of
from tidegate.store import migrate as module
from tidegate.store.migrate import Migration, migrate, migrations

# The last migrations of the version before the key spaces.
LAST = {"shared": 1, "store": 6, "economy": 2}
GUILD, ANNA, BEN = 77, 1, 2
USDT, POINT = 3, 6
UNIT = 10**6


def old_fingerprint(flow: str, parties: Mapping[str, Party], asset_id: int, amount: int) -> bytes:
    """As that version computed it."""
    body: tuple[object, ...] = (flow, sorted(parties.items()), asset_id, str(amount), [])
    return hashlib.sha256(msgspec.json.encode(body)).digest()[:16]


@pytest.fixture
def old(bare: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database as that version left it, but for the flows, which are installed as they are."""

    def until_then(folder: str) -> list[Migration]:
        return [m for m in migrations(folder) if m.number <= LAST[folder]]

    with monkeypatch.context() as patch:
        patch.setattr(module, "migrations", until_then)
        migrate(bare, SCHEMA, FLOWS.values())
    return bare


class Old:
    """Writes what that version wrote: a bare key, its fingerprint, a transfer at its end."""

    def __init__(self, database: str) -> None:
        self.database = database

    def key(
        self, owner: int, cid: str, parties: Mapping[str, Party], amount: int, asset_id: int = USDT
    ) -> UUID:
        flow = "deposit" if "suspense" in parties else "internal_transfer"
        id_ = UUID(int=(int(time.time() * 1000) << 80) | (uuid4().int & (1 << 80) - 1))
        print_ = old_fingerprint(flow, parties, asset_id, amount)
        with superuser(self.database) as sql:
            sql.execute("INSERT INTO cids VALUES (%s, %s, %s, %s)", (owner, cid, print_, id_))
            sql.execute(
                "INSERT INTO transfers (id, owner, flow, state, due_at, version, attempts, retries,"
                " paged, parties, asset_id, amount, cid, head_hash, created_at, updated_at)"
                " VALUES (%s, %s, %s, %s, now(), 1, 0, 0, false, %s, %s, %s, %s, %s, now(), now())",
                (
                    id_,
                    owner,
                    flow,
                    "COMPLETED" if flow == "deposit" else "COMMITTED",
                    Jsonb({r: [p.system, p.book, p.owner] for r, p in parties.items()}),
                    asset_id,
                    amount,
                    cid,
                    bytes(32),
                ),
            )
        return id_


def deposit_parties(owner: int, book: str) -> dict[str, Party]:
    return {
        "source": Party("ledger", "OUTSIDE", owner),
        "target": Party("ledger", book, owner),
        "suspense": Party("ledger", "SUSPENSE", owner),
    }


def into_spot(owner: int) -> dict[str, Party]:
    return {"source": Party("ledger", "FUNDING", owner), "target": Party("core", "SPOT", owner)}


def test_old_keys_of_users_and_operators_are_known_after_an_upgrade(
    old: str, tmp_path: Path
) -> None:
    made = Old(old).key(ALICE, "u1", into_spot(ALICE), 10 * UNIT)
    paid = Old(old).key(ALICE, "d1", deposit_parties(ALICE, "FUNDING"), 50 * UNIT)
    migrate(old, SCHEMA, FLOWS.values())
    wish = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "10", "cid": "u1"}
    deposit = {"user_id": ALICE, "account": "FUNDING", "asset": "USDT", "amount": "50"}

    async def whole() -> None:
        async with fronted(old, tmp_path) as front:
            again = await front.transfer(wish)
            assert (again.status, again.body["req_id"]) == (200, ulid_of(made))
            assert again.body["duplicate"]
            other = await front.transfer(wish | {"amount": "11"})
            assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH")
            said = await front.desk("POST", "/deposit", deposit | {"cid": "d1"})
            assert (said.status, said.body["req_id"]) == (200, ulid_of(paid)), said
            # A user's old key does not block an operator, nor a new key of the user.
            fresh = await front.desk("POST", "/deposit", deposit | {"cid": "u1"})
            assert fresh.status == 201, fresh
            assert fresh.body["req_id"] not in (ulid_of(made), ulid_of(paid))

    asyncio.run(whole())


def test_old_keys_of_guilds_are_known_after_an_upgrade(old: str, tmp_path: Path) -> None:
    member = deposit_parties(GUILD, f"member:{ANNA}")
    issued = Old(old).key(GUILD, "issue:i1", member, 300, POINT)
    pay = f"SELECT economy.fn_create_pending_transfer({GUILD}, {ANNA}, {BEN}, %s, p_cid => 'p1')"
    give = f"SELECT economy.fn_issue_currency({GUILD}, {ANNA}, %s, 's1')"
    with psycopg.connect(old, autocommit=True) as sql:
        [(pooled,)] = sql.execute(pay, (100,)).fetchall()
        [(given,)] = sql.execute(give, (700,)).fetchall()
        migrate(old, SCHEMA, FLOWS.values())
        assert sql.execute(pay, (100,)).fetchall() == [(pooled,)]
        assert sql.execute(give, (700,)).fetchall() == [(given,)]

    async def whole(front: Front) -> None:
        said = await front.gate.engine.transfer(issue(GUILD, ANNA, 300, "i1"))
        assert isinstance(said, Receipt)
        assert (said.transfer.id, said.duplicate) == (issued, True)

    async def fronts() -> None:
        async with fronted(old, tmp_path) as front:
            await whole(front)

    asyncio.run(fronts())
    assert rows(old, "SELECT FROM inbox") == [], "nothing new was asked for"
