"""The command line: commands, exit codes, and errors in one line."""

import inspect
import json
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import jwt
import pytest

from tests.conftest import SCHEMA
from tests.running import PROGRAM, Up, eventually, running, tidegate
from tidegate.cli import cli
from tidegate.client import Client, make_keyring
from tidegate.flows import FLOWS
from tidegate.service.auth import TokenPolicy
from tidegate.store.migrate import migrations
from tidegate.supervisor.demo_tokens import token
from tidegate.supervisor.supervisor import free_port

slow = pytest.mark.slow
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("up") / "all") as up:
        yield up


def one_line(result: subprocess.CompletedProcess[str], code: int) -> str:
    assert result.returncode == code, result
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("tidegate: ")
    return line


def test_migrate_prints_what_it_applied_and_then_that_it_is_up_to_date(database: str) -> None:
    first = tidegate("migrate", "--database", database, "--schema", "fresh")
    assert first.returncode == 0, first.stderr
    assert "fresh: 0001_begin" in first.stdout
    again = tidegate("migrate", "--database", database, "--schema", "fresh")
    assert again.stdout == "up to date\n"
    result = tidegate("migrate", "--schema", SCHEMA, env={"DATABASE_URL": database})
    assert result.stdout == "up to date\n"


def test_migrate_prints_json_for_programs(database: str) -> None:
    arguments = ("migrate", "--database", database, "--schema", "anew", "-o", "json")
    applied = json.loads(tidegate(*arguments).stdout)["applied"]
    assert {"anew: 0001_begin", "anew: flow internal_transfer"} <= set(applied)
    assert json.loads(tidegate(*arguments).stdout) == {"applied": []}


def test_a_migration_shows_its_progress_on_a_terminal(database: str) -> None:
    arguments = ("migrate", "--database", database, "--schema", "watched")
    out, shown = at_a_terminal(*arguments)
    assert "watched: 0001_begin" in out
    assert "migrating" in shown
    total = len(migrations("shared")) + len(migrations("store")) + len(FLOWS)
    # The shared migrations were applied before.
    assert f"{total - len(migrations('shared'))}/{total}" in shown.replace(" ", "")
    assert tidegate(*arguments).stderr == "", "without a terminal there is no bar"


def at_a_terminal(*arguments: str) -> tuple[str, str]:
    """Run a command; return its stdout and what it drew on the terminal through stderr."""
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=theirs, text=True, env=env
    ) as child:
        os.close(theirs)
        assert child.stdout is not None
        drawn = b""
        with suppress(OSError):  # The pseudo-terminal fails when the program has ended.
            while chunk := os.read(ours, 4096):
                drawn += chunk
        out = child.stdout.read()
    os.close(ours)
    assert child.returncode == 0, drawn
    return out, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode())


def test_every_command_with_a_result_can_print_it_as_json() -> None:
    """The other commands run a service, or print a single value."""
    others = {"up", "demo", "api", "worker", "core", "token"}
    for command in cli().registered_commands:
        assert command.callback is not None
        takes_output = "output" in inspect.signature(command.callback).parameters
        assert takes_output is (command.callback.__name__ not in others), command.callback


def test_the_program_prints_its_version() -> None:
    assert tidegate("--version").stdout == f"tidegate {version('tidegate')}\n"


def test_a_missing_database_is_a_one_line_error(tmp_path: Path) -> None:
    nowhere = f"host={tmp_path} dbname=none"
    assert "cannot migrate: " in one_line(tidegate("migrate", "--database", nowhere), 1)
    assert "DATABASE_URL" in one_line(tidegate("migrate"), 1)
    assert "DATABASE_URL" in one_line(tidegate("worker"), 1)


def test_flows_prints_every_diagram() -> None:
    result = tidegate("flows").stdout
    for name in ("internal_transfer", "deposit", "external_withdrawal"):
        assert f"# {name}\nstateDiagram-v2" in result
    assert "deposit" in json.loads(tidegate("flows", "-o", "json").stdout)


def test_core_runs_and_stops_in_order(tmp_path: Path) -> None:
    arguments = ["core", "--data", str(tmp_path / "core"), "--listen", f"unix:{tmp_path}/s"]
    with subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("trading core ready")
        child.terminate()
        assert child.wait(20) == 0


def test_a_wrong_listen_address_of_the_core_is_a_one_line_error(tmp_path: Path) -> None:
    result = tidegate("core", "--data", str(tmp_path / "core"), "--listen", "carrier pigeon")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("trading core: listen on unix:PATH or tcp:")


