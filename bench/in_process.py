"""Tidegate in process: the engine runs in this process, the core and PostgreSQL in others."""

from bench.driving import DONE, REFUSED, Outcome, drive
from bench.spec import ASSET, STORE, Result, Spec
from bench.traffic import TOO_MUCH, Order, Traffic
from tidegate import Alarm, Alert, Engine, Party, Receipt, Request, Setup, open_gate

WAIT_S = 60.0


def request_of(order: Order) -> Request:
    funding = Party("ledger", "FUNDING", order.owner)
    spot = Party("core", "SPOT", order.owner)
    ends = (funding, spot) if order.inward else (spot, funding)
    parties = dict(zip(("source", "target"), ends, strict=True))
    return Request(order.owner, "internal_transfer", parties, ASSET, order.amount, order.cid)


def alarmed(alert: Alert) -> None:
    """Fail on every alert: a run with an alert is not valid."""
    if alert.alarm > Alarm.NONE:
        raise RuntimeError(f"an alert in a benchmark: {alert}")


async def transferred(engine: Engine, order: Order) -> Outcome:  # type: ignore[type-arg]
    receipt = await engine.transfer(request_of(order), WAIT_S)
    assert isinstance(receipt, Receipt), receipt
    assert not receipt.duplicate, order.cid
    state = "FAILED" if order.amount == TOO_MUCH else "COMMITTED"
    assert receipt.transfer.state == state, receipt.transfer
    return REFUSED if order.amount == TOO_MUCH else DONE


async def run(spec: Spec) -> Result:
    traffic = Traffic(spec)
    async with open_gate(Setup(spec.database, STORE, spec.core, alert=alarmed)) as gate:

        async def transfer(number: int) -> Outcome:
            return await transferred(gate.engine, traffic.order(number))

        return await drive(spec, transfer)
