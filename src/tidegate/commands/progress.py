"""Bars for work that takes a while: on the terminal of who waits, and nowhere else."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from tidegate.client import Answer, ApiProblem, Client, OutcomeUnknown

LOOK_S = 0.3


def bar(out: Console | None = None) -> Progress:
    """On the standard error, so that what is piped on is only what was asked for."""
    place = out or Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=place,
        disable=not place.is_terminal,
        transient=True,
        redirect_stdout=out is not None,
        redirect_stderr=out is not None,
    )


def watched_audit(client: Client) -> Answer:
    """A full audit, with a bar of the transfers that it has read."""
    over = threading.Event()
    with bar() as shown, _beside(shown, client, over):
        return client.audit(full=True)


@contextmanager
def _beside(shown: Progress, client: Client, over: threading.Event) -> Iterator[None]:
    """Look how far it is, from a thread of our own: the audit's request is one long wait."""
    task = shown.add_task("adding up every operation", total=None)

    def follow() -> None:
        while not over.wait(LOOK_S):
            try:
                said = client.audit_progress()
            except (ApiProblem, OutcomeUnknown, RuntimeError):
                return  # Another API was asked, or the client is closed: then without a bar.
            read, about = said["read"], said["of_about"]
            # Of an estimate there may be more than all.
            shown.update(task, completed=read, total=max(read, about) or None)

    if not shown.console.is_terminal:
        yield
        return
    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        over.set()
        follower.join(LOOK_S)
