"""A trading core with a fuse: `python -m tests.crash.core DIRECTORY LISTEN MOMENTS`."""

import sys
from pathlib import Path

from tests.crash.fuse import Fuse
from tidegate.trading_core import server
from tidegate.trading_core.disk import RealDisk, RealFile

FUSE = Fuse(int(sys.argv[3]))


class FusedFile(RealFile):
    def append(self, chunk: bytes | memoryview) -> None:
        FUSE.burn("before an append")
        super().append(chunk)
        FUSE.burn("after an append")

    async def fdatasync(self) -> None:
        await super().fdatasync()
        # What is durable is applied and answered next.
        FUSE.burn("after a sync")


class FusedDisk(RealDisk):
    def create(self, name: str) -> FusedFile:
        return FusedFile(self._directory / name, self._syncer)


if __name__ == "__main__":
    setattr(server, "RealDisk", FusedDisk)  # noqa: B010  The program itself has no such switch.
    sys.exit(server.run(Path(sys.argv[1]), sys.argv[2]))
