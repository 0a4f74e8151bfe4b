"""A directory of the previous version gives the same state, and the same bytes are written."""

import asyncio
import shutil
from pathlib import Path

from tests.trading_core.older import DIRECTORY, STATE, open_older, play, state_hash
from tidegate.trading_core import snapshot
from tidegate.trading_core.disk import LOCK, RealDisk

WRITTEN = {file.name: file.read_bytes() for file in sorted(DIRECTORY.iterdir())}


def test_a_directory_of_the_previous_version_opens_to_the_same_state(tmp_path: Path) -> None:
    """From its snapshot, and from its whole log without a snapshot."""

    async def open_core(directory: Path) -> str:
        core = await open_older(RealDisk(directory))
        core.log.close()
        core.disk.unlock()
        return state_hash(core.book)

    with_snapshot, log_only = tmp_path / "with", tmp_path / "log"
    for directory in (with_snapshot, log_only):
        shutil.copytree(DIRECTORY, directory)
    [path] = log_only.glob("snapshot-*")
    path.unlink()
    assert asyncio.run(open_core(with_snapshot)) == STATE
    assert asyncio.run(open_core(log_only)) == STATE


def test_the_same_history_is_written_to_the_same_bytes(tmp_path: Path) -> None:
    async def play_history() -> str:
        core = await open_older(RealDisk(tmp_path))
        commits = asyncio.ensure_future(core.run())
        await play(core)
        core.stop()
        await commits
        core.disk.unlock()
        return state_hash(core.book)

    assert asyncio.run(play_history()) == STATE
    written = {f.name: f.read_bytes() for f in sorted(tmp_path.iterdir()) if f.name != LOCK}
    assert written == WRITTEN


def test_a_snapshot_of_the_previous_version_is_written_again_with_the_same_bytes() -> None:
    [name] = [name for name in WRITTEN if name.startswith(snapshot.PREFIX)]
    state = snapshot.parse(name, WRITTEN[name], 1000)
    assert state is not None
    assert b"".join(snapshot.chunks(state)) == WRITTEN[name][:-4]
