"""The program as it is typed: commands, exit codes, and errors in one line."""

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
    with running(tmp_path_factory.mktemp("up") / "all") as everything:
        yield everything


def one_line(said: subprocess.CompletedProcess[str], code: int) -> str:
    assert said.returncode == code, said
    assert said.stdout == ""
    [line] = said.stderr.splitlines()
    assert line.startswith("tidegate: ")
    return line


def test_migrate_says_what_it_did_and_then_that_nothing_is_left(database: str) -> None:
    first = tidegate("migrate", "--database", database, "--schema", "fresh")
    assert first.returncode == 0, first.stderr
    assert "fresh: 0001_begin" in first.stdout
    again = tidegate("migrate", "--database", database, "--schema", "fresh")
    assert again.stdout == "up to date\n"
    said = tidegate("migrate", "--schema", SCHEMA, env={"DATABASE_URL": database})
    assert said.stdout == "up to date\n"


def test_migrate_tells_programs_what_it_did(database: str) -> None:
    words = ("migrate", "--database", database, "--schema", "anew", "-o", "json")
    applied = json.loads(tidegate(*words).stdout)["applied"]
    assert {"anew: 0001_begin", "anew: flow internal_transfer"} <= set(applied)
    assert json.loads(tidegate(*words).stdout) == {"applied": []}


def test_whoever_watches_a_terminal_sees_how_far_a_migration_is(database: str) -> None:
    words = ("migrate", "--database", database, "--schema", "watched")
    out, shown = at_a_terminal(*words)
    assert "watched: 0001_begin" in out
    assert "migrating" in shown
    wanted = len(migrations("shared")) + len(migrations("store")) + len(FLOWS)
    # What all stores share was there before.
    assert f"{wanted - len(migrations('shared'))}/{wanted}" in shown.replace(" ", "")
    assert tidegate(*words).stderr == "", "a bar is for terminals only"


def at_a_terminal(*words: str) -> tuple[str, str]:
    """What a command prints, and what it draws meanwhile on the terminal of who waits."""
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [PROGRAM, *words], stdout=subprocess.PIPE, stderr=theirs, text=True, env=env
    ) as child:
        os.close(theirs)
        assert child.stdout is not None
        drawn = b""
        with suppress(OSError):  # The terminal is gone when the program is.
            while piece := os.read(ours, 4096):
                drawn += piece
        out = child.stdout.read()
    os.close(ours)
    assert child.returncode == 0, drawn
    return out, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode())


def test_every_command_that_prints_what_it_found_prints_it_for_programs_too() -> None:
    """The others run something, or print one thing that is what it is."""
    others = {"up", "demo", "api", "worker", "core", "token"}
    for command in cli().registered_commands:
        assert command.callback is not None
        takes_output = "output" in inspect.signature(command.callback).parameters
        assert takes_output is (command.callback.__name__ not in others), command.callback


def test_the_program_says_which_it_is() -> None:
    assert tidegate("--version").stdout == f"tidegate {version('tidegate')}\n"


def test_a_database_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    nowhere = f"host={tmp_path} dbname=none"
    assert "cannot migrate: " in one_line(tidegate("migrate", "--database", nowhere), 1)
    assert "DATABASE_URL" in one_line(tidegate("migrate"), 1)
    assert "DATABASE_URL" in one_line(tidegate("worker"), 1)


def test_flows_prints_every_diagram() -> None:
    said = tidegate("flows").stdout
    for name in ("internal_transfer", "deposit", "external_withdrawal"):
        assert f"# {name}\nstateDiagram-v2" in said
    assert "deposit" in json.loads(tidegate("flows", "-o", "json").stdout)


