"""The command that runs the trading core, in its own module because it imports very little."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tidegate.trading_core import server


@dataclass(frozen=True, slots=True)
class CoreOptions:
    directory: Annotated[Path, typer.Option("--data", help="The core's directory.")]
    listen: Annotated[str, typer.Option(help="unix:PATH or tcp:HOST:PORT")]


def core(chosen: CoreOptions) -> None:
    """Run the trading core: balances in memory, every answer on disk before it is sent."""
    chosen.directory.mkdir(parents=True, exist_ok=True)
    raise typer.Exit(server.run(chosen.directory, chosen.listen))
