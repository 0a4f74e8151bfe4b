"""`tidegate up` with real processes: started, killed, restarted and stopped."""

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from tests.running import PROGRAM, Up, alive, descendants, eventually, running, tidegate
from tidegate.client import Client
from tidegate.settings import Settings
from tidegate.supervisor.api_processes import processes_here
from tidegate.supervisor.children import EndRequested, end
from tidegate.supervisor.demo_tokens import token
from tidegate.supervisor.supervisor import Supervisor, sessions_for

NAMES = {"api", "worker-1", "core", "postgres"}
# On a machine with enough cores several processes serve the API, each with its own health port.
SIBLINGS = {f"api-{n + 1}" for n in range(processes_here())} if processes_here() > 1 else set()

pytestmark = pytest.mark.slow

RECOVERY_S = 35.0  # The promised time for recovery after any crash.


def moves_money(up: Up) -> bool:
    """Make one transfer in each direction and wait for their ends."""
    with Client(up.endpoints["api"], token(up.directory, "4001", "user")) as client:
        ends = [
            client.transfer({"from": a, "to": b, "asset": "USDT", "amount": "1"}, wait_s=10)
            for a, b in (("FUNDING", "SPOT"), ("SPOT", "FUNDING"))
        ]
    return [end["state"] for end in ends] == ["COMMITTED", "COMMITTED"]


def is_ready(up: Up) -> bool:
    with Client(up.endpoints["api"]) as client:
        return client.ready()


def test_everything_is_ready_and_its_addresses_are_listed(tmp_path: Path) -> None:
    with running(tmp_path / "all") as up:
        assert up.ready_line == f"ready {up.endpoints['api']}\n"
        assert set(up.endpoints) == {"api", "postgres", "core", "worker-1"} | SIBLINGS
        assert (up.directory / "run/endpoints.json").stat().st_mode & 0o777 == 0o600, "a password"
        assert up.endpoints["core"].startswith("unix:")
        assert up.endpoints["postgres"].startswith("postgresql://")
        assert set(up.pids()) == NAMES
        assert all(alive(pid) for pid in up.pids().values())
        assert set(up.pids().values()) <= set(up.descendants())
        private = up.directory / "keys/private.pem"
        assert private.stat().st_mode & 0o777 == 0o600
        assert up.balances()["FUNDING", "USDT"] == "10000.000000"
        assert moves_money(up)
        with httpx2.Client(base_url=up.endpoints["worker-1"]) as worker:
            assert worker.get("/readyz").json()["status"] == "ok"
            page = worker.get("/metrics").text
            assert 'tidegate_lane_closed{lane="core"} 0.0' in page
            assert 'tidegate_background_age_seconds{task="asset refresh"}' in page
            assert worker.get("/api/v1/balances").status_code == 404, (
                "a worker serves no other route"
            )


def test_a_killed_child_is_restarted_and_money_moves_again(tmp_path: Path) -> None:
    with running(tmp_path / "all") as up:
        before = up.balances()
        for name in sorted(NAMES):
            killed = up.pid(name)
            os.kill(killed, signal.SIGKILL)
            eventually(lambda name=name, killed=killed: up.pid(name) != killed, 10)  # type: ignore[misc]
            eventually(lambda: is_ready(up), 15)
            assert moves_money(up), name
        assert set(up.pids()) == NAMES
        assert up.balances() == before


def test_all_children_killed_at_once_are_restarted(tmp_path: Path) -> None:
    with running(tmp_path / "all") as up:
        killed = up.pids()
        for pid in killed.values():
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not set(up.pids().values()) & set(killed.values()), 15)
        eventually(lambda: is_ready(up), 15)
        assert moves_money(up)


def test_ctrl_c_stops_every_process_and_a_second_start_finds_the_money(tmp_path: Path) -> None:
    directory = tmp_path / "all"
    with running(directory) as up:
        up.tidegate("transfer", "FUNDING", "SPOT", "USDT", "12.5", "--user", "4001")
        before, processes = up.balances(), up.descendants()
        assert up.end(signal.SIGINT) == 0
        assert not [pid for pid in processes if alive(pid)]
        assert [path.name for path in (directory / "run").iterdir()] == ["lock"]
    with running(directory) as up:
        assert up.balances() == before
        assert before["SPOT", "USDT"] == "5012.500000"


