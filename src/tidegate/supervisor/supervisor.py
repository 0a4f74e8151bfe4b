"""All that runs below one directory, from the first start to the last end."""

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
from tidegate.service.sockets import bound
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
    say,
    write_whole,
)
from tidegate.supervisor.demo_tokens import token

DATABASE = "tidegate"
LONGEST_SOCKET_PATH = 107  # Bytes: what the kernel has room for.
PORT_S = 5.0  # How long a port may stay taken by children of an `up` that was killed.
LEAST_SESSIONS, SPARE_SESSIONS = 100, 20  # In all; and besides those of our own programs.
TRIES = 5  # Before everything serves: after that, it is tried for ever.
POLL_S = 0.05
TOKEN_S = 8 * 3600.0  # A working day: whoever can read our keys makes a new one anyway.

DEMO_OWNER = 4001
DEMO_MONEY = (
    ("FUNDING", "USDT", "10000"),
    ("FUNDING", "BTC", "1"),
    ("FUNDING", "ETH", "10"),
    ("SPOT", "USDT", "5000"),
)


class Supervisor:
    """All that runs below one directory."""

    def __init__(self, settings: Settings) -> None:
        home, listen = Path(settings.directory), str(settings.core)
        self.settings = settings
        self.room, self.log = home / "run", home / "log"
        room = {"max_connections": str(sessions_for(settings))}
        self.server = Server(home, settings=room) if settings.database is None else None
        self.log.mkdir(exist_ok=True)
        core = ["-m", "tidegate.cli", "core", "--data", str(home / "core"), "--listen", listen]
        self.core = self._child("core", core)
        # Chosen here, so that people can be told where each worker serves its metrics.
        names = [f"worker-{number + 1}" for number in range(settings.workers)]
        self.ports = {name: (settings.host, free_port(settings.host, 0, 0.0)) for name in names}
        self.workers = [
            self._child(name, [*_service("worker"), "--port", str(port)])
            for name, (_, port) in self.ports.items()
        ]
        # Likewise where each of several API processes serves its own.
        for number, port in enumerate(settings.health_ports, 1):
            self.ports[f"api-{number}"] = settings.health_host, port
        self.api = self._child("api", _service("api"))
        self.postgres = Child("postgres", self.server, self.room) if self.server else None

    def _child(self, name: str, words: Sequence[str]) -> Child:
        return Child(name, ChildProgram(words, self.log / f"{name}.log", self._environ), self.room)

    @property
    def children(self) -> list[Child]:
        """In the order in which they end."""
        return [self.api, *self.workers, self.core, *([self.postgres] if self.postgres else [])]

    @property
    def address(self) -> str:
        return address_of(self.settings.host, self.settings.port)

    def _environ(self) -> dict[str, str]:
        return child_environment(self.settings)

    def start(self) -> None:
        self.core.start()
        if self.postgres is None:
            say("the database is that of DATABASE_URL, or of the settings; none is embedded")
        else:
            self.postgres.start()
            self._settle_database()
        assert self.settings.database is not None, "there is a database by now"
        migrate(self.settings.database, self.settings.schema, all_flows())
        self._publish()
        # First the core: after a crash there are questions for it at once.
        self._wait_until(self._core_listens)
        for child in (*self.workers, self.api):
            child.start()

    def stop(self) -> None:
        for group in ([self.api], self.workers, [self.core]):
            for child in group:
                if isinstance(child.program, ChildProgram):
                    child.program.ask_to_end()
            for child in group:
                child.leave()
        if self.postgres is not None:
            self.postgres.leave()
        (self.room / "endpoints.json").unlink(missing_ok=True)

    def _settle_database(self) -> bool:
        """Make the database if it is not there; True if its address has changed."""
        assert self.server is not None, "it is the embedded one"
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            known = connection.execute(
                "SELECT FROM pg_database WHERE datname = 'tidegate'"
            ).fetchone()
            if known is None:
                connection.execute("CREATE DATABASE tidegate")
        before, url = self.settings.database, self.server.url(DATABASE)
        self.settings = msgspec.structs.replace(self.settings, database=url)
        return before != url

    def _publish(self) -> None:
        endpoints = {
            "api": self.address,
            "postgres": self.settings.database,
            "core": self.settings.core,
            **{name: address_of(host, port) for name, (host, port) in self.ports.items()},
        }
        # It has the password of the database.
        write_whole(self.room / "endpoints.json", json.dumps(endpoints, indent=2) + "\n", 0o600)

    def keep_running(self, wait_s: float | None) -> None:
        """Wait until a child dies or is due, and start again what can be."""
        keep_running(self.children, self._restart, wait_s)

    def _restart(self, child: Child) -> None:
        say(f"{child.name} died and is started again")
        try:
            child.start()
            moved = child is self.postgres and self._settle_database()
        except (PostgresError, psycopg.Error, OSError) as fault:
            say(f"{child.name} cannot be started yet: {str(fault).splitlines()[0]}")
            child.stop()
            child.fail()
            return
        if moved:
            # Below a long directory PostgreSQL is reached by a link that is new each time.
            self._publish()
            for other in (self.api, *self.workers):
                other.stop()
                other.start()

    def _core_listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(str(self.settings.core).removeprefix("unix:")) == 0

    def _waiting(self) -> bool:
        return any(child.due_s is not None for child in self.children)

    def wait_until_ready(self) -> None:
        # Each process of the API: of several, one may serve long before the others. They ask the
        # core nothing until there is something to ask.
        own = [address_of(*at) for name, at in self.ports.items() if name.startswith("api-")]
        with ExitStack() as held:
            clients = [
                held.enter_context(Client(address, timeout_s=5.0))
                for address in (self.address, *own)
            ]
            self._wait_until(
                lambda: (
                    all(client.ready() for client in clients)
                    and self._core_listens()
                    and not self._waiting()
                )
            )

    def _wait_until(self, true: Callable[[], bool]) -> None:
        """Start again what dies meanwhile, but not for ever."""
        while not true():
            self.keep_running(POLL_S)
            for child in self.children:
                if child.failures >= TRIES and isinstance(child.program, ChildProgram):
                    words = child.program.last_words()
                    raise CannotRun(f"{child.name} does not start: {words}")


