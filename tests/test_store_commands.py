"""A database is copied and restored, and people say which of the two the core shall serve."""

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
    """What the core says to this database; if it serves, money goes through it."""

    async def whole() -> str | None:
        async with open_gate(Setup(database, SCHEMA, address)) as gate:
            assert gate.core is not None
            if gate.core.refusal is None:
                paid = await gate.deposit(ExternalTransfer("SPOT", "USDT", "5", "once"), 4001)
                assert isinstance(paid, Receipt)
            return gate.core.refusal

    return asyncio.run(whole())


def test_a_restore_is_confirmed_and_a_copy_gets_a_new_identity(
    database: str, restored: str, tmp_path: Path
) -> None:
    with core_child(tmp_path / "core") as address:
        assert refusal(database, address) is None
        assert "MOVED" in (refusal(restored, address) or "")
        words = ("--database", restored, "--core", address, "--schema", SCHEMA)
        told = tidegate("store", "confirm", *words, "-o", "json")
        assert told.returncode == 0, told.stderr
        assert refusal(restored, address) is None
        assert "MOVED" in (refusal(database, address) or "")
        made = tidegate(
            "store", "new-identity", "--database", database, "--schema", SCHEMA, "-o", "json"
        )
        assert made.returncode == 0, made.stderr
        told_of = json.loads(made.stdout)
        assert UUID(told_of["before"]) != UUID(told_of["store"])
        assert json.loads(told.stdout)["store"] == told_of["before"]
        assert "OTHER_STORE" in (refusal(database, address) or "")
        words = ("--database", database, "--core", address, "--schema", SCHEMA)
        refused = tidegate("store", "confirm", *words)
        assert refused.returncode == 1
        assert f"the core serves store {told_of['before']}" in refused.stderr


def test_a_copy_of_the_core_is_told_which_store_it_serves_instead(
    database: str, restored: str, tmp_path: Path
) -> None:
    with core_child(tmp_path / "core") as address:
        assert refusal(database, address) is None
        made = tidegate(
            "store", "new-identity", "--database", restored, "--schema", SCHEMA, "-o", "json"
        )
        before = json.loads(made.stdout)["before"]
        words = ("--database", restored, "--core", address, "--schema", SCHEMA)
        told = tidegate("store", "confirm", *words, "--instead-of", before)
        assert told.returncode == 0, told.stderr
        assert refusal(restored, address) is None


def test_a_worker_of_the_old_database_that_is_still_connected_moves_nothing_after_confirm(
    database: str, restored: str, tmp_path: Path
) -> None:
    async def whole(address: str) -> None:
        async with (
            open_gate(Setup(database, SCHEMA, address)) as old,
            open_gate(Setup(database, SCHEMA, address)) as second,
        ):
            for gate, cid in ((old, "one"), (second, "two")):
                assert isinstance(await gate.deposit(five(cid), 4001), Receipt)
            words = ("--database", restored, "--core", address, "--schema", SCHEMA)
            told = await asyncio.to_thread(tidegate, "store", "confirm", *words)
            assert told.returncode == 0, told.stderr
            for gate, cid in ((old, "late"), (second, "later")):
                receipt = await gate.deposit(five(cid), 4001)
                assert isinstance(receipt, Receipt)
                assert receipt.transfer.state == "CREDITING"  # Neither done nor refused.
                assert gate.core is not None
                assert "MOVED" in (gate.core.refusal or "")
            async with open_gate(Setup(restored, SCHEMA, address)) as new:
                assert isinstance(await new.deposit(five("new"), 4001), Receipt)
                assert new.core is not None
                usdt = new.assets["USDT"]
                held = await new.core.balance(4001, "SPOT", usdt.id)
                assert held.amount == 3 * 5 * 10**usdt.decimals

    with core_child(tmp_path / "core") as address:
        asyncio.run(whole(address))


def five(cid: str) -> ExternalTransfer:
    return ExternalTransfer("SPOT", "USDT", "5", cid)
