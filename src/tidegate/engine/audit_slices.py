"""How much of the full audit one slice takes: enough for the period, and never too much."""

from math import ceil
from typing import NamedTuple

from tidegate.store.audit_progress import AuditProgress

PAGE = 500  # Transfers read at once: judging them takes a few hundredths of a second.
MAX_PAGES = 20
MAX_OWNERS = 1_000
AHEAD = 1.25  # A sweep is over before its period is, so that the age stays below two periods.


class AuditSlice(NamedTuple):
    """What is judged next: so many pages of transfers, so many owners."""

    begun: AuditProgress
    pages: int
    owners: int


def slice_of(sweep: AuditProgress, period_s: float) -> AuditSlice | None:
    """The next slice; None until the next sweep begins.

    A slice is bounded, whatever is due: with more data than fits into a period, the sweep takes
    longer, and its age shows that.
    """
    if sweep.over:
        return None
    part = AHEAD * max(sweep.elapsed_s, 0.0) / period_s
    pages = ceil((part * sweep.about_transfers - sweep.transfers) / PAGE)
    owners = ceil(part * sweep.about_owners - sweep.owners)
    return AuditSlice(sweep, min(max(pages, 1), MAX_PAGES), min(max(owners, 20), MAX_OWNERS))