def run(settings: Settings, *, bare: bool) -> int:
    """Everything, until a signal. Returns the exit code of the program."""
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
                say("in another terminal, see `tidegate --help`; Ctrl-C ends everything")
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
        # PostgreSQL adds the end of its log, of which the last line tells most.
        first, *more = str(fault).splitlines()
        say(" ".join([first, *more[-1:]]))
        return 1


def _open(settings: Settings, held: ExitStack) -> Supervisor:
    home = Path(settings.directory).absolute()
    room = home / "run"
    room.mkdir(parents=True, exist_ok=True)
    held.enter_context(_locked(room / "lock", home))
    killed = (room / "api.pid").exists()
    for leftover in room.glob("*.pid"):
        leftover.unlink()
    port = free_port(settings.host, settings.port, PORT_S if killed else 0.0)
    if settings.jwks_url is not None:
        raise CannotRun(
            "jwks_url is for `tidegate api`; `tidegate up` makes keys of its own: unset it"
        )
    lifetime_s = settings.token_lifetime_s or TOKEN_S
    terms = TokenPolicy(
        issuer=settings.issuer, audience=settings.audience, max_lifetime_s=lifetime_s
    )
    public = make_keyring(home / "keys", terms)
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
    """Once: each deposit has a name of its own, and a second one by that name adds nothing."""
    with Client(supervisor.address, token(supervisor.room.parent, "up", "operator")) as client:
        for account, asset, amount in DEMO_MONEY:
            crossing = {"user_id": DEMO_OWNER, "account": account, "asset": asset}
            cid = f"demo-{DEMO_OWNER}-{account}-{asset}"
            try:
                client.deposit({**crossing, "amount": amount, "cid": cid})
            except (ApiProblem, OutcomeUnknown) as fault:
                say(f"no demo money in {account} {asset}: {fault}")


@contextmanager
def _locked(path: Path, home: Path) -> Iterator[None]:
    """The lock ends with us, whatever ends us, so it cannot go stale."""
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
    """As many as the embedded PostgreSQL takes: for all of ours, and for people and programs."""
    ours = sessions_needed(settings) + settings.workers * settings.connections
    return max(ours + SPARE_SESSIONS, LEAST_SESSIONS)


def health_ports_for(settings: Settings, count: int) -> tuple[int, ...]:
    """Chosen here, so that people can be told where each process serves its metrics."""
    wanted = settings.health_ports or (0,) * count
    with ExitStack() as held:
        # Together, so that none is chosen twice.
        opened = [held.enter_context(bound(settings.health_host, port)) for port in wanted]
        return tuple(int(each.getsockname()[1]) for each in opened)


def free_port(host: str, port: int, patience_s: float) -> int:
    deadline = time.monotonic() + patience_s
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
    # All settings come by the environment; a file that lies about must not add to them.
    return ["-m", "tidegate.cli", command, "--config", os.devnull]
