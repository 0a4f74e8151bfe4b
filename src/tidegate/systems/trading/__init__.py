"""The client of the trading core, a system outside our database."""

from tidegate.systems.trading.client import (
    CoreBalance,
    CoreCaller,
    CoreRefusesService,
    CoreTotals,
    KnownCore,
    TradingCoreClient,
    load_known_core,
    newest,
)
from tidegate.systems.trading.connection import (
    Connect,
    CoreConnection,
    RequestNotCarriedOut,
    dial,
    worker_name,
)

__all__ = [
    "Connect",
    "CoreBalance",
    "CoreCaller",
    "CoreConnection",
    "CoreRefusesService",
    "CoreTotals",
    "KnownCore",
    "RequestNotCarriedOut",
    "TradingCoreClient",
    "dial",
    "load_known_core",
    "newest",
    "worker_name",
]
