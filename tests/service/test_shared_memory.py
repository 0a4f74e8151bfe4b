"""What processes of one port share: one limit for all of them, and an audit's progress."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tidegate.service.rate_limits import PLACES, ROWS, OwnerRateLimit, SharedRateLimit
from tidegate.service.shared_memory import SharedAuditProgress, SharedMemory, create_memory

HOLD = """
import signal, sys
from tidegate.service.rate_limits import SharedRequestRate
from tidegate.service.shared_memory import SharedMemory
def stop():
    print("held", flush=True)
    signal.pause()
SharedRequestRate(1, stop, SharedMemory(int(sys.argv[1]))).admits(7)
"""


@pytest.fixture
def file() -> Iterator[int]:
    made = create_memory()
    yield made
    os.close(made)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_several_processes_admit_together_what_one_admits_alone(file: int) -> None:
    clock = Clock()
    alone = OwnerRateLimit(5, clock)
    together = [SharedRateLimit(5, clock, SharedMemory(file)) for _ in range(3)]
    for step in range(200):
        clock.now_s += (step % 7) * 0.04
        owner = 1 + step % 2
        assert together[step % 3].admits(owner) == alone.admits(owner), step


def test_owners_do_not_take_from_each_other(file: int) -> None:
    rate = SharedRateLimit(1, Clock(), SharedMemory(file))
    assert all(rate.admits(owner) for owner in range(1, 1_001))
    assert not any(rate.admits(owner) for owner in range(1, 1_001))
    assert rate.admits(2**63 - 1), "the largest owner that there may be"
    assert PLACES * ROWS > 100_000, "as many as a single process remembers"


def test_without_a_limit_everybody_is_admitted(file: int) -> None:
    assert all(SharedRateLimit(None, Clock(), SharedMemory(file)).admits(1) for _ in range(100))


def test_a_process_that_stops_in_the_middle_makes_nobody_else_wait(file: int) -> None:
    rate = SharedRateLimit(1, Clock(), SharedMemory(file))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdout=subprocess.PIPE, pass_fds=[file]
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"held\n"
            assert not rate.admits(7), "it is not known how many there were: too many"
            assert rate.admits(8), "of another owner it is"
        finally:
            other.send_signal(signal.SIGKILL)
    assert rate.admits(7), "the kernel has freed the lock of the dead"


def test_progress_is_heard_by_every_process(file: int) -> None:
    one, other = (SharedAuditProgress(SharedMemory(file)) for _ in range(2))
    assert other.heard() is None
    one.tell(0)
    assert other.heard() == 0
    one.tell(12_345)
    assert other.heard() == one.heard() == 12_345