def test_a_wrong_setting_is_refused_at_start(tmp_path: Path) -> None:
    result = tidegate("up", "--data", str(tmp_path), env={"TIDEGATE_SCAN_S": "often"})
    assert "scan_s = 'often' is invalid; allowed: seconds" in one_line(result, 2)
    (tmp_path / "tidegate.toml").write_text("colour = 'blue'\n")
    result = tidegate("up", "--data", str(tmp_path))
    assert "no setting 'colour'" in one_line(result, 2)


@pytest.mark.parametrize(
    "arguments", [["shwo"], ["show"], ["show", "--no"], ["fund", "x", "a", "b", "1"]]
)
def test_a_mistyped_command_is_a_one_line_error(arguments: list[str]) -> None:
    assert "--help" in one_line(tidegate(*arguments), 2)


@slow
def test_without_a_running_tidegate_the_error_says_how_to_start_it(tmp_path: Path) -> None:
    for arguments in (["stuck"], ["balances", "--user", "1"], ["audit"], ["show", "x"]):
        result = one_line(tidegate(*arguments, "--data", str(tmp_path)), 2)
        assert f"tidegate up --data {tmp_path}" in result
    result = one_line(tidegate("token", "--data", str(tmp_path), "--user", "1"), 1)
    assert "tidegate up" in result
    command = ("stuck", "--url", "http://127.0.0.1:9")
    assert "TIDEGATE_TOKEN" in one_line(tidegate(*command), 2)
    result = one_line(tidegate(*command, env={"TIDEGATE_TOKEN": "t"}), 1)
    assert "does not answer" in result


def test_completion_is_offered() -> None:
    assert "--show-completion" in tidegate("--help").stdout


def test_the_doctor_finds_no_problem_in_a_new_directory(tmp_path: Path) -> None:
    result = tidegate("doctor", "--data", str(tmp_path / "new"), env={"TIDEGATE_PORT": "0"})
    assert (result.returncode, "WRONG" in result.stdout) == (0, False), result.stdout


def test_the_doctor_describes_each_problem(tmp_path: Path) -> None:
    result = tidegate("doctor", "--data", str(tmp_path), env={"TIDEGATE_PORT": "x"})
    assert result.returncode == 1
    assert "WRONG  settings: the environment: port = 'x'" in result.stdout
    nowhere = {"DATABASE_URL": f"host={tmp_path} dbname=none"}
    result = tidegate("doctor", "--data", str(tmp_path), "-o", "json", env=nowhere)
    assert result.returncode == 1
    findings = json.loads(result.stdout)
    assert any("DATABASE_URL" in f["what"] for f in findings if not f["ok"])


@contextmanager
def serving(env: dict[str, str], *arguments: str) -> Iterator[None]:
    """Run one part as in production; it must end with exit code 0."""
    with subprocess.Popen([str(PROGRAM), *arguments], env=os.environ | env) as child:
        try:
            yield
        finally:
            child.terminate()
            assert child.wait(20) == 0


@slow
def test_the_parts_run_separately_on_any_database(database: str, tmp_path: Path) -> None:
    policy = TokenPolicy(issuer="tidegate", audience="tidegate")
    env = {
        "DATABASE_URL": database,
        "TIDEGATE_SCHEMA": SCHEMA,
        "TIDEGATE_CORE": f"unix:{tmp_path}/socket",
        "TIDEGATE_KEYS": str(make_keyring(tmp_path / "keys", policy)),
        "TIDEGATE_LOG_FORMAT": "json",
    }
    port, beside = (free_port("127.0.0.1", 0, 0.0) for _ in range(2))
    core = ("core", "--data", str(tmp_path / "core"), "--listen", env["TIDEGATE_CORE"])
    deposit = {"user_id": 1, "account": "SPOT", "asset": "USDT", "amount": "3", "cid": "c"}
    with (
        serving(env, *core),
        serving(env, "worker", "--port", str(beside)),
        serving(env, "api", "--port", str(port)),
        Client(f"http://127.0.0.1:{port}", token(tmp_path, "o", "operator")) as operator,
        Client(f"http://127.0.0.1:{beside}", "") as worker,
    ):
        eventually(lambda: operator.ready() and worker.ready(), 20)
        id_ = operator.deposit(deposit)["req_id"]
        eventually(lambda: operator.history(id_)["transfer"]["state"] == "COMPLETED", 20)


