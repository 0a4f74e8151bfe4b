"""A trading core that kills itself: `python -m tests.crash.core DIRECTORY LISTEN MOMENTS`."""

import sys
from pathlib import Path

from tests.crash.fuse import Fuse
from tidegate.trading_core import server
from tidegate.trading_core.disk import RealDisk, RealFile

FUSE = Fuse(int(sys.argv[3]))


class FusedFile(RealFile):
    def append(self, chunk: bytes | memoryview) -> None:
        FUSE.check("before an append")
        super().append(chunk)
        FUSE.check("after an append")

    async def fdatasync(self) -> None:
        await super().fdatasync()
        # After this the durable operations are applied and answered.
        FUSE.check("after a sync")


class FusedDisk(RealDisk):
    def create(self, name: str) -> FusedFile:
        return FusedFile(self._directory / name, self._syncer)


if __name__ == "__main__":
    setattr(server, "RealDisk", FusedDisk)  # noqa: B010  The program has no option for this.
    sys.exit(server.run(Path(sys.argv[1]), sys.argv[2]))
