"""Collects the replies to a batch for one caller, without a task and a future per request."""

import asyncio
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class BatchReplies(Generic[T]):
    """A fixed number of replies. The caller wakes up when the last one arrives."""

    def __init__(self, size: int) -> None:
        self._replies: dict[int, T] = {}  # By the index of the request in the batch.
        self._size = size
        self._complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def targets(self) -> "Iterator[BatchReply[T]]":
        """One reply target for each request of the batch, in order."""
        return (BatchReply(self, index) for index in range(self._size))

    async def collect(self) -> list[T]:
        """Wait until every reply has arrived. Return them in the order of the requests."""
        if len(self._replies) < self._size:
            await self._complete
        return [self._replies[index] for index in range(self._size)]

    def has(self, index: int) -> bool:
        return index in self._replies

    def put(self, index: int, reply: T) -> None:
        assert index not in self._replies, "it was answered before"
        self._replies[index] = reply
        # The future is already done if the caller was cancelled.
        if len(self._replies) == self._size and not self._complete.done():
            self._complete.set_result(None)


class BatchReply(Generic[T]):
    """The target of one reply. It has the methods of a future; a fault is stored as a reply."""

    __slots__ = ("_index", "_replies")

    def __init__(self, replies: BatchReplies[T], index: int) -> None:
        self._replies, self._index = replies, index

    def done(self) -> bool:
        return self._replies.has(self._index)

    def set_result(self, reply: T, /) -> None:
        self._replies.put(self._index, reply)

    set_exception = set_result
