"""Several API processes that serve one port: started, restarted and stopped together.

The parent has no engine and no database session. It binds the port, so that no other program can
use it, but does not listen. Each child listens by itself (SO_REUSEPORT), and the kernel spreads
connections over the listening children. So a dead child gets no connections.
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
from tidegate.service.sockets import PortUnusable, reserved_port, share
from tidegate.settings import Settings
from tidegate.supervisor.children import (
    CannotRun,
    Child,
    ChildProgram,
    EndRequested,
    child_environment,
    end_on_signals,
    keep_running,
    report,
)

PORT_S = 1.0  # The children of a killed parent may hold the port for this long.
POLL_S = 0.05
END_S = 27.0  # For all children to stop: less than `tidegate up` allows this process.
TRIES = 5  # Restarts of a child before all are ready. Afterwards there is no limit.
CONNECT_S = 5
LEADER_SESSIONS = 1  # Each process has one session for electing the leader.
# The default of `tidegate up`. An idle process uses 0.3 % of a core, and everything that
# `tidegate up` runs should stay below 1.5 %.
MAX_DEFAULT_PROCESSES = 2

# The number of sessions that the server, the login and the database allow.
SESSION_LIMIT = """
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
    """Return the default number of API processes: one for every two cores.

    PostgreSQL and the trading core need the other half of the cores.
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores // 2, MAX_DEFAULT_PROCESSES))


def sessions_needed(settings: Settings) -> int:
    """Return the most sessions that all API processes use together."""
    return (settings.processes or 1) * (settings.connections + LEADER_SESSIONS)


class ApiProcesses:
    """The processes of one port. The exit stack `held` releases the ports and the memory."""

    def __init__(self, settings: Settings, held: ExitStack) -> None:
        count = settings.processes or 1
        wanted = settings.health_ports or (0,) * count
        if len(wanted) != count:
            raise CannotRun(
                f"health_ports has {len(wanted)} ports for {count} processes:"
                " set one port per process"
            )
        port = held.enter_context(_reserved(settings.host, settings.port))
        health_ports = tuple(
            held.enter_context(_reserved(settings.health_host, number)) for number in wanted
        )
        self.settings = msgspec.structs.replace(settings, port=port, health_ports=health_ports)
        memory = create_memory()
        held.callback(os.close, memory)
        self.children = [self._child(number, memory) for number in range(1, count + 1)]

    def _child(self, number: int, memory: int) -> Child:
        # All settings come from the environment: ignore a tidegate.toml in this directory.
        arguments = ["-m", "tidegate.cli", "api", "--config", os.devnull]
        arguments += ["--sibling", str(number), "--memory", str(memory)]
        return Child(f"api-{number}", ChildProgram(arguments, None, self._environ, [memory]))

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
        for program in self._programs:
            program.terminate()
        deadline_s = time.monotonic() + END_S
        for program in self._programs:
            program.stop(max(deadline_s - time.monotonic(), 0.0))
        for child in self.children:
            child.stop()

    @property
    def _programs(self) -> list[ChildProgram]:
        return [child.program for child in self.children if isinstance(child.program, ChildProgram)]

    def _listens(self, port: int) -> bool:
        host = self.settings.health_host
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            return probe.connect_ex((host, port)) == 0

    def _start_again(self, child: Child) -> None:
        program = child.program
        exited_with_error = (
            isinstance(program, ChildProgram) and program.code is not None and program.code > 0
        )
        if exited_with_error or child.failures >= TRIES:
            # SIGKILL, because a child that is starting would log SIGTERM as a failure of its own.
            for other in self._programs:
                other.kill()
            raise ApiDoesNotStart
        self._restart(child)

    def _restart(self, child: Child) -> None:
        report(f"{child.name} died and is restarted")
        try:
            child.start()
        except OSError as fault:
            report(f"{child.name} cannot be started yet: {fault}")
            child.stop()
            child.fail()


class ApiDoesNotStart(Exception):
    """A child did not start. It has printed why, so the parent prints nothing more."""


def serve_shared_port(settings: Settings) -> int:
    """Run all processes until a signal. Return the exit code of the program."""
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
            log.info("all_processes_ready", address=address, health_ports=chosen.health_ports)
            siblings.keep()
    except EndRequested:
        return 0
    except ApiDoesNotStart:
        return 1
    except (CannotRun, OSError) as fault:
        report(str(fault))
        return 1
    raise AssertionError("keep() ends only by a signal")


def check_sessions(settings: Settings) -> None:
    """Refuse to start if the database allows too few sessions.

    If the database does not answer, return: the children report that.
    """
    assert settings.database is not None, "a database is required"
    try:
        with psycopg.connect(settings.database, connect_timeout=CONNECT_S) as connection:
            row = connection.execute(SESSION_LIMIT).fetchone()
    except psycopg.Error:
        return
    needed = sessions_needed(settings)
    if row is not None and row[0] < needed:
        sessions = settings.connections + LEADER_SESSIONS
        raise CannotRun(
            f"{settings.processes} processes with {sessions} sessions each need {needed} sessions,"
            f" but the database allows {row[0]}: lower `processes` or `connections`, or raise"
            " max_connections"
        )


@contextmanager
def _reserved(host: str, port: int) -> Iterator[int]:
    """Reserve a port for this process and its children. Port 0 is any free port."""
    deadline_s = time.monotonic() + PORT_S
    with ExitStack() as held:
        while True:
            try:
                opened = held.enter_context(reserved_port(host, port))
                break
            except PortUnusable:
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(POLL_S)
        share(opened)
        yield int(opened.getsockname()[1])
