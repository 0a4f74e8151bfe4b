"""Each process counts the ends that it records, and alerts if they are slow or failed."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from tests.engine.rig import Execute, Play, Rig, made, request
from tidegate.core.answers import Alarm, Answer, Unknown
from tidegate.core.kind import Transfer, transfer_with
from tidegate.core.transfer import Question
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.end_rates import EndRates, RateThresholds, RecordedEnd, rate_conditions
from tidegate.engine.engine import Engine
from tidegate.engine.pending_request import Receipt
from tidegate.flows import FLOWS


def ends(took: Sequence[float], failed: int = 0) -> list[RecordedEnd]:
    return [RecordedEnd(0.0, took_s, number < failed) for number, took_s in enumerate(took)]


def codes(found: Sequence[RecordedEnd]) -> list[AlertCode]:
    return [condition.alert.code for _, condition in rate_conditions(found, RateThresholds())]


def test_p95_over_a_second() -> None:
    fast, slow = [0.1] * 95, [1.5] * 5
    assert codes(ends(fast + slow)) == []
    [(_, condition)] = rate_conditions(ends([*fast[:94], *slow, 1.5]), RateThresholds())
    assert condition.alert == Alert(
        Alarm.PAGE,
        AlertCode.TRANSFERS_SLOW,
        "the P95 of transfer times is 1.500 s, above the limit of 1 s"
        " (100 transfers in the last 60 s)",
    )
    assert codes(ends([1.0] * 100)) == []
    assert codes(ends([9.0] * 19)) == [], "too few"


def test_a_failure_share_over_five_percent_must_last_for_two_minutes() -> None:
    alerts: list[Alert] = []
    now_s = 0.0
    rates = EndRates(FLOWS, alerts.append, lambda: now_s)

    def at(seconds: float, failed: int, count: int = 100) -> None:
        nonlocal now_s
        now_s = seconds
        rates._ends.clear()
        rates._ends += [RecordedEnd(now_s, 0.1, number < failed) for number in range(count)]
        asyncio.run(rates.check())

    at(0, 6)
    at(100, 5)  # Below the limit again.
    at(110, 6)
    at(229, 6)
    assert alerts == []
    at(230, 6)
    at(240, 6)
    cause = "6 of 100 transfers failed in the last 60 s, above the limit of 5 %"
    assert [a.cause for a in alerts] == [cause]
    assert (alerts[0].alarm, alerts[0].code) == (Alarm.PAGE, AlertCode.TRANSFERS_FAILING)
    at(250, 19, 19)
    assert alerts[-1] == Alert(
        Alarm.NONE, AlertCode.TRANSFERS_FAILING, f"cleared: {cause}", cleared=True
    )


def ended(flow: str, state: str, took_s: float) -> Transfer:
    """An ended transfer, this long after its creation."""
    took_us = round(took_s * 1_000_000)
    fields = {"id": UUID(int=1), "owner": 7, "amount": 1, "created_us": 1}
    transfer = transfer_with({}, {}, flow=flow, state=state, **fields)
    return structs.replace(transfer, updated_us=1 + took_us)


def test_pool_transfers_that_wait_by_design_are_neither_slow_nor_failing() -> None:
    alerts: list[Alert] = []
    now_s = 0.0
    rates = EndRates(FLOWS, alerts.append, lambda: now_s)
    for _ in range(100):
        rates.ended([ended("pool_transfer", "REJECTED", 86_400.0)])
        rates.ended([ended("internal_transfer", "COMMITTED", 0.01)])
    for now_s in range(0, 200, 10):
        rates._ends = type(rates._ends)(end._replace(at_s=now_s) for end in rates._ends)
        asyncio.run(rates.check())
    assert alerts == []
    for _ in range(100):
        rates.ended([ended("internal_transfer", "FAILED", 2.0)])
    asyncio.run(rates.check())
    assert [alert.code for alert in alerts] == [AlertCode.TRANSFERS_SLOW]


def test_ends_older_than_a_minute_are_ignored() -> None:
    alerts: list[Alert] = []
    now_s = 0.0
    rates = EndRates(FLOWS, alerts.append, lambda: now_s)
    for _ in range(20):
        rates.ended([ended("internal_transfer", "COMMITTED", 2.0)])
    asyncio.run(rates.check())
    now_s = 61.0
    asyncio.run(rates.check())
    assert [alert.cleared for alert in alerts] == [False, True]


@pytest.mark.slow
def test_ends_after_a_202_and_ends_in_another_process_are_counted_once(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        counted: Counter[UUID] = Counter()
        silent = True

        async def slow(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            return [Unknown("later")] * len(questions) if silent else execute()

        def engine(seed: int) -> Engine[Any]:
            count = lambda ends: counted.update([end.id for end in ends])  # noqa: E731
            return Engine(replace(rig.parts(seed), ended=count))

        rig.outside.twist = slow
        async with engine(1) as api, engine(2) as worker:
            api.lanes["venue"].stop()  # The worker must finish what this engine began.
            receipt = await api.transfer(request("in", 5), wait_s=0.01)
            assert isinstance(receipt, Receipt)
            assert receipt.transfer.lane == "venue", "answered by 202"
            transfers = [
                receipt.transfer,
                *[await made(worker, request("out", 1)) for _ in range(3)],
            ]
            assert not counted
            silent = False
            await rig.ended(transfers)
            await asyncio.sleep(0.3)
        assert counted == {transfer.id: 1 for transfer in transfers}

    play(scene)
