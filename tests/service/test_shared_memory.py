"""What the processes of one port share: the rate limits and the progress of an audit."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tidegate.service.rate_limits import ENTRIES_PER_ROW, ROWS, OwnerRateLimit, SharedRateLimit
from tidegate.service.shared_memory import SharedAuditProgress, SharedMemory, create_memory

HOLD = """
import signal, sys
from tidegate.service.rate_limits import SharedRateLimit
from tidegate.service.shared_memory import SharedMemory
def stop():
    print("held", flush=True)
    signal.pause()
SharedRateLimit(1, stop, SharedMemory(int(sys.argv[1]))).admits(7)
"""


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = create_memory()
    yield descriptor
    os.close(descriptor)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_several_processes_together_admit_as_many_as_one(file: int) -> None:
    clock = Clock()
    alone = OwnerRateLimit(5, clock)
    together = [SharedRateLimit(5, clock, SharedMemory(file)) for _ in range(3)]
    for step in range(200):
        clock.now_s += (step % 7) * 0.04
        owner = 1 + step % 2
        assert together[step % 3].admits(owner) == alone.admits(owner), step


def test_each_owner_has_a_separate_bucket(file: int) -> None:
    rate = SharedRateLimit(1, Clock(), SharedMemory(file))
    assert all(rate.admits(owner) for owner in range(1, 1_001))
    assert not any(rate.admits(owner) for owner in range(1, 1_001))
    assert rate.admits(2**63 - 1), "the largest possible owner"
    assert ENTRIES_PER_ROW * ROWS > 100_000, "as many as a single process keeps"


def test_without_a_limit_every_request_is_admitted(file: int) -> None:
    assert all(SharedRateLimit(None, Clock(), SharedMemory(file)).admits(1) for _ in range(100))


def test_a_process_that_stops_with_a_lock_does_not_block_the_others(file: int) -> None:
    rate = SharedRateLimit(1, Clock(), SharedMemory(file))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdout=subprocess.PIPE, pass_fds=[file]
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == b"held\n"
            assert not rate.admits(7), "without the lock the count is unknown: refused"
            assert rate.admits(8), "another owner has another lock"
        finally:
            other.send_signal(signal.SIGKILL)
    assert rate.admits(7), "the kernel has released the lock of the dead process"


def test_every_process_sees_the_progress(file: int) -> None:
    first, second = (SharedAuditProgress(SharedMemory(file)) for _ in range(2))
    assert second.heard() is None
    first.tell(0)
    assert second.heard() == 0
    first.tell(12_345)
    assert second.heard() == first.heard() == 12_345
