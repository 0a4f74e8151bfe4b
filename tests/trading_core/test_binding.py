"""A core serves one store. Its binding is durable before WELCOME; other stores are refused."""

import asyncio
import zlib
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from tests.trading_core.disks import CountingDisk
from tests.trading_core.local_connection import connect_to
from tests.trading_core.questions import client, client_of, core_at, credit
from tests.trading_core.scenes import ANN, UUID_A, ask, get_answers, running_core
from tests.trading_core.scenes import credit as credit_of
from tests.trading_core.scenes import debit as debit_of
from tests.trading_core.scenes import refund as refund_of
from tidegate.core import wire
from tidegate.core.answers import Done, Rejected
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.refusals import Reason
from tidegate.core.wire import AccountStatus, Binding, CoreOutcome, FrameKind, Hello, SessionRefusal
from tidegate.systems.trading import (
    CoreCaller,
    CoreRefusesService,
    KnownCore,
    RequestNotCarriedOut,
    TradingCoreClient,
)
from tidegate.trading_core import snapshot, wal
from tidegate.trading_core.disk import RealDisk
from tidegate.trading_core.requests import BindingChanged, RequestDeclined

HERE = Binding("store", "here")


def test_the_first_store_that_connects_is_bound_before_it_is_welcomed(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = CountingDisk(RealDisk(tmp_path))
        async with running_core(disk) as core:
            syncs = disk.counts["fdatasync"]
            trading = client_of(core, "store", "here")
            await trading.totals()
            assert disk.counts["fdatasync"] > syncs
            assert core.book.binding == HERE
            await trading.close()
        async with running_core(RealDisk(tmp_path)) as core:
            assert core.book.binding == HERE

    asyncio.run(scene())


def test_another_store_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    async def scene() -> None:
        refusals: list[str] = []
        async with core_at(tmp_path) as core:
            ours = client_of(core, "store", "here")
            other = client_of(core, "another", "here", refusals.append)
            await ours.ask([credit(1, 5)])
            with pytest.raises(
                CoreRefusesService, match="OTHER_STORE: this core serves store store"
            ):
                await other.ask([credit(2, 5)])
            assert "start another core for this store" in refusals[0]
            assert (await ours.totals()).sums == {("SPOT", 7): 5}
            await ours.close()

    asyncio.run(scene())


def test_of_two_stores_that_connect_at_once_only_one_is_served(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            both = [client_of(core, name, "here") for name in ("east", "west")]
            results = await asyncio.gather(*(t.totals() for t in both), return_exceptions=True)
            assert sum(isinstance(r, CoreRefusesService) for r in results) == 1
            served = [t for t, r in zip(both, results, strict=True) if not isinstance(r, Exception)]
            assert [core.book.binding.store] == ["east" if served == both[:1] else "west"]
            for trading in served:
                await trading.close()

    asyncio.run(scene())


def test_a_store_in_another_database_is_refused_until_a_restore_is_confirmed(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            before, after = client_of(core, "store", "here"), client_of(core, "store", "there")
            await before.totals()
            await before.close()
            with pytest.raises(CoreRefusesService, match=r"MOVED: .*`tidegate store confirm`"):
                await after.totals()
            operator = client_of(core, "", "")
            there = Binding("store", "there")
            assert await operator.rebind("another", there) == HERE  # It serves another store.
            assert await operator.rebind("store", there) == there
            assert await operator.rebind("store", there) == there
            await after.totals()
            await after.close()
            with pytest.raises(CoreRefusesService, match="MOVED"):
                await before.totals()
            await operator.snapshot()
            await operator.close()
        async with core_at(tmp_path) as core:
            assert core.book.binding == Binding("store", "there")

    asyncio.run(scene())


def test_a_session_of_the_old_database_reads_nothing_after_a_rebind(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            await core.submit(FrameKind.BIND, wire.pack(HERE))
            moved = wire.Rebinding("store", Binding("store", "there"))
            await core.submit(FrameKind.REBIND, wire.pack(moved), Binding())
            for kind in (FrameKind.QUERY, FrameKind.BALANCES, FrameKind.TOTALS):
                with pytest.raises(BindingChanged, match="connect again"):
                    core.submit(kind, b"", HERE)

    asyncio.run(scene())


def test_a_client_that_is_refused_as_behind_does_not_bind_its_store(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            mark = wire.HistoryMark(core.mark.uuid, 99, 1, 1)
            trading = client(connect_to(core), mark)
            with pytest.raises(CoreRefusesService, match="BEHIND"):
                await trading.totals()
            assert core.book.binding == Binding()

    asyncio.run(scene())


def test_an_administrator_binds_no_store(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            operator = client_of(core, "", "")
            await operator.totals()
            await operator.close()
            assert core.book.binding == Binding()

    asyncio.run(scene())


def test_an_older_client_is_refused_by_its_protocol(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path), uuid=UUID_A) as core:
            older = wire.unpack_hello(b"\x95\x01\xa5store\xa1p\xc0\x00")
            assert older == Hello(1, "store", "p", None)
            refusal = core.refusal_of(older)
            assert refusal is not None
            assert refusal.code == SessionRefusal.PROTOCOL
            assert "run the same version of both" in refusal.message

    asyncio.run(scene())


def test_a_bind_request_from_a_client_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            operator = client_of(core, "", "")
            with pytest.raises(Exception, match="no request has kind 24"):
                await operator._call(FrameKind.BIND, wire.pack(HERE))
            assert core.book.binding == Binding()

    asyncio.run(scene())


def _older_snapshot(content: bytes) -> bytes:
    """The snapshot in format 1, with floors by store and without a binding."""
    head = list(snapshot.HEADER.unpack_from(content))
    floors = msgspec.msgpack.encode({"east": (4).to_bytes(16), "west": (9).to_bytes(16)})
    rest = content[snapshot.HEADER.size + head[-1] : -4]
    head[1], head[-1] = 1, len(floors)
    older = snapshot.HEADER.pack(*head) + floors + rest
    return older + zlib.crc32(older).to_bytes(4)


@pytest.mark.parametrize("source", ["log", "snapshot"])
def test_a_directory_of_an_earlier_version_is_read_and_bound_to_the_first_store(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lowest floor of its stores applies, until the bound store raises it."""

    async def before() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            await get_answers(core, *(credit_of(number, 1) for number in range(1, 11)))
            if source == "snapshot":
                await core.submit(FrameKind.RETIRE, (4).to_bytes(16))
                await core.submit(FrameKind.SNAPSHOT, b"")
                return
            sections = [
                wal.pack_section(wal.RecordKind.FLOOR, 1, floor.to_bytes(16) + store)
                for store, floor in ((b"east", 0), (b"west", 9), (b"east", 4))
            ]
            await core.log.append(3, b"".join(sections))

    async def after() -> None:
        async with core_at(tmp_path) as core:
            assert core.book.floor >> 32 == 4
            trading = client_of(core, "east", "here")
            assert await trading.retire(UUID(int=7)) == UUID(int=7)
            await trading.snapshot()
            await trading.close()
        async with core_at(tmp_path) as core:
            assert core.book.floor >> 32 == 7
            assert core.book.binding == Binding("east", "here")

    with monkeypatch.context() as older:
        older.setattr(wal, "FORMAT", 1)
        asyncio.run(before())
    for path in tmp_path.glob("snapshot-*"):
        path.write_bytes(_older_snapshot(path.read_bytes()))
    asyncio.run(after())


def test_assets_are_sent_with_the_hello_and_again_when_one_is_added(tmp_path: Path) -> None:
    async def scene() -> None:
        known = {7}

        async def load() -> KnownCore:
            return KnownCore("store", "here", frozenset(known))

        async with core_at(tmp_path) as core:
            core.book.assets = frozenset()
            trading = TradingCoreClient("core", connect_to(core), CoreCaller("worker"), load)
            assert await trading.ask([credit(1, 5)]) == [Done({"position": "3"})]
            eight = replace(credit(2, 5), asset_id=8)
            [refused] = await trading.ask([eight])
            assert refused == Rejected(Reason.INVALID_ASSET, {"position": "4"})
            known.add(8)
            assert await trading.ask([replace(eight, transfer_id=UUID(int=3))]) == [
                Done({"position": "6"})
            ]
            # An operation that was refused under its key stays refused.
            [again] = await trading.ask([eight])
            assert isinstance(again, Rejected)
            assert core.book.assets == {7, 8}
            await trading.close()
        async with core_at(tmp_path) as core:
            assert core.book.assets == {7, 8}

    asyncio.run(scene())


def test_an_owner_and_an_asset_are_checked_by_the_client_too(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            trading = client_of(core, "store", "here")
            no_owner = replace(credit(1, 5), party=Party("core", "SPOT", 0))
            undo = replace(no_owner, verb=Verb.REFUND, version=1, undoes=0, transfer_id=UUID(int=9))
            [refused, undone] = await trading.ask([no_owner, undo])
            assert isinstance(refused, Rejected)
            assert refused.reason == Reason.INVALID_OWNER
            assert isinstance(undone, Done)  # An undo is never refused for this.
            assert core.book.balance(wire.account(1, 7, 0)) == 0
            await trading.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("to", "outcome"),
    [
        (wire.account(1, 5, 0), CoreOutcome.INVALID_OWNER),
        (wire.account(1, 5, 2**63), CoreOutcome.INVALID_OWNER),
        (wire.account(1, 0, 4), CoreOutcome.INVALID_ASSET),
        (wire.account(1, 777, 4), CoreOutcome.INVALID_ASSET),
    ],
)
def test_the_core_refuses_an_owner_or_asset_that_does_not_exist_for_ever(
    tmp_path: Path, to: bytes, outcome: CoreOutcome
) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            operations = credit_of(1, 5, to), debit_of(2, 5, to), refund_of(3, 5, expect_done=False)
            outcomes = [g.outcome for g in await get_answers(core, *operations)]
            assert outcomes == [outcome, outcome, CoreOutcome.TOMBSTONE]
            core.book.assets |= {777}
            assert [g.outcome for g in await get_answers(core, *operations)] == outcomes
            assert core.book.balance(to) == 0

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("to", "message"),
    [
        (wire.account(1, 5, 0), "INVALID_OWNER"),
        (wire.account(1, 5, 2**63), "INVALID_OWNER"),
        (wire.account(1, 0, 4), "INVALID_ASSET"),
        (wire.account(1, 777, 4), "INVALID_ASSET"),
    ],
)
def test_a_status_opens_no_account_of_an_owner_or_asset_that_does_not_exist(
    tmp_path: Path, to: bytes, message: str
) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            before = core.log_position
            for status in (AccountStatus.ACTIVE, AccountStatus.FROZEN, AccountStatus.DISABLED):
                with pytest.raises(RequestDeclined, match=message):
                    await core.submit(FrameKind.SET_STATUS, wire.STATUS.pack(to, status))
            assert (core.log_position, core.book.accounts) == (before, {})
            [answer] = await get_answers(core, credit_of(1, 5, to))
            assert answer.outcome.name == message
            # The refused operation gave the account a number, but that does not open it.
            with pytest.raises(RequestDeclined, match=message):
                await core.submit(FrameKind.SET_STATUS, wire.STATUS.pack(to, AccountStatus.ACTIVE))

    asyncio.run(scene())


def test_a_refused_status_leaves_the_rest_of_its_batch_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            first = ask(core, credit_of(1, 5))
            status = wire.STATUS.pack(wire.account(1, 777, 4), AccountStatus.ACTIVE)
            refused = core.submit(FrameKind.SET_STATUS, status)
            second = ask(core, credit_of(2, 6))
            outcomes = {(await reply)[wire.STAMP.size] for reply in (first, second)}
            assert outcomes == {CoreOutcome.DONE}
            with pytest.raises(RequestDeclined):
                await refused
            assert core.book.balance(ANN) == 11

    asyncio.run(scene())


def test_the_client_learns_why_a_status_was_refused_and_stays_connected(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            trading = client_of(core, "store", "here")
            await trading.totals()
            link = trading._connection
            with pytest.raises(
                RequestNotCarriedOut, match="INVALID_ASSET: asset 777 does not exist"
            ):
                await trading.set_status(4, "SPOT", 777, AccountStatus.ACTIVE)
            with pytest.raises(RequestNotCarriedOut, match="INVALID_OWNER: owner 0 does not exist"):
                await trading.set_status(0, "SPOT", 7, AccountStatus.ACTIVE)
            await trading.set_status(4, "SPOT", 7, AccountStatus.FROZEN)
            assert trading._connection is link
            assert core.book.status(wire.account(1, 7, 4)) == AccountStatus.FROZEN
            assert trading.refusal is None
            await trading.close()

    asyncio.run(scene())


def test_a_status_of_an_asset_that_was_added_meanwhile_is_accepted(tmp_path: Path) -> None:
    async def scene() -> None:
        known = {7}

        async def load() -> KnownCore:
            return KnownCore("store", "here", frozenset(known))

        async with core_at(tmp_path) as core:
            core.book.assets = frozenset()
            trading = TradingCoreClient("core", connect_to(core), CoreCaller("worker"), load)
            await trading.totals()
            known.add(8)
            await trading.set_status(4, "SPOT", 8, AccountStatus.FROZEN)
            assert core.book.status(wire.account(1, 8, 4)) == AccountStatus.FROZEN
            await trading.close()

    asyncio.run(scene())


@pytest.mark.parametrize("invalid", [wire.account(1, 777, 4), wire.account(1, 5, 0)])
def test_a_log_in_which_a_status_opened_an_invalid_account_still_replays(
    tmp_path: Path, invalid: bytes
) -> None:
    """An earlier version accepted it. Its decision holds, and the account can be closed."""

    async def before() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            record = wire.STATUS.pack(invalid, AccountStatus.ACTIVE)
            await core.log.append(1, wal.pack_section(wal.RecordKind.STATUS, 1, record))

    async def after() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            assert core.book.status(invalid) == AccountStatus.ACTIVE
            await core.submit(
                FrameKind.SET_STATUS, wire.STATUS.pack(invalid, AccountStatus.DISABLED)
            )
            [answer] = await get_answers(core, credit_of(1, 5, invalid))
            assert answer.outcome == CoreOutcome.ACCOUNT_DISABLED

    asyncio.run(before())
    asyncio.run(after())
