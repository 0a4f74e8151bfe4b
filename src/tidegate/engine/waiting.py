"""Those who wait for the end of a transfer, and what they are told if it takes too long."""

import asyncio
from collections.abc import Iterable
from itertools import islice, takewhile
from uuid import UUID

import msgspec

from tidegate.core.transfer import Transfer
from tidegate.engine.pending import Answering, Receipt


class Watcher(msgspec.Struct, eq=False):
    answer: Answering
    receipt: Receipt  # What is said if the end is late.
    patience_s: float
    until_s: float


class Waiting:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()  # To ask for it each time is a system call.
        self._watchers: dict[int, list[Watcher]] = {}  # By the number of the transfer's id.
        # By how long they wait, so that whoever came first is the first to go: one timer is enough
        # for a line of thousands. A timer for each costs more than all else that waiting takes.
        self._lines: dict[float, dict[Watcher, None]] = {}
        self.anyone = asyncio.Event()  # Set as long as somebody waits.

    def follow(self, answer: Answering, receipt: Receipt, patience_s: float) -> None:
        """Let somebody wait for the end, who is then answered by it; or by this, if it is late."""
        watcher = Watcher(answer, receipt, patience_s, self._loop.time() + patience_s)
        if not self._watchers:
            self.anyone.set()
        self._watchers.setdefault(receipt.transfer.id.int, []).append(watcher)
        line = self._lines.get(patience_s)
        if line is None:
            line = self._lines[patience_s] = {}
            self._loop.call_at(watcher.until_s, self._look, patience_s)
        line[watcher] = None

    def ended(self, transfers: Iterable[Transfer]) -> None:
        waiting, lines = self._watchers, self._lines
        for transfer in transfers if waiting else ():
            for watcher in waiting.pop(transfer.id.int, ()):
                del lines[watcher.patience_s][watcher]
                if not watcher.answer.done():
                    watcher.answer.set_result(Receipt(transfer, watcher.receipt.duplicate))
        self._seen_off()

    def release(self) -> None:
        """Answer all who wait with their receipts: nobody here will see the ends any more."""
        for watchers in list(self._watchers.values()):
            for watcher in list(watchers):
                self._give_up(watcher)

    def longest(self, limit: int, least_s: float) -> list[UUID]:
        """For what those wait who have waited longest, and at least so long."""
        before_s = self._loop.time() - least_s
        late = (w for w, *_ in self._watchers.values() if w.until_s - w.patience_s <= before_s)
        return [watcher.receipt.transfer.id for watcher in islice(late, limit)]

    def _look(self, patience_s: float) -> None:
        """Let those go whose time is over, and come again for the next in their line."""
        line, now_s = self._lines[patience_s], self._loop.time()
        for watcher in list(takewhile(lambda w: w.until_s <= now_s, line)):
            self._give_up(watcher)
        if line:
            self._loop.call_at(next(iter(line)).until_s, self._look, patience_s)
        else:
            del self._lines[patience_s]

    def _give_up(self, watcher: Watcher) -> None:
        number = watcher.receipt.transfer.id.int
        del self._lines[watcher.patience_s][watcher]
        self._watchers[number].remove(watcher)
        if not self._watchers[number]:
            del self._watchers[number]
        if not watcher.answer.done():
            watcher.answer.set_result(watcher.receipt)
        self._seen_off()

    def _seen_off(self) -> None:
        if not self._watchers:
            self.anyone.clear()
