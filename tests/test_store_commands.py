"""A database is copied or restored, and an operator chooses which one the core serves."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.cluster import cluster_url, create_database, leave_database
from tests.conftest import SCHEMA
from tests.running import tidegate
from tidegate.app import Setup, core_child, open_gate
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import ExternalTransfer

pytestmark = pytest.mark.slow


@pytest.fixture
def restored(database: str) -> Iterator[str]:
    name = str(conninfo_to_dict(database)["dbname"])
    yield create_database(cluster_url(), f"{name}_restored", template=name)
    leave_database(cluster_url(), f"{name}_restored")


def refusal(database: str, address: str) -> str | None:
    """Return the core's refusal of this database. If it does not refuse, make a deposit."""

    async def main() -> str | None:
        async with open_gate(Setup(database, SCHEMA, address)) as gate:
            assert gate.core is not None
            if gate.core.refusal is None:
                paid = await gate.deposit(ExternalTransfer("SPOT", "USDT", "5", "once"), 4001)
                assert isinstance(paid, Receipt)
            return gate.core.refusal

    return asyncio.run(main())


def test_a_restore_is_confirmed_and_a_copy_gets_a_new_identity(
    database: str, restored: str, tmp_path: Path
) -> None:
    with core_child(tmp_path / "core") as address:
        assert refusal(database, address) is None
        assert "MOVED" in (refusal(restored, address) or "")
        arguments = ("--database", restored, "--core", address, "--schema", SCHEMA)
        confirmed = tidegate("store", "confirm", *arguments, "-o", "json")
        assert confirmed.returncode == 0, confirmed.stderr
        assert refusal(restored, address) is None
        assert "MOVED" in (refusal(database, address) or "")
        created = tidegate(
            "store", "new-identity", "--database", database, "--schema", SCHEMA, "-o", "json"
        )
        assert created.returncode == 0, created.stderr
        stores = json.loads(created.stdout)
        assert UUID(stores["before"]) != UUID(stores["store"])
        assert json.loads(confirmed.stdout)["store"] == stores["before"]
        assert "OTHER_STORE" in (refusal(database, address) or "")
        arguments = ("--database", database, "--core", address, "--schema", SCHEMA)
        refused = tidegate("store", "confirm", *arguments)
        assert refused.returncode == 1
        assert f"the core is still bound to store {stores['before']}" in refused.stderr


def test_a_copy_of_the_core_can_serve_another_store(
    database: str, restored: str, tmp_path: Path
) -> None:
    with core_child(tmp_path / "core") as address:
        assert refusal(database, address) is None
        created = tidegate(
            "store", "new-identity", "--database", restored, "--schema", SCHEMA, "-o", "json"
        )
        before = json.loads(created.stdout)["before"]
        arguments = ("--database", restored, "--core", address, "--schema", SCHEMA)
        confirmed = tidegate("store", "confirm", *arguments, "--instead-of", before)
        assert confirmed.returncode == 0, confirmed.stderr
        assert refusal(restored, address) is None


def test_after_confirm_a_connected_worker_of_the_old_database_moves_no_money(
    database: str, restored: str, tmp_path: Path
) -> None:
    async def main(address: str) -> None:
        async with (
            open_gate(Setup(database, SCHEMA, address)) as old,
            open_gate(Setup(database, SCHEMA, address)) as second,
        ):
            for gate, cid in ((old, "one"), (second, "two")):
                assert isinstance(await gate.deposit(five(cid), 4001), Receipt)
            arguments = ("--database", restored, "--core", address, "--schema", SCHEMA)
            confirmed = await asyncio.to_thread(tidegate, "store", "confirm", *arguments)
            assert confirmed.returncode == 0, confirmed.stderr
            for gate, cid in ((old, "late"), (second, "later")):
                receipt = await gate.deposit(five(cid), 4001)
                assert isinstance(receipt, Receipt)
                assert receipt.transfer.state == "CREDITING"  # Open: neither done nor refused.
                assert gate.core is not None
                assert "MOVED" in (gate.core.refusal or "")
            async with open_gate(Setup(restored, SCHEMA, address)) as new:
                assert isinstance(await new.deposit(five("new"), 4001), Receipt)
                assert new.core is not None
                usdt = new.assets["USDT"]
                held = await new.core.balance(4001, "SPOT", usdt.id)
                assert held.amount == 3 * 5 * 10**usdt.decimals

    with core_child(tmp_path / "core") as address:
        asyncio.run(main(address))


def five(cid: str) -> ExternalTransfer:
    return ExternalTransfer("SPOT", "USDT", "5", cid)
