"""Those who wait for the end of a transfer, and what they are told if it takes too long."""

import asyncio
from collections.abc import Iterable
from itertools import islice, takewhile
from uuid import UUID

import msgspec

from tidegate.core.kind import Transfer
from tidegate.engine.pending_request import Receipt, ReplyTarget


class EndWaiter(msgspec.Struct, eq=False):
    answer: ReplyTarget
    transfer: Transfer  # As it was: what is said if the end is late.
    duplicate: bool
    patience_s: float
    until_s: float
    next: "EndWaiter | None" = None  # Somebody else who waits for the same transfer.


class EndWaiters:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()  # To ask for it each time is a system call.
        self._watchers: dict[int, EndWaiter] = {}  # By the number of the transfer's id.
        # By how long they wait, so that whoever came first is the first to go: one timer is enough
        # for a line of thousands. A timer for each costs more than all else that waiting takes.
        self._lines: dict[float, dict[EndWaiter, None]] = {}
        self.anyone = asyncio.Event()  # Set as long as somebody waits.

    def follow(
        self, answer: ReplyTarget, transfer: Transfer, wait_s: float, *, duplicate: bool = False
    ) -> None:
        """Let somebody wait for the end, who is then answered by it; or by this, if it is late."""
        until_s, watchers, number = self._loop.time() + wait_s, self._watchers, transfer.id.int
        if not watchers:
            self.anyone.set()
        watcher = EndWaiter(answer, transfer, duplicate, wait_s, until_s)
        first = watchers.setdefault(number, watcher)
        if first is not watcher:
            # The first stays the one who has waited longest.
            watcher.next, first.next = first.next, watcher
        line = self._lines.get(wait_s)
        if line is None:
            line = self._lines[wait_s] = {}
            self._loop.call_at(until_s, self._look, wait_s)
        line[watcher] = None

    def ended(self, transfers: Iterable[Transfer]) -> None:
        watchers, lines = self._watchers, self._lines
        for transfer in transfers if watchers else ():
            watcher = watchers.pop(transfer.id.int, None)
            while watcher is not None:
                del lines[watcher.patience_s][watcher]
                if not watcher.answer.done():
                    watcher.answer.set_result(Receipt(transfer, watcher.duplicate))
                watcher = watcher.next
        self._seen_off()

    def release(self) -> None:
        """Answer all who wait with their receipts: nobody here will see the ends any more."""
        for line in list(self._lines.values()):
            for watcher in list(line):
                self._give_up(watcher)

    def longest(self, limit: int, least_s: float) -> list[UUID]:
        """For what those wait who have waited longest, and at least so long."""
        before_s = self._loop.time() - least_s
        late = (w for w in self._watchers.values() if w.until_s - w.patience_s <= before_s)
        return [watcher.transfer.id for watcher in islice(late, limit)]

    def _look(self, patience_s: float) -> None:
        """Let those go whose time is over, and come again for the next in their line."""
        line, now_s = self._lines[patience_s], self._loop.time()
        for watcher in list(takewhile(lambda w: w.until_s <= now_s, line)):
            self._give_up(watcher)
        if line:
            self._loop.call_at(next(iter(line)).until_s, self._look, patience_s)
        else:
            del self._lines[patience_s]

    def _give_up(self, watcher: EndWaiter) -> None:
        number = watcher.transfer.id.int
        del self._lines[watcher.patience_s][watcher]
        left = _without(self._watchers[number], watcher)
        if left is None:
            del self._watchers[number]
        else:
            self._watchers[number] = left
        if not watcher.answer.done():
            watcher.answer.set_result(Receipt(watcher.transfer, watcher.duplicate))
        self._seen_off()

    def _seen_off(self) -> None:
        if not self._watchers:
            self.anyone.clear()


def _without(first: EndWaiter, gone: EndWaiter) -> EndWaiter | None:
    """Those who wait for one transfer, without the one who waits no longer."""
    if first is gone:
        return first.next
    before = first
    while before.next is not gone:
        assert before.next is not None, "it waits for another transfer"
        before = before.next
    before.next = gone.next
    return first