@slow
def test_token_prints_a_token_and_nothing_else(up: Up) -> None:
    for role in ("user", "operator", "approver", "auditor"):
        result = up.tidegate("token", "--user", "7", "--role", role)
        claims = jwt.decode(result.strip(), options={"verify_signature": False})
        assert result == result.strip() + "\n"
        assert (claims["sub"], claims["roles"]) == ("7", [role])
        assert claims["exp"] - claims["iat"] == 8 * 3600, "a working day, on a single machine"
    with Client(up.url, up.tidegate("token", "--user", "4001").strip()) as client:
        assert client.balances()["balances"]


@slow
def test_fund_deposits_once_per_cid(up: Up) -> None:
    for _ in range(2):
        up.tidegate("fund", "5001", "FUNDING", "USDT", "20", "--cid", "salary")
    assert up.json("fund", "5001", "SPOT", "BTC", "0.5")["state"] == "COMPLETED"
    assert up.balances(5001) == {("FUNDING", "USDT"): "20.000000", ("SPOT", "BTC"): "0.50000000"}


@slow
def test_transfer_show_and_balances_agree(up: Up) -> None:
    up.tidegate("fund", "5002", "FUNDING", "USDT", "20")
    arguments = ("transfer", "FUNDING", "SPOT", "USDT", "7.5", "--user", "5002")
    created = up.json(*arguments, "--cid", "one")
    assert created["state"] == "COMMITTED"
    assert up.json(*arguments, "--cid", "one")["req_id"] == created["req_id"]
    assert up.balances(5002)["SPOT", "USDT"] == "7.500000"
    shown = up.tidegate("show", created["req_id"])
    lines = shown.splitlines()
    assert lines[0].startswith(f"{created['req_id']}  internal_transfer  user 5002  7.500000 USDT")
    assert "FUNDING debit: done" in shown
    assert "SPOT credit: done" in shown
    assert lines[-1].endswith("COMMITTED")
    watched = up.tidegate(*arguments, "--watch")
    assert watched.splitlines()[-1].endswith("COMMITTED")
    assert up.json("show", created["req_id"])["transfer"]["state"] == "COMMITTED"


@slow
def test_a_refused_transfer_is_one_line_with_its_code_and_its_id(up: Up) -> None:
    arguments = ("transfer", "FUNDING", "SPOT", "USDT", "1", "--user", "5003")
    result = up.tidegate(*arguments, code=1)
    assert "SOURCE_ACCOUNT_NOT_FOUND" in result or "INSUFFICIENT_BALANCE" in result
    assert "tidegate show 01" in result
    assert len(result.splitlines()) == 1
    result = up.tidegate("transfer", "spot", "SPOT", "usdt", "1", "--user", "5003", code=1)
    assert result.startswith("tidegate: SAME_ACCOUNT: ")
    assert "tidegate fund 5003 FUNDING" in up.tidegate("balances", "--user", "5003")


@slow
def test_halt_stops_transfers_until_resume(up: Up) -> None:
    arguments = ("transfer", "FUNDING", "SPOT", "USDT", "1", "--user", "4001")
    up.tidegate("halt", "a test")
    try:
        assert up.tidegate(*arguments, code=1).startswith("tidegate: HALTED: ")
        up.tidegate("halt", "another reason")
        seen = tidegate("doctor", "--data", str(up.directory)).stdout
        assert "WRONG  halted by" in seen
        assert all(f": {why}; fix the problem" in seen for why in ("a test", "another reason"))
        [first, second] = json.loads(up.tidegate("halt", "a third", "-o", "json"))["halts"][:2]
        left = up.tidegate("resume", "only this one", "--halt", str(first["id"]))
        assert f"ended halt {first['id']}" in left
        assert f"still halted: halt {second['id']}" in left
        assert up.tidegate(*arguments, code=1).startswith("tidegate: HALTED: ")
    finally:
        result = up.tidegate("resume", "the test is over")
    assert result.strip().endswith("resumed")
    assert ": another reason" in result
    up.tidegate(*arguments)


@slow
def test_no_transfer_is_stuck_and_an_ended_one_is_not_retried(up: Up) -> None:
    assert up.tidegate("stuck").startswith("no transfer has been open for more than 60 s")
    assert up.json("stuck", "--seconds", "1") == {"transfers": [], "next_cursor": None}
    created = up.json("transfer", "FUNDING", "SPOT", "USDT", "1", "--user", "4001")
    assert "has ended" in up.tidegate("retry", created["req_id"], code=1)
    arguments = ("--answer", "done", "--reason", "seen", "--evidence", "ticket=1")
    assert "INVALID_REQUEST" in up.tidegate("resolve", created["req_id"], *arguments, code=1)
    assert "NOT_FOUND" in up.tidegate("confirm", "999", code=1)
    assert "NOT_FOUND" in up.tidegate("show", "01JFVQ2X8Z0Y1M3N4P5R6S7T8V", code=1)


