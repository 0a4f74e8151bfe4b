"""The supervisor of `tidegate up`: starts, restarts and stops everything in one directory."""

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import psycopg

from tidegate.app import all_flows
from tidegate.client import ApiProblem, Client, KeysNotFound, OutcomeUnknown, make_keyring
from tidegate.postgres import PostgresError, Server, private_directory
from tidegate.service.auth import TokenPolicy
from tidegate.service.sockets import bound_socket
from tidegate.settings import Settings
from tidegate.store.migrate import migrate
from tidegate.store.schemas import MigrationRefused
from tidegate.supervisor.api_processes import processes_here, sessions_needed
from tidegate.supervisor.children import (
    CannotRun,
    Child,
    ChildProgram,
    EndRequested,
    child_environment,
    end_on_signals,
    keep_running,
    report,
    write_atomically,
)
from tidegate.supervisor.demo_tokens import token

DATABASE = "tidegate"
LONGEST_SOCKET_PATH = 107  # Bytes: the kernel's limit.
PORT_S = 5.0  # The children of a killed `tidegate up` may hold the port for this long.
LEAST_SESSIONS, SPARE_SESSIONS = 100, 20  # In total, and for programs other than ours.
TRIES = 5  # Restarts of a child before everything is ready. Afterwards there is no limit.
POLL_S = 0.05
TOKEN_S = 8 * 3600.0  # A working day. A short life adds nothing: the key file can sign new tokens.

DEMO_OWNER = 4001
DEMO_MONEY = (
    ("FUNDING", "USDT", "10000"),
    ("FUNDING", "BTC", "1"),
    ("FUNDING", "ETH", "10"),
    ("SPOT", "USDT", "5000"),
)


