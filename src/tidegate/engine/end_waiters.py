"""Callers that wait for the end of a transfer. After a timeout they get the current receipt."""

import asyncio
from collections.abc import Iterable
from itertools import islice, takewhile
from uuid import UUID

import msgspec

from tidegate.core.kind import Transfer
from tidegate.engine.pending_request import Receipt, ReplyTarget


class EndWaiter(msgspec.Struct, eq=False):
    answer: ReplyTarget
    transfer: Transfer  # As it was: returned if the end comes after the timeout.
    duplicate: bool
    timeout_s: float
    deadline_s: float
    next: "EndWaiter | None" = None  # Another waiter for the same transfer.


class EndWaiters:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()  # Looking it up on each call costs a system call.
        self._waiters: dict[int, EndWaiter] = {}  # By the integer value of the transfer id.
        # By timeout. Waiters with the same timeout expire in the order in which they came, so one
        # timer is enough for thousands. A timer for each would cost more than all other work here.
        self._by_timeout: dict[float, dict[EndWaiter, None]] = {}
        self.has_waiters = asyncio.Event()  # Set while there are waiters.

    def follow(
        self, answer: ReplyTarget, transfer: Transfer, wait_s: float, *, duplicate: bool = False
    ) -> None:
        """Complete `answer` with the ended transfer, or with `transfer` after the timeout."""
        deadline_s, waiters, number = self._loop.time() + wait_s, self._waiters, transfer.id.int
        if not waiters:
            self.has_waiters.set()
        waiter = EndWaiter(answer, transfer, duplicate, wait_s, deadline_s)
        first = waiters.setdefault(number, waiter)
        if first is not waiter:
            # The first in the chain stays the one that has waited longest.
            waiter.next, first.next = first.next, waiter
        same_timeout = self._by_timeout.get(wait_s)
        if same_timeout is None:
            same_timeout = self._by_timeout[wait_s] = {}
            self._loop.call_at(deadline_s, self._expire, wait_s)
        same_timeout[waiter] = None

    def ended(self, transfers: Iterable[Transfer]) -> None:
        waiters, by_timeout = self._waiters, self._by_timeout
        for transfer in transfers if waiters else ():
            waiter = waiters.pop(transfer.id.int, None)
            while waiter is not None:
                del by_timeout[waiter.timeout_s][waiter]
                if not waiter.answer.done():
                    waiter.answer.set_result(Receipt(transfer, waiter.duplicate))
                waiter = waiter.next
        self._update_event()

    def release(self) -> None:
        """Answer all waiters with their current receipts. This process will see no more ends."""
        for same_timeout in list(self._by_timeout.values()):
            for waiter in list(same_timeout):
                self._time_out(waiter)

    def longest_waiting(self, limit: int, least_s: float) -> list[UUID]:
        """The transfers of the waiters that have waited longest, and for at least `least_s`."""
        started_by_s = self._loop.time() - least_s
        late = (w for w in self._waiters.values() if w.deadline_s - w.timeout_s <= started_by_s)
        return [waiter.transfer.id for waiter in islice(late, limit)]

    def _expire(self, timeout_s: float) -> None:
        """Time out expired waiters and set the timer for the next one with this timeout."""
        same_timeout, now_s = self._by_timeout[timeout_s], self._loop.time()
        for waiter in list(takewhile(lambda w: w.deadline_s <= now_s, same_timeout)):
            self._time_out(waiter)
        if same_timeout:
            self._loop.call_at(next(iter(same_timeout)).deadline_s, self._expire, timeout_s)
        else:
            del self._by_timeout[timeout_s]

    def _time_out(self, waiter: EndWaiter) -> None:
        number = waiter.transfer.id.int
        del self._by_timeout[waiter.timeout_s][waiter]
        remaining = _without(self._waiters[number], waiter)
        if remaining is None:
            del self._waiters[number]
        else:
            self._waiters[number] = remaining
        if not waiter.answer.done():
            waiter.answer.set_result(Receipt(waiter.transfer, waiter.duplicate))
        self._update_event()

    def _update_event(self) -> None:
        if not self._waiters:
            self.has_waiters.clear()


def _without(first: EndWaiter, removed: EndWaiter) -> EndWaiter | None:
    """The chain of waiters for one transfer, without the one that was removed."""
    if first is removed:
        return first.next
    previous = first
    while previous.next is not removed:
        assert previous.next is not None, "the waiter is in the chain of another transfer"
        previous = previous.next
    previous.next = removed.next
    return first
