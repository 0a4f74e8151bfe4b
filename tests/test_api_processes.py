"""Several API processes on one port, as real processes: what they share, and how one recovers."""

import asyncio
import json
import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.acceptance.rig import TERMS, Stack, jwks, stacked, token, transfer_body, until
from tests.cluster import cluster_url, create_database, leave_database
from tests.conftest import SCHEMA
from tests.forked import Forked
from tests.running import alive, descendants, tidegate
from tests.token_clients import Bearer
from tidegate.service.auth import fingerprint

pytestmark = pytest.mark.slow

MAKE, BATCH = "/api/v1/internal_transfer", "/api/v1/internal_transfers"
PER_SECOND = 20
END_S = 25.0  # The promised time for a single process to end.
REQUESTS = re.compile(
    r'^internal_transfer_requests_total\{route="(.+)",status="200"\} (\S+)$', re.MULTILINE
)


class Program:
    """A running `tidegate api --processes 2` with its log."""

    def __init__(self, directory: Path, database: str, **settings: object) -> None:
        self.directory = directory
        (directory / "keys.json").write_text(jwks())
        chosen: dict[str, object] = {
            "database": database,
            "schema": SCHEMA,
            "processes": 2,
            "port": 0,
            "log_format": "json",
            "connections": 3,
            "keys": str(directory / "keys.json"),
            "issuer": TERMS.issuer,
        }
        self.config = directory / "tidegate.toml"
        lines = [f"{name} = {json.dumps(value)}" for name, value in {**chosen, **settings}.items()]
        self.config.write_text("\n".join(lines))
        self.log = directory / "api.log"
        self.child = Forked(["tidegate.cli", "api", "--config", str(self.config)], self.log)
        reply = until(lambda: self.event("all_processes_ready"))
        self.port = int(reply["address"][1])
        self.health_ports: list[int] = reply["health_ports"]

    def event(self, name: str) -> Any:
        assert self.child.poll() is None, self.log.read_text()
        lines = (line for line in self.log.read_text().splitlines() if line.startswith("{"))
        return next((entry for entry in map(json.loads, lines) if entry["event"] == name), None)

    def client(self, bearer: str | Bearer = "") -> httpx2.Client:
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        base = f"http://127.0.0.1:{self.port}"
        return httpx2.Client(base_url=base, headers=headers, timeout=30, trust_env=False)

    def health(self, number: int, path: str) -> httpx2.Response:
        url = f"http://127.0.0.1:{self.health_ports[number]}{path}"
        return httpx2.get(url, timeout=10, trust_env=False)

    @contextmanager
    def both(self, bearer: str | Bearer = "") -> Iterator[list[httpx2.Client]]:
        """Yield a client for each process: the prefix of X-Request-Id identifies the process."""
        found: dict[str, httpx2.Client] = {}
        with ExitStack() as held:
            for _ in range(200):
                client = held.enter_context(self.client(bearer))
                name = client.get("/healthz").headers["X-Request-Id"].partition("-")[0]
                found.setdefault(name, client)
                if len(found) == 2:
                    yield list(found.values())
                    return
        raise AssertionError("only one process answers")

    def pids(self) -> list[int]:
        return descendants(self.child.pid)


@pytest.fixture(scope="module")
def stack(template: str) -> Iterator[Stack]:
    """A core and a single API, through which users are funded."""
    name = f"{template}_siblings"
    with stacked(create_database(cluster_url(), name, template)) as stack:
        stack.start_core()
        stack.start_api()
        yield stack
    leave_database(cluster_url(), name)


@pytest.fixture(scope="module")
def program(stack: Stack) -> Iterator[Program]:
    with tempfile.TemporaryDirectory(prefix="tg-") as name:
        (Path(name) / "denied").write_text("")
        program = Program(
            Path(name),
            stack.database,
            core=stack.address,
            scan_s=0.1,
            lease_s=1.0,
            rate_limits=True,
            requests_per_second=PER_SECOND,
            transfers_per_day=100_000,
            deny_list=f"{name}/denied",
            audit_s=3600.0,
        )
        yield program
        program.child.ended()


def test_both_processes_serve_the_port_and_each_has_its_own_health_port(program: Program) -> None:
    with program.both() as clients:
        for client in clients:
            assert client.get("/readyz").json()["status"] == "ok"
            reply = client.get("/metrics")
            assert (reply.status_code, reply.json()["code"]) == (404, "NOT_FOUND")
            assert "health address" in reply.json()["detail"]
    for number in (0, 1):
        assert program.health(number, "/readyz").json()["status"] == "ok"
        page = program.health(number, "/metrics").text
        assert dict(REQUESTS.findall(page))["/healthz"] != "0.0", "it has served requests"
        assert program.health(number, "/api/v1/assets").status_code == 404
        assert program.health(number, "/healthz").headers["Date"]


def test_one_cid_at_both_processes_at_once_is_one_transfer(program: Program, stack: Stack) -> None:
    user = stack.user(funding=10)
    with program.both(user.token) as clients, ThreadPoolExecutor(8) as pool:
        body = transfer_body("in", "1") | {"cid": "same"}
        futures = [
            pool.submit(clients[number % 2].post, MAKE, json=body, headers={"Prefer": "wait=10"})
            for number in range(8)
        ]
        answers = [future.result() for future in futures]
    assert {reply.status_code for reply in answers} <= {200, 201}, answers
    assert len({reply.json()["req_id"] for reply in answers}) == 1
    assert len(user.transfers()) == 1
    user.has(9, 1)


