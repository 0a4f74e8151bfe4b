"""A trading core that dies at a named moment, after it was armed.

`python -m tests.acceptance.core DIRECTORY LISTEN 0 MOMENT`: the 0 is for the fuse of the crash
tests, which is replaced here.
"""

import sys
from pathlib import Path

from tests.acceptance.fuse import NamedFuse
from tests.crash import core
from tidegate.trading_core import server

if __name__ == "__main__":
    core.FUSE = NamedFuse(sys.argv[4])
    setattr(server, "RealDisk", core.FusedDisk)  # noqa: B010  The program has no such switch.
    sys.exit(server.run(Path(sys.argv[1]), sys.argv[2]))