@slow
def test_a_stuck_transfer_is_listed_retried_and_resolved_by_two_people(up: Up) -> None:
    os.kill(up.pid("core"), signal.SIGSTOP)
    try:
        arguments = ("transfer", "FUNDING", "SPOT", "USDT", "2", "--user", "4001")
        created = up.json(*arguments)
        assert created["state"] == "PENDING"
        assert created["req_id"] in up.tidegate("stuck", "--seconds", "0")
        assert "waits for core" in up.tidegate("show", created["req_id"])
        assert "is retried" in up.tidegate("retry", created["req_id"])
        proposal = ("--answer", "rejected", "--reason", "it is down", "--evidence", "ticket=1")
        reply = up.json("resolve", created["req_id"], *proposal, "--as", "olga")
        resolution = str(reply["resolution"])
        assert "FORBIDDEN" in up.tidegate("confirm", resolution, "--as", "olga", code=1)
        # The system must confirm a proposed "rejected" first, and it does not answer.
        assert "does not confirm" in up.tidegate("confirm", resolution, "--as", "peter")
        assert "NAME=VALUE" in up.tidegate("resolve", "x", *proposal[:5], "ticket", code=2)
    finally:
        os.kill(up.pid("core"), signal.SIGCONT)
    eventually(lambda: up.json("show", created["req_id"])["transfer"]["lane"] is None, 40)


@slow
def test_tail_shows_a_transfer_as_it_is_made(up: Up) -> None:
    arguments = [str(PROGRAM), "tail", "--data", str(up.directory), "--user", "4001", "-o", "json"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        out = child.stdout
        assert out is not None
        try:
            # `tail` shows only changes after its first query: make transfers until one is shown.
            def shown() -> bool:
                up.tidegate("transfer", "FUNDING", "SPOT", "USDT", "1", "--user", "4001")
                return bool(select.select([out], [], [], 0)[0])

            eventually(shown, 30)
            lines = [json.loads(out.readline())]
            while lines[-1]["state"] != "COMMITTED":
                lines.append(json.loads(out.readline()))
        finally:
            child.terminate()
    assert {line["user_id"] for line in lines} == {4001}
    changes = [(line["req_id"], line["state"], line["attempts"]) for line in lines]
    assert len(set(changes)) == len(changes), "a change is shown once"


@slow
def test_a_member_pays_through_the_pool(up: Up) -> None:
    """No points were issued in this test, so the payment is rejected."""
    arguments = ("pool", "pay", "7", "4002", "100", "--user", "4001", "--reason", "lunch")
    created = up.json(*arguments, "--cid", "first")
    assert up.json(*arguments, "--cid", "first")["transfer_id"] == created["transfer_id"]
    for _ in range(10):
        shown = up.json("pool", "show", created["transfer_id"], "--user", "4001")
        if shown["status"] == "rejected":
            break
    assert (shown["status"], shown["checks"]["balance"]) == ("rejected", 0)
    assert created["transfer_id"] in up.tidegate("pool", "list", "--user", "4001", "--guild", "7")


@slow
def test_the_doctor_finds_no_problem_in_a_running_tidegate(up: Up) -> None:
    result = up.tidegate("doctor")
    assert f"api: {up.url} serves" in result
    assert "WRONG" not in result


@slow
def test_archive_finds_the_tables_of_a_running_tidegate(up: Up) -> None:
    nothing = {"transfers": 0, "answers": 0, "attempts": 0, "cids": 0}
    assert up.json("archive", "--older-than", "2") == nothing
    assert up.json("audit")["ok"]


@slow
def test_audit_prints_the_books_and_exits_by_them(up: Up) -> None:
    report = up.json("audit")
    assert (report["ok"], report["halted"]) == (True, False)
    assert report["assets"]["USDT"].keys() == {
        "funding", "spot", "held", "in_flight", "external", "gap"
    }  # fmt: skip
    assert report["assets"]["USDT"]["gap"] == "0"
    out, shown = at_a_terminal("audit", "--data", str(up.directory))
    assert "the books agree" in out
    assert "adding up every operation" in shown
    with Client(up.url, token(up.directory, "axel", "auditor")) as operator:
        result = operator.audit_progress()
    assert result["read"] > 0
    assert result["of_about"] >= 0


@slow
def test_demo_shows_every_step_and_exits_0() -> None:
    result = tidegate("demo")
    assert result.returncode == 0, result.stderr
    for text in ("COMMITTED", "FAILED (INSUFFICIENT", "ROLLED_BACK (", "kill -9 core", "agree"):
        assert text in result.stdout
