"""The servers of the cases over HTTP, each in its own process."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.cases import USERS, Case
from bench.peers import environments
from bench.world import Stage
from tidegate.client import load_keyring, make_keyring
from tidegate.service.auth import TokenPolicy

START_S, STOP_S = 60.0, 30.0
TERMS = TokenPolicy(issuer="tidegate", audience="tidegate", max_lifetime_s=3600)
ROOT = Path(__file__).parents[1]


class Front(NamedTuple):
    url: str
    path: str
    users: str
    roles: Mapping[str, int]


@contextmanager
def opened(case: Case, stage: Stage) -> Iterator[Front]:
    """Start the server of a case. Do nothing for a case without one."""
    if not case.front:
        yield Front("", "", "", {})
        return
    keys = make_keyring(stage.directory / "keys", TERMS)
    users = _tokens(stage.directory)
    with ExitStack() as held:
        start = {"tidegate": _tidegate, "fastapi": _fastapi, "restate": _restate}[case.front]
        url, path, roles = start(case, stage, keys, held)
        yield Front(url, path, users, roles)


Started = tuple[str, str, Mapping[str, int]]


def _tidegate(case: Case, stage: Stage, keys: Path, held: ExitStack) -> Started:
    port = free_port()
    words = ["-m", "tidegate.cli", "api", "--database", stage.database, "--core", stage.core]
    environ = {
        "TIDEGATE_KEYS": str(keys),
        "TIDEGATE_TOKEN_LIFETIME_S": "3600",
        # Two hundred users make the load of thousands here, which must raise no alerts.
        "TIDEGATE_ALERT_BUSY_OWNER": "1000000",
    }
    command = [sys.executable, *words, "--port", str(port)]
    pid = _child(command, environ, stage.directory / "api.log", held)
    url = f"http://127.0.0.1:{port}"
    _until(lambda: _answers(f"{url}/readyz"))
    path = "/api/v1/internal_transfer" + ("s" if case.batch > 1 else "")
    return url, path, {"python": pid}


def _fastapi(case: Case, stage: Stage, keys: Path, held: ExitStack) -> Started:
    port = free_port()
    command = [environments.python(case.environment), "-m", "uvicorn", "bench.fastapi_app:app"]
    command += ["--port", str(port), "--no-access-log", "--log-level", "warning"]
    environ = {
        "BENCH_DATABASE": stage.database,
        "BENCH_CORE": stage.core,
        "BENCH_KEYS": str(keys),
        "BENCH_INFLIGHT": str(case.inflight),
    }
    pid = _child(command, environ, stage.directory / "fastapi.log", held)
    url = f"http://127.0.0.1:{port}"
    _until(lambda: _answers(f"{url}/healthz"))
    return url, "/api/v1/internal_transfer", {"python": pid}


def _restate(case: Case, stage: Stage, _: Path, held: ExitStack) -> Started:
    port, ingress, admin, node = (free_port() for _ in range(4))
    command = [environments.python(case.environment), "-m", "hypercorn", "--bind"]
    command += [f"127.0.0.1:{port}", "bench.peers.restate_app:app"]
    environ = {
        "BENCH_DATABASE": stage.database,
        "BENCH_CORE": stage.core,
        "BENCH_INFLIGHT": str(case.inflight),
    }
    service = _child(command, environ, stage.directory / "service.log", held)
    _until(lambda: _listens(port))
    environ = {
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_ADMIN__DISABLE_WEB_UI": "true",
        "DO_NOT_TRACK": "1",
        "RESTATE_LOG_FILTER": "warn",
    }
    command = [str(environments.restate_server()), "--base-dir", str(stage.directory / "restate")]
    server = _child(command, environ, stage.directory / "restate.log", held)
    _until(lambda: _answers(f"http://127.0.0.1:{admin}/health"))
    _register(admin, port)
    return f"http://127.0.0.1:{ingress}", "/Transfers/move", {"python": service, "server": server}


def _register(admin: int, port: int) -> None:
    body = json.dumps({"uri": f"http://127.0.0.1:{port}"}).encode()
    headers = {"Content-Type": "application/json"}
    address = f"http://127.0.0.1:{admin}/deployments"

    def accepted() -> bool:
        request = urllib.request.Request(address, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return bool(reply.status < 300)
        except (urllib.error.URLError, OSError):
            return False

    _until(accepted)


def _child(command: Sequence[str], environ: Mapping[str, str], log: Path, held: ExitStack) -> int:
    """Run a process with its output in the log, and stop it at the end."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with log.open("wb") as out:
        child = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": paths} | dict(environ),
            cwd=log.parent,
            stdout=out,
            stderr=out,
        )

    def end() -> None:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    held.callback(end)
    return child.pid


def _tokens(directory: Path) -> str:
    ring = load_keyring(directory / "keys")
    now = time.time()
    tokens = [[owner, ring.token(str(owner), "user", now)] for owner in range(1, USERS + 1)]
    path = directory / "users.json"
    path.write_text(json.dumps(tokens))
    return str(path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + START_S
    while not true():
        if time.monotonic() >= deadline_s:
            raise RuntimeError(f"it does not serve after {START_S:g} s")
        time.sleep(0.05)