def test_a_killed_supervisor_takes_its_children_with_it(tmp_path: Path) -> None:
    directory = tmp_path / "all"
    with running(directory) as up:
        before, processes, port = up.balances(), up.descendants(), up.url.rpartition(":")[2]
        up.end(signal.SIGKILL)
        eventually(lambda: not [pid for pid in processes if alive(pid)], 5)
    with running(directory, "--port", port) as up:
        assert up.url.endswith(port)
        assert up.balances() == before


def test_a_signal_during_the_start_stops_every_process(tmp_path: Path) -> None:
    for wait_s in (0.6, 1.2, 2.4):
        command = [str(PROGRAM), "up", "--data", str(tmp_path / str(wait_s)), "--port", "0"]
        with subprocess.Popen(command) as child:
            time.sleep(wait_s)
            processes = descendants(child.pid)
            child.send_signal(signal.SIGTERM)
            child.wait(60)
        eventually(lambda processes=processes: not [p for p in processes if alive(p)], 5)  # type: ignore[misc]


def test_a_requested_end_is_raised_again_if_its_exception_was_lost(tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    supervisor = Supervisor(Settings(directory=str(tmp_path)))
    try:
        with suppress(EndRequested):
            end(signal.SIGTERM, None)
        with pytest.raises(EndRequested):
            supervisor.keep_running(0.0)
    finally:
        for number, known in before.items():
            signal.signal(number, known)
    supervisor.keep_running(0.0)
    assert not issubclass(EndRequested, Exception), "any `except Exception` would catch it"


def test_the_configured_number_of_processes_serve_and_restart_on_their_ports(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "all", "--port", "0", "--processes", "2") as up:
        own = [up.endpoints[name] for name in ("api-1", "api-2")]
        assert all(httpx2.get(f"{url}/readyz").status_code == 200 for url in own)
        assert httpx2.get(f"{up.url}/metrics").status_code == 404
        assert "internal_transfer_requests" in httpx2.get(f"{own[0]}/metrics").text
        killed = up.pid("api")
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: up.pid("api") != killed, 10)
        eventually(lambda: is_ready(up), 15)
        assert moves_money(up)
        assert [up.endpoints[name] for name in ("api-1", "api-2")] == own
        assert f"api: {up.url} serves" in up.tidegate("doctor")


def test_up_runs_one_process_for_every_two_cores_and_no_more_than_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cores, processes in ((1, 1), (2, 1), (3, 1), (4, 2), (64, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert processes_here() == processes


def test_the_embedded_postgresql_allows_the_sessions_of_all_processes() -> None:
    assert sessions_for(Settings()) == 100, "PostgreSQL's own default, where that is enough"
    many = Settings(processes=64, connections=8, workers=2)
    assert sessions_for(many) == 64 * (8 + 1) + 2 * 8 + 20


def test_a_directory_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    with running(tmp_path / "all", "--port", "0", "--bare") as up:
        assert up.json("balances", "--user", "4001") == {"balances": []}
        result = tidegate("up", "--data", str(up.directory), "--port", "0")
        assert (result.returncode, result.stdout) == (1, "")
        [line] = result.stderr.splitlines()
        assert f"another `tidegate up` (pid {up.child.pid}) runs on" in line
        assert is_ready(up)


def test_a_port_in_use_is_refused_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = tidegate("up", "--data", str(tmp_path), "--port", str(port))
    assert (result.returncode, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert f"port {port}" in line
    assert "--port" in line


def test_a_child_that_cannot_start_is_reported_with_its_last_log_line(tmp_path: Path) -> None:
    (tmp_path / "core").write_text("this is not a directory")
    result = tidegate("up", "--data", str(tmp_path), "--port", "0")
    assert (result.returncode, result.stdout) == (1, "")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("tidegate: core does not start: ")
    assert "File exists" in last


def test_a_long_directory_path_works(tmp_path: Path) -> None:
    with running(tmp_path / ("long" * 40)) as up:
        killed = up.pid("postgres")
        address = up.endpoints["postgres"]
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: up.pid("postgres") != killed, 10)
        eventually(lambda: is_ready(up), RECOVERY_S)
        assert up.endpoints["postgres"] != address
        assert moves_money(up)
