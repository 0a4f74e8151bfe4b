"""The ceiling: replays the engine's statements without the engine and its clients.

To play a tape is to send the same text with the same values to a copy of the same database and
core as it was recorded on, with nothing looked at, decided or gathered. Each session plays a tape
of its own, whose owners are in no other tape, so that no session waits for another's accounts.
"""

import asyncio
import pickle
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from bench.driving import Outcome, Window
from bench.rail import open_trading
from bench.spec import STORE, Result, Spec
from bench.traffic import Order
from tidegate import Question
from tidegate.core.answers import Done
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.systems.trading import TradingCoreClient

BATCH = 1_024
Statement: TypeAlias = tuple[str, Mapping[str, object]]


class Step(NamedTuple):
    """One transaction, one statement outside a transaction, or one batch of questions."""

    statements: Sequence[Statement] = ()
    transaction: bool = False
    questions: Sequence[Question] = ()


Unit: TypeAlias = list[Step]

# These counts must be 0 after playing: transfers that are not COMMITTED, rejected answers,
# operations whose balance does not follow the one before, and accounts that differ from these.
FAULTS = """
WITH chain AS (
    SELECT o.owner, o.book, o.asset_id, o.delta, o.balance_after,
           lag(o.balance_after) OVER by_time AS before,
           lead(o.balance_after) OVER by_time IS NULL AS is_last
      FROM ledger_operations AS o
    WINDOW by_time AS (PARTITION BY o.owner, o.book, o.asset_id ORDER BY o.at, o.transfer_id)
)
SELECT (SELECT count(*) FROM transfers WHERE state <> 'COMMITTED'),
       (SELECT count(*) FROM history WHERE answer <> 'done'),
       (SELECT count(*) FROM ledger_operations WHERE result <> 'done'),
       (SELECT count(*)
          FROM chain AS c
          JOIN ledger_accounts AS a USING (owner, book, asset_id)
         WHERE c.before + c.delta <> c.balance_after
            OR c.is_last AND c.balance_after <> a.available),
       (SELECT count(*) FROM transfers)
"""


def share_of(owners: int, sessions: int, number: int) -> range:
    """The owners whose transfers one session plays. No owner is in two shares."""
    return range(1 + number, owners + 1, sessions)


def within_share(orders: Sequence[Order], share: Sequence[int], dice: random.Random) -> list[Order]:
    """The same orders by owners of one share. Orders of one owner stay orders of one owner."""
    owners = list(dict.fromkeys(order.owner for order in orders))
    substitutes = dict(zip(owners, dice.sample(share, len(owners)), strict=True))
    return [order._replace(owner=substitutes[order.owner]) for order in orders]


async def play(spec: Spec, tapes: Sequence[Sequence[Unit]]) -> Result:
    """Play all tapes in parallel, each in its own order."""
    window = Window(spec)
    async with (
        PostgresStore(spec.database, STORE, StoreLimits(connections=len(tapes))) as store,
        open_trading(spec.core) as core,
    ):

        async def session(tape: Sequence[Unit]) -> bool:
            """Whether the tape was long enough."""
            for unit in tape:
                if window.over:
                    return True
                started_s = time.perf_counter()
                for step in unit:
                    await _feed(store, core, step)
                window.note(started_s, Outcome(ended=BATCH))
            return window.over

        async with asyncio.TaskGroup() as group:
            playing = [group.create_task(session(tape)) for tape in tapes]
        if not all(session.result() for session in playing):
            raise RuntimeError("the tape is too short for this machine: record more")
        await verify(store, window.made)
    return window.result()


async def _feed(store: PostgresStore, core: TradingCoreClient, step: Step) -> None:
    if step.questions:
        answers = await core.ask(step.questions)
        assert all(isinstance(answer, Done) for answer in answers), "the core did them all"
    elif step.transaction:
        async with store.transaction() as tx:
            # Do not wait for the rows of a statement that can be sent without waiting.
            send = getattr(tx, "post", tx.fetch)
            for text, values in step.statements:
                await send(text, values)
    else:
        [(text, values)] = step.statements
        await store.run(text, values)


async def verify(store: PostgresStore, made: int) -> None:
    """All transfers are COMMITTED, nothing was rejected, and all balances are consistent."""
    [(*faults, transfers)] = await store.run(FAULTS, {})
    if any(faults) or transfers != made:
        names = ("not committed", "refused answers", "refused operations", "wrong balances")
        problems = ", ".join(f"{name} {count}" for name, count in zip(names, faults, strict=True))
        raise RuntimeError(f"{transfers} transfers of {made} played: {problems}")


async def run(spec: Spec) -> Result:
    return await play(spec, load(spec))


def tape_of(spec: Spec, number: int) -> Path:
    return Path(spec.tape) / str(number)


def load(spec: Spec) -> list[list[Unit]]:
    return [pickle.loads(tape_of(spec, number).read_bytes()) for number in range(spec.inflight)]