def test_core_runs_and_stops_in_order(tmp_path: Path) -> None:
    words = ["core", "--data", str(tmp_path / "core"), "--listen", f"unix:{tmp_path}/s"]
    with subprocess.Popen([PROGRAM, *words], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("trading core ready")
        child.terminate()
        assert child.wait(20) == 0


def test_core_says_in_one_line_why_it_cannot_listen(tmp_path: Path) -> None:
    said = tidegate("core", "--data", str(tmp_path / "core"), "--listen", "carrier pigeon")
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith("trading core: listen on unix:PATH or tcp:")


def test_a_wrong_setting_is_refused_at_start(tmp_path: Path) -> None:
    said = tidegate("up", "--data", str(tmp_path), env={"TIDEGATE_SCAN_S": "often"})
    assert "scan_s = 'often' is wrong; allowed: seconds" in one_line(said, 2)
    (tmp_path / "tidegate.toml").write_text("colour = 'blue'\n")
    said = tidegate("up", "--data", str(tmp_path))
    assert "no setting 'colour'" in one_line(said, 2)


@pytest.mark.parametrize(
    "words", [["shwo"], ["show"], ["show", "--no"], ["fund", "x", "a", "b", "1"]]
)
def test_a_slip_of_the_finger_is_one_line(words: list[str]) -> None:
    assert "--help" in one_line(tidegate(*words), 2)


@slow
def test_without_a_tidegate_a_command_says_how_to_start_one(tmp_path: Path) -> None:
    for words in (["stuck"], ["balances", "--user", "1"], ["audit"], ["show", "x"]):
        said = one_line(tidegate(*words, "--data", str(tmp_path)), 2)
        assert f"tidegate up --data {tmp_path}" in said
    said = one_line(tidegate("token", "--data", str(tmp_path), "--user", "1"), 1)
    assert "tidegate up" in said
    assert "TIDEGATE_TOKEN" in one_line(tidegate("stuck", "--url", "http://127.0.0.1:9"), 2)
    said = one_line(
        tidegate("stuck", "--url", "http://127.0.0.1:9", env={"TIDEGATE_TOKEN": "t"}), 1
    )
    assert "does not answer" in said


def test_completion_is_offered() -> None:
    assert "--show-completion" in tidegate("--help").stdout


def test_the_doctor_finds_nothing_wrong_where_nothing_is_yet(tmp_path: Path) -> None:
    said = tidegate("doctor", "--data", str(tmp_path / "new"), env={"TIDEGATE_PORT": "0"})
    assert (said.returncode, "WRONG" in said.stdout) == (0, False), said.stdout


def test_the_doctor_says_what_is_wrong_in_words(tmp_path: Path) -> None:
    said = tidegate("doctor", "--data", str(tmp_path), env={"TIDEGATE_PORT": "x"})
    assert said.returncode == 1
    assert "WRONG  settings: the environment: port = 'x'" in said.stdout
    nowhere = {"DATABASE_URL": f"host={tmp_path} dbname=none"}
    said = tidegate("doctor", "--data", str(tmp_path), "-o", "json", env=nowhere)
    assert said.returncode == 1
    assert any("DATABASE_URL" in each["what"] for each in json.loads(said.stdout) if not each["ok"])


@contextmanager
def serving(env: dict[str, str], *words: str) -> Iterator[None]:
    """One part as it runs in production; it ends in order."""
    with subprocess.Popen([str(PROGRAM), *words], env=os.environ | env) as child:
        try:
            yield
        finally:
            child.terminate()
            assert child.wait(20) == 0


@slow
def test_the_parts_run_by_themselves_on_any_database(database: str, tmp_path: Path) -> None:
    terms = TokenPolicy(issuer="tidegate", audience="tidegate")
    env = {
        "DATABASE_URL": database,
        "TIDEGATE_SCHEMA": SCHEMA,
        "TIDEGATE_CORE": f"unix:{tmp_path}/socket",
        "TIDEGATE_KEYS": str(make_keyring(tmp_path / "keys", terms)),
        "TIDEGATE_LOG_FORMAT": "json",
    }
    port, beside = (free_port("127.0.0.1", 0, 0.0) for _ in range(2))
    core = ("core", "--data", str(tmp_path / "core"), "--listen", env["TIDEGATE_CORE"])
    crossing = {"user_id": 1, "account": "SPOT", "asset": "USDT", "amount": "3", "cid": "c"}
    with (
        serving(env, *core),
        serving(env, "worker", "--port", str(beside)),
        serving(env, "api", "--port", str(port)),
        Client(f"http://127.0.0.1:{port}", token(tmp_path, "o", "operator")) as desk,
        Client(f"http://127.0.0.1:{beside}", "") as worker,
    ):
        eventually(lambda: desk.ready() and worker.ready(), 20)
        made = desk.deposit(crossing)
        eventually(lambda: desk.history(made["req_id"])["transfer"]["state"] == "COMPLETED", 20)


@slow
def test_token_prints_a_token_and_nothing_else(up: Up) -> None:
    for role in ("user", "operator", "approver", "auditor"):
        said = up.tidegate("token", "--user", "7", "--role", role)
        claims = jwt.decode(said.strip(), options={"verify_signature": False})
        assert said == said.strip() + "\n"
        assert (claims["sub"], claims["roles"]) == ("7", [role])
        assert claims["exp"] - claims["iat"] == 8 * 3600, "a working day, on one's own machine"
    with Client(up.url, up.tidegate("token", "--user", "4001").strip()) as client:
        assert client.balances()["balances"]


@slow
def test_fund_deposits_once_per_cid(up: Up) -> None:
    for _ in range(2):
        up.tidegate("fund", "5001", "FUNDING", "USDT", "20", "--cid", "salary")
    assert up.json("fund", "5001", "SPOT", "BTC", "0.5")["state"] == "COMPLETED"
    assert up.balances(5001) == {("FUNDING", "USDT"): "20.000000", ("SPOT", "BTC"): "0.50000000"}


@slow
def test_transfer_show_and_balances_tell_one_story(up: Up) -> None:
    up.tidegate("fund", "5002", "FUNDING", "USDT", "20")
    words = ("transfer", "FUNDING", "SPOT", "USDT", "7.5", "--user", "5002")
    made = up.json(*words, "--cid", "one")
    assert made["state"] == "COMMITTED"
    assert up.json(*words, "--cid", "one")["req_id"] == made["req_id"]
    assert up.balances(5002)["SPOT", "USDT"] == "7.500000"
    shown = up.tidegate("show", made["req_id"])
    lines = shown.splitlines()
    assert lines[0].startswith(f"{made['req_id']}  internal_transfer  user 5002  7.500000 USDT")
    assert "FUNDING debit: said yes" in shown
    assert "SPOT credit: said yes" in shown
    assert lines[-1].endswith("COMMITTED")
    watched = up.tidegate(*words, "--watch")
    assert watched.splitlines()[-1].endswith("COMMITTED")
    assert up.json("show", made["req_id"])["transfer"]["state"] == "COMMITTED"


@slow
def test_a_refused_transfer_is_one_line_with_its_code_and_its_name(up: Up) -> None:
    words = ("transfer", "FUNDING", "SPOT", "USDT", "1", "--user", "5003")
    said = up.tidegate(*words, code=1)
    assert "SOURCE_ACCOUNT_NOT_FOUND" in said or "INSUFFICIENT_BALANCE" in said
    assert "tidegate show 01" in said
    assert len(said.splitlines()) == 1
    said = up.tidegate("transfer", "spot", "SPOT", "usdt", "1", "--user", "5003", code=1)
    assert said.startswith("tidegate: SAME_ACCOUNT: ")
    assert "tidegate fund 5003 FUNDING" in up.tidegate("balances", "--user", "5003")


@slow
def test_halt_stops_money_and_resume_lets_it_go_on(up: Up) -> None:
    words = ("transfer", "FUNDING", "SPOT", "USDT", "1", "--user", "4001")
    up.tidegate("halt", "a test")
    try:
        assert up.tidegate(*words, code=1).startswith("tidegate: HALTED: ")
        up.tidegate("halt", "another cause")
        seen = tidegate("doctor", "--data", str(up.directory)).stdout
        assert "WRONG  halted by" in seen
        assert all(f": {why}; once put" in seen for why in ("a test", "another cause"))
        [first, second] = json.loads(up.tidegate("halt", "a third", "-o", "json"))["halts"][:2]
        left = up.tidegate("resume", "only this one", "--halt", str(first["id"]))
        assert f"ended halt {first['id']}" in left
        assert f"still halted: halt {second['id']}" in left
        assert up.tidegate(*words, code=1).startswith("tidegate: HALTED: ")
    finally:
        told = up.tidegate("resume", "the test is over")
    assert told.strip().endswith("resumed")
    assert ": another cause" in told
    up.tidegate(*words)


@slow
def test_nothing_is_stuck_and_what_has_ended_is_not_retried(up: Up) -> None:
    assert up.tidegate("stuck").startswith("nothing is older than 60 s")
    assert up.json("stuck", "--seconds", "1") == {"transfers": [], "next_cursor": None}
    made = up.json("transfer", "FUNDING", "SPOT", "USDT", "1", "--user", "4001")
    assert "has ended" in up.tidegate("retry", made["req_id"], code=1)
    words = ("--answer", "done", "--reason", "seen", "--evidence", "ticket=1")
    assert "INVALID_REQUEST" in up.tidegate("resolve", made["req_id"], *words, code=1)
    assert "NOT_FOUND" in up.tidegate("confirm", "999", code=1)
    assert "NOT_FOUND" in up.tidegate("show", "01JFVQ2X8Z0Y1M3N4P5R6S7T8V", code=1)


@slow
def test_an_open_question_is_listed_retried_and_resolved_by_two(up: Up) -> None:
    os.kill(up.pid("core"), signal.SIGSTOP)
    try:
        words = ("transfer", "FUNDING", "SPOT", "USDT", "2", "--user", "4001")
        made = up.json(*words)
        assert made["state"] == "PENDING"
        assert made["req_id"] in up.tidegate("stuck", "--seconds", "0")
        assert "waits for core" in up.tidegate("show", made["req_id"])
        assert "is asked again" in up.tidegate("retry", made["req_id"])
        said = ("--answer", "rejected", "--reason", "it is down", "--evidence", "ticket=1")
        resolution = str(up.json("resolve", made["req_id"], *said, "--as", "olga")["resolution"])
        assert "FORBIDDEN" in up.tidegate("confirm", resolution, "--as", "olga", code=1)
        # A «no» by people must be made true by the system first, and it does not answer.
        assert "does not confirm" in up.tidegate("confirm", resolution, "--as", "peter")
        assert "NAME=VALUE" in up.tidegate("resolve", "x", *said[:5], "ticket", code=2)
    finally:
        os.kill(up.pid("core"), signal.SIGCONT)
    eventually(lambda: up.json("show", made["req_id"])["transfer"]["lane"] is None, 40)


@slow
def test_tail_shows_a_transfer_as_it_is_made(up: Up) -> None:
    words = [str(PROGRAM), "tail", "--data", str(up.directory), "--user", "4001", "-o", "json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        out = child.stdout
        assert out is not None
        try:
            # It shows what happens after it has looked for the first time,
            # and a transfer on its way if it looks at such a moment.
            def shown() -> bool:
                up.tidegate("transfer", "FUNDING", "SPOT", "USDT", "1", "--user", "4001")
                return bool(select.select([out], [], [], 0)[0])

            eventually(shown, 30)
            lines = [json.loads(out.readline())]
            while lines[-1]["state"] != "COMMITTED":
                lines.append(json.loads(out.readline()))
        finally:
            child.terminate()
    assert {each["user_id"] for each in lines} == {4001}
    changes = [(each["req_id"], each["state"], each["attempts"]) for each in lines]
    assert len(set(changes)) == len(changes), "a change is shown once"


@slow
def test_a_member_pays_through_the_pool(up: Up) -> None:
    """Nobody has issued points here: what nobody has cannot be paid."""
    words = ("pool", "pay", "7", "4002", "100", "--user", "4001", "--reason", "lunch")
    made = up.json(*words, "--cid", "first")
    assert up.json(*words, "--cid", "first")["transfer_id"] == made["transfer_id"]
    for _ in range(10):
        shown = up.json("pool", "show", made["transfer_id"], "--user", "4001")
        if shown["status"] == "rejected":
            break
    assert (shown["status"], shown["checks"]["balance"]) == ("rejected", 0)
    assert made["transfer_id"] in up.tidegate("pool", "list", "--user", "4001", "--guild", "7")


@slow
def test_the_doctor_finds_a_running_tidegate_well(up: Up) -> None:
    said = up.tidegate("doctor")
    assert f"api: {up.url} serves" in said
    assert "WRONG" not in said


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
    with Client(up.url, token(up.directory, "axel", "auditor")) as desk:
        said = desk.audit_progress()
    assert said["read"] > 0
    assert said["of_about"] >= 0


@slow
def test_demo_tells_its_whole_story_and_exits_0() -> None:
    said = tidegate("demo")
    assert said.returncode == 0, said.stderr
    for words in ("COMMITTED", "FAILED (INSUFFICIENT", "ROLLED_BACK (", "kill -9 core", "agree"):
        assert words in said.stdout
