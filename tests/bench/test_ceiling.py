"""The ceiling: sessions that share no owner, nothing refused, and every balance as recorded."""

import asyncio
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from msgspec import structs

from bench.__main__ import recorded
from bench.cases import CEILING, SMALL
from bench.ceiling import BATCH, load, play, share_of, verify, within_share
from bench.running import Extra, Timing, run
from bench.spec import STORE, Spec
from bench.traffic import Traffic
from bench.world import World
from tidegate.store.postgres import PostgresStore

TINY = Timing(seconds=0.4, warm_s=0.2)
SPEC = Spec(kind="ceiling", database="", core="", inflight=4, seconds=0.3, warm_s=0.1)


def test_every_owner_is_in_exactly_one_share() -> None:
    shares = [share_of(SMALL, 4, number) for number in range(4)]
    assert sorted(owner for share in shares for owner in share) == list(range(1, SMALL + 1))
    assert min(map(len, shares)) >= BATCH


def test_orders_of_a_share_are_the_same_orders_by_others() -> None:
    traffic, share = Traffic(SPEC), share_of(SMALL, 4, 2)
    orders = [traffic.order(number) for number in range(BATCH)]
    moved = within_share(orders, share, random.Random(1))
    assert {order.owner for order in moved} <= set(share)
    kept = [(order.inward, order.amount, order.cid) for order in orders]
    assert [(order.inward, order.amount, order.cid) for order in moved] == kept
    # A batch locks as many accounts as before: who came twice comes twice, and nobody else.
    pairs = {(before.owner, after.owner) for before, after in zip(orders, moved, strict=True)}
    assert len(pairs) == len({o.owner for o in orders}) == len({o.owner for o in moved})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("ceiling")) as world:
        yield world


@pytest.fixture(scope="module")
def tape(world: World) -> str:
    return recorded(world, TINY)


@pytest.mark.slow
def test_no_two_tapes_have_an_owner_in_common(tape: str) -> None:
    owners: list[set[int]] = []
    for number in range(CEILING.inflight):
        units = pickle.loads((Path(tape) / str(number)).read_bytes())
        asked = [q for unit in units for step in unit for q in step.questions]
        assert len(asked) == BATCH * len(units)
        owners.append({question.party.owner for question in asked})
    assert len(set.union(*owners)) == sum(map(len, owners))
    for number, each in enumerate(owners):
        assert each <= set(share_of(SMALL, CEILING.inflight, number))


@pytest.mark.slow
def test_each_tape_is_of_a_process_of_its_own(tape: str) -> None:
    """All the marks of one process are one row, for which the sessions would wait in turn."""
    processes = []
    for number in range(CEILING.inflight):
        units = pickle.loads((Path(tape) / str(number)).read_bytes())
        sent = [values for unit in units for step in unit for _, values in step.statements]
        processes.append({values["process"] for values in sent if "process" in values})
    assert [len(each) for each in processes] == [1] * CEILING.inflight
    assert len(set.union(*processes)) == CEILING.inflight


@pytest.mark.slow
def test_playing_conserves_and_nothing_is_refused(world: World, tape: str) -> None:
    found = run(CEILING, world, TINY, Extra(tape))
    assert found.result.made >= found.result.counted > 0
    assert found.result.refused == 0


@pytest.mark.slow
def test_a_tape_that_is_too_short_gives_no_figure(world: World, tape: str) -> None:
    with world.stage(world.base(SMALL)) as stage:
        spec = structs.replace(SPEC, database=stage.database, core=stage.core, tape=tape)
        whole = load(spec)
        with pytest.raises(RuntimeError, match="too short"):
            asyncio.run(play(spec, [*whole[:3], []]))


ONE = "(SELECT transfer_id FROM {0}.ledger_operations ORDER BY transfer_id LIMIT 1)"
SPOILT = {
    "wrong balances 1": "UPDATE {0}.ledger_accounts SET available = available + 1"
    " WHERE owner = (SELECT owner FROM {0}.ledger_operations LIMIT 1) AND book = 'FUNDING'",
    "not committed 1": f"UPDATE {{0}}.transfers SET state = 'FAILED' WHERE id = {ONE}",
    "refused operations 1": "UPDATE {0}.ledger_operations"
    " SET result = 'rejected', reason = 'FROZEN', delta = 0, held_delta = 0"
    f" WHERE transfer_id = {ONE}",
}


@pytest.mark.slow
def test_a_refusal_or_a_wrong_balance_is_noticed(world: World, tape: str) -> None:
    async def verified(database: str, made: int) -> None:
        async with PostgresStore(database, STORE) as store:
            await verify(store, made)

    with world.stage(world.base(SMALL)) as stage:
        spec = structs.replace(SPEC, database=stage.database, core=stage.core, tape=tape)
        made = asyncio.run(play(spec, load(spec))).made
        asyncio.run(verified(stage.database, made))
        with pytest.raises(RuntimeError, match=f"{made} transfers of {made + 1} played"):
            asyncio.run(verified(stage.database, made + 1))
        for told, statement in SPOILT.items():
            with psycopg.connect(stage.database, autocommit=True) as connection:
                assert connection.execute(statement.format(STORE).encode()).rowcount == 1
            with pytest.raises(RuntimeError, match=told):
                asyncio.run(verified(stage.database, made))
