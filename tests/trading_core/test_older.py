"""What the version before wrote is read to the same state, and the same bytes are written."""

import asyncio
import shutil
from pathlib import Path

from tests.trading_core.older import DIRECTORY, STATE, begun, live, told
from tidegate.trading_core import snapshot
from tidegate.trading_core.disk import LOCK, RealDisk

WRITTEN = {file.name: file.read_bytes() for file in sorted(DIRECTORY.iterdir())}


def test_a_directory_of_the_version_before_opens_to_the_same_state(tmp_path: Path) -> None:
    """From its snapshot, and from its whole log without one."""

    async def opened(directory: Path) -> str:
        core = await begun(RealDisk(directory))
        core.log.close()
        core.disk.unlock()
        return told(core.book)

    with_snapshot, log_only = tmp_path / "with", tmp_path / "log"
    for directory in (with_snapshot, log_only):
        shutil.copytree(DIRECTORY, directory)
    [taken] = log_only.glob("snapshot-*")
    taken.unlink()
    assert asyncio.run(opened(with_snapshot)) == STATE
    assert asyncio.run(opened(log_only)) == STATE


def test_the_same_history_is_written_to_the_same_bytes(tmp_path: Path) -> None:
    async def lived() -> str:
        core = await begun(RealDisk(tmp_path))
        commits = asyncio.ensure_future(core.run())
        await live(core)
        core.stop()
        await commits
        core.disk.unlock()
        return told(core.book)

    assert asyncio.run(lived()) == STATE
    written = {f.name: f.read_bytes() for f in sorted(tmp_path.iterdir()) if f.name != LOCK}
    assert written == WRITTEN


def test_a_snapshot_of_the_version_before_is_written_again_as_it_was() -> None:
    [name] = [name for name in WRITTEN if name.startswith(snapshot.PREFIX)]
    state = snapshot.parse(name, WRITTEN[name], 1000)
    assert state is not None
    assert b"".join(snapshot.chunks(state)) == WRITTEN[name][:-4]