class Supervisor:
    """The processes of one directory: PostgreSQL, the core, workers and the API."""

    def __init__(self, settings: Settings) -> None:
        home, listen = Path(settings.directory), str(settings.core)
        self.settings = settings
        self.run_dir, self.log = home / "run", home / "log"
        limits = {"max_connections": str(sessions_for(settings))}
        self.server = Server(home, settings=limits) if settings.database is None else None
        self.log.mkdir(exist_ok=True)
        core = ["-m", "tidegate.cli", "core", "--data", str(home / "core"), "--listen", listen]
        self.core = self._child("core", core)
        # Chosen here, so that endpoints.json can list the address of each worker's metrics.
        names = [f"worker-{number + 1}" for number in range(settings.workers)]
        self.ports = {name: (settings.host, free_port(settings.host, 0, 0.0)) for name in names}
        self.workers = [
            self._child(name, [*_service("worker"), "--port", str(port)])
            for name, (_, port) in self.ports.items()
        ]
        # The same for the metrics of each of several API processes.
        for number, port in enumerate(settings.health_ports, 1):
            self.ports[f"api-{number}"] = settings.health_host, port
        self.api = self._child("api", _service("api"))
        self.postgres = Child("postgres", self.server, self.run_dir) if self.server else None

    def _child(self, name: str, arguments: Sequence[str]) -> Child:
        program = ChildProgram(arguments, self.log / f"{name}.log", self._environ)
        return Child(name, program, self.run_dir)

    @property
    def children(self) -> list[Child]:
        """Return the children in the order in which they stop."""
        return [self.api, *self.workers, self.core, *([self.postgres] if self.postgres else [])]

    @property
    def address(self) -> str:
        return address_of(self.settings.host, self.settings.port)

    def _environ(self) -> dict[str, str]:
        return child_environment(self.settings)

    def start(self) -> None:
        self.core.start()
        if self.postgres is None:
            report("using the database of DATABASE_URL or the settings, not an embedded one")
        else:
            self.postgres.start()
            self._prepare_database()
        assert self.settings.database is not None, "the database is prepared"
        migrate(self.settings.database, self.settings.schema, all_flows(), economy=True)
        self._write_endpoints()
        # The core first: after a crash the workers have open transfers for it at once.
        self._wait_until(self._core_listens)
        for child in (*self.workers, self.api):
            child.start()

    def stop(self) -> None:
        for group in ([self.api], self.workers, [self.core]):
            for child in group:
                if isinstance(child.program, ChildProgram):
                    child.program.terminate()
            for child in group:
                child.remove()
        if self.postgres is not None:
            self.postgres.remove()
        (self.run_dir / "endpoints.json").unlink(missing_ok=True)

    def _prepare_database(self) -> bool:
        """Create the embedded database if it does not exist. True if its address has changed."""
        assert self.server is not None, "PostgreSQL is embedded"
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            row = connection.execute(
                "SELECT FROM pg_database WHERE datname = 'tidegate'"
            ).fetchone()
            if row is None:
                connection.execute("CREATE DATABASE tidegate")
        before, url = self.settings.database, self.server.url(DATABASE)
        self.settings = msgspec.structs.replace(self.settings, database=url)
        return before != url

    def _write_endpoints(self) -> None:
        endpoints = {
            "api": self.address,
            "postgres": self.settings.database,
            "core": self.settings.core,
            **{name: address_of(host, port) for name, (host, port) in self.ports.items()},
        }
        # Private, because the database's address may contain a password.
        text = json.dumps(endpoints, indent=2) + "\n"
        write_atomically(self.run_dir / "endpoints.json", text, 0o600)

    def keep_running(self, wait_s: float | None) -> None:
        """Wait until a child dies or is due for a restart, and restart every child that is due."""
        keep_running(self.children, self._restart, wait_s)

    def _restart(self, child: Child) -> None:
        report(f"{child.name} died and is restarted")
        try:
            child.start()
            moved = child is self.postgres and self._prepare_database()
        except (PostgresError, psycopg.Error, OSError) as fault:
            report(f"{child.name} cannot be started yet: {str(fault).splitlines()[0]}")
            child.stop()
            child.fail()
            return
        if moved:
            # If the directory's path is long, PostgreSQL is reached by a new link at each start.
            self._write_endpoints()
            for other in (self.api, *self.workers):
                other.stop()
                other.start()

    def _core_listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(str(self.settings.core).removeprefix("unix:")) == 0

    def _any_restart_pending(self) -> bool:
        return any(child.due_s is not None for child in self.children)

    def wait_until_ready(self) -> None:
        # Check each API process: one may be ready long before the others. Check the core too:
        # an idle API does not notice that the core is down.
        health = [address_of(*at) for name, at in self.ports.items() if name.startswith("api-")]
        with ExitStack() as held:
            clients = [
                held.enter_context(Client(address, timeout_s=5.0))
                for address in (self.address, *health)
            ]
            self._wait_until(
                lambda: (
                    all(client.ready() for client in clients)
                    and self._core_listens()
                    and not self._any_restart_pending()
                )
            )

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait, restarting children that die. Give up if one fails too often."""
        while not condition():
            self.keep_running(POLL_S)
            for child in self.children:
                if child.failures >= TRIES and isinstance(child.program, ChildProgram):
                    reason = child.program.last_log_line()
                    raise CannotRun(f"{child.name} does not start: {reason}")


def run(settings: Settings, *, bare: bool) -> int:
    """Run everything until a signal. Return the exit code of the program."""
    end_on_signals()
    try:
        with ExitStack() as held:
            supervisor = _open(settings, held)
            held.callback(supervisor.stop)
            supervisor.start()
            supervisor.wait_until_ready()
            if not bare:
                give_demo_money(supervisor)
            print(f"ready {supervisor.address}", flush=True)
            if sys.stderr.isatty():
                report("run `tidegate --help` in another terminal; Ctrl-C stops everything")
            while True:
                supervisor.keep_running(None)
    except EndRequested:
        return 0
    except (
        CannotRun,
        PostgresError,
        MigrationRefused,
        KeysNotFound,
        psycopg.Error,
        OSError,
    ) as fault:
        # A PostgresError ends with lines of PostgreSQL's log. Print the last one: it is the reason.
        first, *more = str(fault).splitlines()
        report(" ".join([first, *more[-1:]]))
        return 1


def _open(settings: Settings, held: ExitStack) -> Supervisor:
    home = Path(settings.directory).absolute()
    run_dir = home / "run"
    run_dir.mkdir(parents=True, exist_ok=True)
    held.enter_context(_locked(run_dir / "lock", home))
    killed = (run_dir / "api.pid").exists()
    for leftover in run_dir.glob("*.pid"):
        leftover.unlink()
    port = free_port(settings.host, settings.port, PORT_S if killed else 0.0)
    if settings.jwks_url is not None:
        raise CannotRun(
            "jwks_url is only for `tidegate api`; `tidegate up` makes its own keys: unset it"
        )
    lifetime_s = settings.token_lifetime_s or TOKEN_S
    policy = TokenPolicy(
        issuer=settings.issuer, audience=settings.audience, max_lifetime_s=lifetime_s
    )
    public = make_keyring(home / "keys", policy)
    listen = home / "core" / "socket"
    if len(os.fsencode(listen)) > LONGEST_SOCKET_PATH:
        listen = held.enter_context(private_directory()) / "core"
    count = settings.processes or processes_here()
    return Supervisor(
        msgspec.structs.replace(
            settings,
            processes=count,
            health_ports=health_ports_for(settings, count) if count > 1 else (),
            directory=str(home),
            port=port,
            core=f"unix:{listen}",
            keys=str(public),
            token_lifetime_s=lifetime_s,
        )
    )


def give_demo_money(supervisor: Supervisor) -> None:
    """Deposit the demo money once: a repeated deposit with the same cid changes nothing."""
    with Client(supervisor.address, token(supervisor.run_dir.parent, "up", "operator")) as client:
        for account, asset, amount in DEMO_MONEY:
            deposit = {"user_id": DEMO_OWNER, "account": account, "asset": asset}
            cid = f"demo-{DEMO_OWNER}-{account}-{asset}"
            try:
                client.deposit({**deposit, "amount": amount, "cid": cid})
            except (ApiProblem, OutcomeUnknown) as fault:
                report(f"cannot deposit demo money to {account} {asset}: {fault}")


@contextmanager
def _locked(path: Path, home: Path) -> Iterator[None]:
    """Lock the directory. The kernel releases the lock when this process ends in any way."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            file.seek(0)
            raise CannotRun(
                f"another `tidegate up` (pid {file.read().strip()}) runs on {home}:"
                " stop it, or choose another directory with --data"
            ) from fault
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def address_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def sessions_for(settings: Settings) -> int:
    """Return max_connections of the embedded PostgreSQL: for our programs and for others."""
    ours = sessions_needed(settings) + settings.workers * settings.connections
    return max(ours + SPARE_SESSIONS, LEAST_SESSIONS)


def health_ports_for(settings: Settings, count: int) -> tuple[int, ...]:
    """Choose the ports here, so that endpoints.json can list where each process has its metrics."""
    wanted = settings.health_ports or (0,) * count
    with ExitStack() as held:
        # All are bound at the same time, so that no port is chosen twice.
        sockets = [held.enter_context(bound_socket(settings.health_host, port)) for port in wanted]
        return tuple(int(opened.getsockname()[1]) for opened in sockets)


def free_port(host: str, port: int, wait_s: float) -> int:
    """Return the port if it is free, waiting up to `wait_s`. Port 0 is any free port."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            with socket.create_server((host, port), reuse_port=False) as probe:
                return int(probe.getsockname()[1])
        except OSError as fault:
            if time.monotonic() >= deadline:
                raise CannotRun(
                    f"port {port} of {host} cannot be used ({fault.strerror or fault}):"
                    " choose another with --port"
                ) from fault
            time.sleep(POLL_S)


def _service(command: str) -> list[str]:
    # All settings come from the environment: ignore a tidegate.toml in this directory.
    return ["-m", "tidegate.cli", command, "--config", os.devnull]