def test_two_processes_share_one_rate_limit(program: Program, stack: Stack) -> None:
    user = stack.user(funding=1000)
    batch = {"transfers": [transfer_body("in", "0.01")] * 3 * PER_SECOND}
    with program.both(user.token) as clients, ThreadPoolExecutor(2) as pool:
        began_s = time.monotonic()
        futures = [pool.submit(client.post, BATCH, json=batch) for client in clients]
        results = [item for future in futures for item in future.result().json()["results"]]
        took_s = time.monotonic() - began_s
    created = [item for item in results if item["status"] in (201, 202)]
    refused = [item for item in results if item.get("code") == "RATE_LIMIT_EXCEEDED"]
    assert len(created) + len(refused) == 6 * PER_SECOND
    assert PER_SECOND <= len(created) <= PER_SECOND * (1 + took_s)


def test_either_process_reports_the_progress_of_an_audit(program: Program) -> None:
    with program.both(token("olga", "operator", "auditor")) as clients:
        audited = clients[0].get("/api/v1/operator/audit")
        assert audited.json()["ok"], audited.text
        replies = [client.get("/api/v1/operator/audit/progress").json() for client in clients]
    assert replies[0] == replies[1]
    assert replies[0]["read"] > 0


def test_a_revoked_token_is_refused_by_both(program: Program) -> None:
    revoked, other_token = token("4711", "user"), token("4712", "user")
    with program.both() as clients:

        def statuses(bearer: str) -> set[int]:
            headers = {"Authorization": f"Bearer {bearer}"}
            return {c.get("/api/v1/assets", headers=headers).status_code for c in clients}

        assert statuses(revoked) == statuses(other_token) == {200}
        (program.directory / "denied").write_text(fingerprint(revoked))
        until(lambda: statuses(revoked) == {401}, 10.0)
        assert statuses(other_token) == {200}


async def transfer_until_ended(client: httpx2.AsyncClient, cid: str) -> str:
    """Repeat a request with one cid until a process reports its end; return the id."""
    body = transfer_body("in", "1") | {"cid": cid}
    for _ in range(100):
        try:
            reply = await client.post(MAKE, json=body, headers={"Prefer": "wait=1"})
        except httpx2.TransportError:
            continue  # The process with this connection was killed.
        if reply.status_code in (200, 201):
            return str(reply.json()["req_id"])
        assert reply.status_code in (202, 429, 503), reply.text
        await asyncio.sleep(0.1)
    raise AssertionError(f"{cid} does not end")


def test_a_killed_process_loses_nothing_and_is_restarted(program: Program, stack: Stack) -> None:
    user, count = stack.user(funding=100), 30
    killed, other = program.pids()

    async def load(kill: int | None = None) -> list[str]:
        base = f"http://127.0.0.1:{program.port}"
        headers = {"Authorization": f"Bearer {user.token}"}
        async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=30) as client:
            cids = (f"k{number}" for number in range(count))
            asking = [asyncio.ensure_future(transfer_until_ended(client, cid)) for cid in cids]
            if kill is not None:
                await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                os.kill(kill, signal.SIGKILL)
            return list(await asyncio.gather(*asking))

    first = asyncio.run(load(killed))
    assert first == asyncio.run(load()), "the same cid is the same transfer at each process"
    assert len(set(first)) == len(user.transfers()) == count
    user.has(100 - count, count)
    until(lambda: both_ready(program))
    assert other in program.pids()
    assert killed not in program.pids()
    with program.both() as clients:
        assert all(client.get("/readyz").status_code == 200 for client in clients)


def both_ready(program: Program) -> bool:
    try:
        return all(program.health(number, "/readyz").status_code == 200 for number in (0, 1))
    except httpx2.TransportError:
        return False


def refusal(*arguments: str) -> str:
    reply = tidegate("api", *arguments)
    assert reply.returncode == 1, reply
    assert reply.stdout == ""
    [line] = set(reply.stderr.splitlines())  # Both children may print it.
    return line


def test_wrong_settings_are_one_line_errors(program: Program, database: str) -> None:
    config = ("--config", str(program.config))
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        for port, count in ((program.port, 1), (program.port, 2), (taken.getsockname()[1], 2)):
            line = refusal(*config, "--port", str(port), "--processes", str(count))
            assert line.startswith(f"tidegate: port {port} of 127.0.0.1 cannot be used (")
    program.config.write_text(program.config.read_text() + "\nhealth_ports = [1]\n")
    assert "health_ports has 1 ports for 2 processes" in refusal(*config)
    line = refusal("--database", database, "--processes", "64")
    assert "64 processes with 9 sessions each need 576" in line
    assert "lower `processes` or `connections`" in line
    line = refusal("--database", database, "--schema", "nowhere", "--processes", "2")
    assert "nowhere" in line


def test_the_children_end_with_their_parent(database: str, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    program = Program(tmp_path, database)
    children = program.pids()
    assert len(children) == 2
    program.child.kill()
    until(lambda: not any(map(alive, children)), 5.0)
    # Start again on the same port at once, and stop this one by SIGTERM.
    program = Program(tmp_path / "again", database, port=program.port)
    children, began_s = program.pids(), time.monotonic()
    with program.both():
        program.child.send_signal(signal.SIGTERM)
        assert program.child.wait(END_S) == 0
    assert time.monotonic() - began_s < END_S
    assert not any(map(alive, children))
