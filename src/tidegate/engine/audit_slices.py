"""Computes how much of the full audit the next slice covers."""

from math import ceil
from typing import NamedTuple

from tidegate.store.audit_progress import AuditProgress

PAGE = 500  # Transfers per read. Judging them takes a few hundredths of a second.
MAX_PAGES = 20
MAX_OWNERS = 1_000
AHEAD = 1.25  # A sweep ends before its period does, so the audit age stays below two periods.


class AuditSlice(NamedTuple):
    """What is judged next: a number of transfer pages and a number of owners."""

    start: AuditProgress
    pages: int
    owners: int


def slice_of(sweep: AuditProgress, period_s: float) -> AuditSlice | None:
    """The next slice. None if this sweep is complete and the next one has not begun.

    The size of a slice is bounded. With more data than fits into a period, the sweep takes longer
    than the period, and the age of the audit shows that.
    """
    if sweep.over:
        return None
    share = AHEAD * max(sweep.elapsed_s, 0.0) / period_s
    pages = ceil((share * sweep.about_transfers - sweep.transfers) / PAGE)
    owners = ceil(share * sweep.about_owners - sweep.owners)
    return AuditSlice(sweep, min(max(pages, 1), MAX_PAGES), min(max(owners, 20), MAX_OWNERS))
