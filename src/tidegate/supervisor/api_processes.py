"""Several API processes that serve one port: started, restarted and ended together.

The parent has no engine and no session: it holds the port, so that nobody else takes it, and does
not listen. Each child listens by itself (SO_REUSEPORT), and the kernel spreads connections over
those that do. So a child that has died gets none.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec
import psycopg
import structlog

from tidegate.service.shared_memory import create_memory
from tidegate.service.sockets import PortUnusable, share, taken
from tidegate.settings import Settings
from tidegate.supervisor.children import (
    CannotRun,
    Child,
    ChildProgram,
    EndRequested,
    child_environment,
    end_on_signals,
    keep_running,
    say,
)

PORT_S = 1.0  # How long the port may stay taken by children of a parent that was killed.
POLL_S = 0.05
END_S = 27.0  # For all children together: less than `up` allows us.
TRIES = 5  # Of a child that is killed before all serve; once all do, it is restarted for ever.
CONNECT_S = 5
LEADING = 1  # The session by which a process finds out who leads.
# Of `up`, unless it is told otherwise. Each process takes a third of a percent of a core when idle,
# and all that `up` runs shall stay below one and a half.
MOST_BY_ITSELF = 2

# How many sessions there may be: by the server, by the login, and by the database.
ROOM = """
SELECT least(
    current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true)::int, 0),
    nullif(rolconnlimit, -1),
    nullif(datconnlimit, -1))
FROM pg_roles, pg_database WHERE rolname = session_user AND datname = current_database()
"""

log = structlog.get_logger("tidegate")


def processes_here() -> int:
    """How many `tidegate up` runs by itself: one for every two cores.

    The other half is for PostgreSQL, which works about as much as they do, and for the core.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores // 2, MOST_BY_ITSELF))


def sessions_needed(settings: Settings) -> int:
    """By all API processes together, at most."""
    return (settings.processes or 1) * (settings.connections + LEADING)


class ApiProcesses:
    """The processes of one port. What is held is given back when `held` ends."""

    def __init__(self, settings: Settings, held: ExitStack) -> None:
        count = settings.processes or 1
        wanted = settings.health_ports or (0,) * count
        if len(wanted) != count:
            raise CannotRun(
                f"health_ports has {len(wanted)} ports for {count} processes: name one for each"
            )
        port = held.enter_context(_reserved(settings.host, settings.port))
        own = [held.enter_context(_reserved(settings.health_host, each)) for each in wanted]
        self.settings = msgspec.structs.replace(settings, port=port, health_ports=tuple(own))
        memory = create_memory()
        held.callback(os.close, memory)
        self.children = [self._child(number, memory) for number in range(1, count + 1)]

    def _child(self, number: int, memory: int) -> Child:
        # All settings come by the environment; a file that lies about must not add to them.
        words = ["-m", "tidegate.cli", "api", "--config", os.devnull]
        words += ["--sibling", str(number), "--memory", str(memory)]
        return Child(f"api-{number}", ChildProgram(words, None, self._environ, [memory]))

    def _environ(self) -> dict[str, str]:
        return child_environment(self.settings)

    def start(self) -> None:
        for child in self.children:
            child.start()

    def wait_until_ready(self) -> None:
        while not all(map(self._listens, self.settings.health_ports)):
            keep_running(self.children, self._start_again, POLL_S)

    def keep(self) -> None:
        while True:
            keep_running(self.children, self._restart, None)

    def stop(self) -> None:
        for part in self._parts:
            part.ask_to_end()
        deadline_s = time.monotonic() + END_S
        for part in self._parts:
            part.stop(max(deadline_s - time.monotonic(), 0.0))
        for child in self.children:
            child.stop()

    @property
    def _parts(self) -> list[ChildProgram]:
        return [child.program for child in self.children if isinstance(child.program, ChildProgram)]

    def _listens(self, port: int) -> bool:
        host = self.settings.health_host
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            return probe.connect_ex((host, port)) == 0

    def _start_again(self, child: Child) -> None:
        program = child.program
        complained = (
            isinstance(program, ChildProgram) and program.code is not None and program.code > 0
        )
        if complained or child.failures >= TRIES:
            # One that is still starting would take SIGTERM for a failure of its tasks, and say so.
            for part in self._parts:
                part.kill()
            raise ProcessDoesNotStart
        self._restart(child)

    def _restart(self, child: Child) -> None:
        say(f"{child.name} died and is started again")
        try:
            child.start()
        except OSError as fault:
            say(f"{child.name} cannot be started yet: {fault}")
            child.stop()
            child.fail()


class ProcessDoesNotStart(Exception):
    """The child has said why: nothing is to be added, so that its words are the last."""


def serve_shared_port(settings: Settings) -> int:
    """All processes, until a signal. Returns the exit code of the program."""
    end_on_signals()
    try:
        with ExitStack() as held:
            check_sessions(settings)
            siblings = ApiProcesses(settings, held)
            held.callback(siblings.stop)
            siblings.start()
            siblings.wait_until_ready()
            chosen = siblings.settings
            address = (chosen.host, chosen.port)
            log.info("all serve", address=address, health_ports=chosen.health_ports)
            siblings.keep()
    except EndRequested:
        return 0
    except ProcessDoesNotStart:
        return 1
    except (CannotRun, OSError) as fault:
        say(str(fault))
        return 1
    raise AssertionError("it is kept until a signal")


def check_sessions(settings: Settings) -> None:
    """Refuse more sessions than the database takes. If it does not answer, the children say so."""
    assert settings.database is not None, "a database is needed"
    try:
        with psycopg.connect(settings.database, connect_timeout=CONNECT_S) as connection:
            found = connection.execute(ROOM).fetchone()
    except psycopg.Error:
        return
    needed = sessions_needed(settings)
    if found is not None and found[0] < needed:
        each = settings.connections + LEADING
        raise CannotRun(
            f"{settings.processes} processes with {each} sessions each need {needed}, and the"
            f" database takes {found[0]}: lower `processes` or `connections`, or raise"
            " max_connections"
        )


@contextmanager
def _reserved(host: str, port: int) -> Iterator[int]:
    """A port that only our children can use besides us; 0 is any free one."""
    deadline_s = time.monotonic() + PORT_S
    with ExitStack() as held:
        while True:
            try:
                opened = held.enter_context(taken(host, port))
                break
            except PortUnusable:
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(POLL_S)
        share(opened)
        yield int(opened.getsockname()[1])
