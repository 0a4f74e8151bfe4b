"""Which store faults leave the outcome open, and how attempts at an unreachable system count."""

from tidegate.core.ports import (
    CommitUnknown,
    LockTimeout,
    NoSession,
    NotWritable,
    Outage,
    StoreFault,
    StoreUnavailable,
)


def test_only_a_lost_reply_leaves_the_outcome_open() -> None:
    assert CommitUnknown("no reply", "771").silent
    assert CommitUnknown("no reply", "771").xid == "771"
    assert StoreUnavailable("connection lost", silent=True).silent
    no_effect = [StoreUnavailable("40001"), LockTimeout("55P03"), NoSession("none")]
    full = NotWritable("53100", "full")
    assert not any(fault.silent for fault in (*no_effect, full))
    assert full.kind == "full"
    assert all(fault.retryable for fault in (*no_effect, full))
    assert not StoreFault("23514").retryable


def test_a_transfer_counts_the_attempts_since_its_last_answer() -> None:
    outage = Outage("core", 100, 7, [300, 400, 500], "refused")
    assert [outage.probes_since(at_us) for at_us in (50, 100, 300, 450, 600)] == [7, 7, 2, 1, 0]
