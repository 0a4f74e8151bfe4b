"""Progress bars for long work, drawn only on a terminal."""

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

POLL_S = 0.3


def bar(out: Console | None = None) -> Progress:
    """Make a bar on stderr, so that piped stdout contains only the result."""
    screen = out or Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=screen,
        disable=not screen.is_terminal,
        transient=True,
        redirect_stdout=out is not None,
        redirect_stderr=out is not None,
    )


def watched_audit(client: Client) -> Answer:
    """Run a full audit and show how many transfers it has read."""
    stopped = threading.Event()
    with bar() as progress, _polling(progress, client, stopped):
        return client.audit(full=True)


@contextmanager
def _polling(progress: Progress, client: Client, stopped: threading.Event) -> Iterator[None]:
    """Poll the progress in a thread, because the audit's own request blocks until its end."""
    task = progress.add_task("adding up every operation", total=None)

    def poll() -> None:
        while not stopped.wait(POLL_S):
            try:
                reply = client.audit_progress()
            except (ApiProblem, OutcomeUnknown, RuntimeError):
                return  # The route failed or the client is closed: show no progress.
            read, estimate = reply["read"], reply["of_about"]
            # The total is an estimate and can be lower than what was read.
            progress.update(task, completed=read, total=max(read, estimate) or None)

    if not progress.console.is_terminal:
        yield
        return
    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(POLL_S)
