"""The client of the trading core, with the real core in the same process."""

import asyncio
import contextlib
from pathlib import Path
from uuid import UUID

import pytest

from tests.conftest import SCHEMA
from tests.trading_core.local_connection import connect_to
from tests.trading_core.questions import (
    SPOT,
    client,
    core_at,
    credit,
    debit,
    known_core_loader,
    refund,
    served,
)
from tests.trading_core.scenes import ASSETS, TEST_LIMITS, UUID_A, UUID_B
from tidegate.core import wire
from tidegate.core.answers import Alarm, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.ports import Remembering, SqlTransaction, System
from tidegate.core.transfer import Question
from tidegate.core.wire import AccountStatus, CoreOutcome, HistoryMark, Streams
from tidegate.store.postgres import PostgresStore
from tidegate.systems.trading import (
    CoreBalance,
    CoreCaller,
    CoreRefusesService,
    KnownCore,
    TradingCoreClient,
    load_known_core,
    newest,
    worker_name,
)
from tidegate.systems.trading.client import ALARMS, DOUBTS, EMPTY, REASONS
from tidegate.trading_core.core import Core


def test_it_is_a_system_that_stores_its_mark(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (_, trading):
            system: System = trading
            assert system.reversible
            assert isinstance(trading, Remembering)

    asyncio.run(scene())


def test_a_process_on_a_host_with_the_longest_name_is_served(tmp_path: Path) -> None:
    hosts = ["h" * 63 + "1", "h" * 63 + "2", "é" * 64, "short"]
    names = [worker_name(host, pid) for host in hosts for pid in (1, 4_194_304)]
    assert len(set(names)) == len(names)
    assert names[-2:] == ["short-1", "short-4194304"]

    async def scene() -> None:
        async with core_at(tmp_path) as core:
            for name in names:
                trading = TradingCoreClient(
                    "core", connect_to(core), CoreCaller(name), known_core_loader()
                )
                await trading.totals()
                await trading.close()

    asyncio.run(scene())


def test_questions_are_answered_in_order(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (_, trading):
            answers = await trading.ask(
                [credit(1, 100), debit(2, 40), debit(3, 500), refund(2, 40), refund(3, 500)]
            )
            assert answers == [
                Done({"position": "2"}),
                Done({"position": "3"}),
                Rejected("INSUFFICIENT_BALANCE", {"position": "4"}),
                Done({"position": "5"}),
                Unknown("UNDO_UNFOUNDED", Alarm.HALT),
            ]
            assert await trading.ask([]) == []

    asyncio.run(scene())


def test_which_answers_page(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (_, trading):
            await trading.ask([credit(5, 100)])
            [reused] = await trading.ask([credit(5, 101)])
            assert reused == Unknown("KEY_REUSED", Alarm.PAGE)
            assert await trading.ask([refund(6, 1, expect_done=False)]) == [
                Done({"position": "3", "delta": "0"})
            ]
            assert await trading.retire(UUID(int=6)) == UUID(int=6) == trading.floor
            assert await trading.ask([credit(5, 100)]) == [Unknown("RETIRED", Alarm.PAGE)]

    asyncio.run(scene())


def test_every_outcome_has_an_answer() -> None:
    for outcome in set(CoreOutcome) - {CoreOutcome.NOTHING}:
        kinds = [
            outcome == CoreOutcome.DONE,
            outcome in EMPTY,
            outcome in REASONS,
            outcome in DOUBTS,
        ]
        assert sum(kinds) == 1, outcome
        assert (outcome in DOUBTS) == (outcome >= 32)
    assert ALARMS[CoreOutcome.BUSY] is Alarm.NONE


@pytest.mark.parametrize(
    "question",
    [
        credit(1, -1),
        credit(1, 2**128),
        credit(1, 5, Party("core", "FUNDING", 1)),
        credit(1, 5, Party("core", "SPOT", -1)),
        credit(1, 5, Party("core", "SPOT", 2**64)),
        Question(UUID(int=1), 0, Verb.HOLD, SPOT, 7, 5),
        Question(UUID(int=1), 1, Verb.REFUND, SPOT, 7, 5),
        Question(UUID(int=1), 1, Verb.CREDIT, SPOT, 7, 5, undoes=0),
        Question(UUID(int=1), 0, Verb.CREDIT, SPOT, 2**32, 5),
        Question(UUID(int=1), 2**32, Verb.CREDIT, SPOT, 7, 5),
        Question(UUID(int=1), 1, Verb.REFUND, SPOT, 7, 5, undoes=-1),
    ],
)
def test_a_question_that_the_wire_cannot_express_is_unknown_and_does_not_affect_others(
    tmp_path: Path, question: Question
) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (_, trading):
            answers = await trading.ask([credit(8, 1), question, credit(9, 1)])
            assert answers[1] == Unknown("MALFORMED", Alarm.PAGE)
            assert isinstance(answers[0], Done)
            assert isinstance(answers[2], Done)

    asyncio.run(scene())


def test_administration_and_reading(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (core, trading):
            future = Party("core", "FUTURE", 1)
            await trading.ask([credit(1, 100), credit(2, 50, future), debit(3, 500)])
            assert await trading.balance(1, "SPOT", 7) == CoreBalance(AccountStatus.ACTIVE, 100)
            assert await trading.balance(2, "SPOT", 7) == CoreBalance(AccountStatus.ABSENT, 0)
            totals = await trading.totals()
            assert totals.sums == {("SPOT", 7): 100, ("FUTURE", 7): 50}
            assert totals.position == core.log_position.position
            await trading.set_status(1, "SPOT", 7, AccountStatus.FROZEN)
            assert await trading.ask([debit(4, 1)]) == [
                Rejected("ACCOUNT_FROZEN", {"position": "6"})
            ]
            keys = [(UUID(int=1), 0), (UUID(int=3), 0), (UUID(int=1), 1)]
            assert await trading.query(keys) == [
                Done({"position": "2"}),
                Rejected("INSUFFICIENT_BALANCE", {"position": "4"}),
                None,
            ]
            await trading.snapshot()
            assert len(await asyncio.to_thread(lambda: list(tmp_path.glob("snapshot-*")))) == 1

    asyncio.run(scene())


def test_more_questions_than_fit_one_request_are_asked_in_several(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (core, trading):
            questions = [credit(n, 1) for n in range(1, wire.MAX_OPERATIONS + 10)]
            answers = await trading.ask(questions)
            assert [a.evidence["position"] for a in answers if isinstance(a, Done)] == [
                str(n + 1) for n in range(1, wire.MAX_OPERATIONS + 10)
            ]
            assert (await trading.balance(1, "SPOT", 7)).amount == len(questions)
            assert core.log_position.position == len(questions) + 1

    asyncio.run(scene())


def test_busy_is_unknown_without_a_page_and_the_same_key_executes_later(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(tmp_path, TEST_LIMITS._replace(queue_operations=4)) as (core, trading):
            await trading.totals()  # Connected.
            asks = [trading.ask([credit(n, 1), credit(n + 100, 1)]) for n in range(1, 8)]
            answers = await asyncio.gather(*asks)
            busy = [i for i, answer in enumerate(answers) if answer == [Unknown("BUSY")] * 2]
            assert busy
            assert core.book.position == 1 + 2 * (7 - len(busy))
            for index in busy:
                again = await trading.ask([credit(index + 1, 1), credit(index + 101, 1)])
                assert all(isinstance(answer, Done) for answer in again)
            assert (await trading.balance(1, "SPOT", 7)).amount == 14

    asyncio.run(scene())


def test_many_asks_run_at_the_same_time_on_one_connection(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (core, trading):
            asks = [trading.ask([credit(n, n)]) for n in range(1, 201)]
            answers = await asyncio.gather(*asks)
            events = {}
            async for event in trading.events(0):
                events[event.transfer_id.int] = str(event.position)
                if event.position == core.log_position.position:
                    break
            assert [a.evidence["position"] for [a] in answers if isinstance(a, Done)] == [
                events[n] for n in range(1, 201)
            ]
            assert len(core.marks.positions) < 100  # The core combined them into a few frames.

    asyncio.run(scene())


def test_a_refusal_contains_its_reason_and_pages(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            pages: list[str] = []
            other_core = HistoryMark(UUID(bytes=UUID_B), 3, 0, 1)
            trading = client(connect_to(core), other_core, on_refused=pages.append)
            with pytest.raises(CoreRefusesService, match="OTHER_CORE"):
                await trading.ask([credit(1, 1)])
            assert trading.refusal is not None
            assert pages == [trading.refusal]
            assert core.book.position == 0  # The core has not even registered the store.

    asyncio.run(scene())


def test_the_mark_of_this_process_counts_even_before_it_is_stored(tmp_path: Path) -> None:
    async def scene() -> None:
        cores: list[Core] = []

        async def connect() -> Streams:
            return await connect_to(cores[-1])()

        trading = client(connect)
        async with core_at(tmp_path / "a") as core:
            cores.append(core)
            await trading.ask([credit(1, 1)])
        async with core_at(tmp_path / "b", uuid=UUID_B) as other:
            cores.append(other)
            with pytest.raises(Unreachable, match=r"was lost|OTHER_CORE"):
                await trading.ask([credit(1, 1)])
            with pytest.raises(CoreRefusesService, match="OTHER_CORE"):
                await trading.ask([credit(1, 1)])
        async with core_at(tmp_path / "a") as core:
            cores.append(core)
            assert await trading.ask([credit(1, 1)]) == [Done({"position": "2"})]
            assert trading.refusal is None
            assert trading.mark is not None
            assert trading.mark.epoch == 2
            await trading.close()

    asyncio.run(scene())


def test_an_answer_from_an_earlier_start_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (core, trading):
            await trading.ask([credit(1, 1)])
            assert trading.mark is not None
            trading.mark = HistoryMark(core.mark.uuid, 3, 0, core.epoch + 1)
            with pytest.raises(CoreRefusesService, match=r"answered from epoch \d+, before"):
                await trading.ask([credit(2, 1)])

    asyncio.run(scene())


def test_events_too_old_are_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (_, trading):
            for number in range(1, 4):
                await trading.ask([credit(number, 1)])
                await trading.snapshot()
            with pytest.raises(Unreachable, match="EVENTS_GONE"):
                async for _ in trading.events(0):
                    pass
            assert trading.refusal is None  # No money is lost, so this does not page.

    asyncio.run(scene())


def test_the_newest_mark_is_used_and_two_cores_are_refused() -> None:
    one, other = UUID(bytes=UUID_A), UUID(bytes=UUID_B)
    assert newest([]) is None
    marks = [HistoryMark(one, 5, 55, 3), HistoryMark(one, 9, 99, 2), HistoryMark(one, 9, 99, 1)]
    assert newest(marks) == HistoryMark(one, 9, 99, 3)
    with pytest.raises(CoreRefusesService, match="several cores"):
        newest([*marks, HistoryMark(other, 1, 1, 1)])
    with pytest.raises(CoreRefusesService, match="two histories"):
        newest([*marks, HistoryMark(one, 9, 98, 3)])


def test_the_stored_mark_is_sent_in_the_next_hello(tmp_path: Path, database: str) -> None:
    async def scene() -> None:
        async with PostgresStore(database, SCHEMA) as store, core_at(tmp_path) as core:

            async def load_known() -> KnownCore:
                async with store.transaction() as tx:
                    return (await load_known_core(tx, "core"))._replace(assets=ASSETS)

            async def marks() -> HistoryMark | None:
                return (await load_known()).mark

            pages: list[str] = []

            def worker(name: str) -> TradingCoreClient:
                caller = CoreCaller(name)
                return TradingCoreClient("core", connect_to(core), caller, load_known, pages.append)

            first, second = worker("one"), worker("two")
            assert await marks() is None
            async with store.transaction() as tx:
                await first.remember(tx)  # There is no mark yet.
            assert await marks() is None
            for trading, number in ((first, 1), (second, 2), (first, 3)):
                await trading.ask([credit(number, 1)])
                async with store.transaction() as tx:
                    await trading.remember(tx)
                assert await marks() == trading.mark == core.mark
            # After a rollback the next transaction stores the mark, without a new answer.
            await second.ask([credit(4, 1)])
            with contextlib.suppress(ZeroDivisionError):
                async with store.transaction() as tx:
                    await second.remember(tx)
                    raise ZeroDivisionError
            assert await marks() != second.mark
            async with store.transaction() as tx:
                await second.remember(tx)
            assert await marks() == second.mark
            await _insert_mark_of_another_core(store)
            with pytest.raises(CoreRefusesService, match="several cores"):
                await worker("three").ask([credit(5, 1)])
            assert "several cores" in pages[0]
            await first.close()
            await second.close()

    asyncio.run(scene())


async def _insert_mark_of_another_core(store: PostgresStore) -> None:
    async with store.transaction() as tx:
        await _insert(tx)


async def _insert(tx: SqlTransaction) -> None:
    await tx.post(
        "INSERT INTO core_positions VALUES ('core', 'other process', %(uuid)s, 1, 1, 1)",
        {"uuid": UUID(bytes=UUID_B)},
    )
