"""A fuse: kills its own process with SIGKILL at the N-th moment that is passed to it."""

import os
import signal
import sys


class Fuse:
    def __init__(self, moments: int) -> None:
        self.left = moments  # 0: it never kills.

    def check(self, moment: str) -> None:
        self.left -= 1
        if self.left == 0:
            print(f"killed {moment}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
