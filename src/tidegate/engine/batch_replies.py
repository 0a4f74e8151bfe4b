"""Many answers for one who waits for all of them, without a task and a future for each."""

import asyncio
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class BatchReplies(Generic[T]):
    """So many places, each for one answer. Who waits is woken when the last of them is taken."""

    def __init__(self, size: int) -> None:
        self._said: dict[int, T] = {}
        self._size = size
        self._full: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def places(self) -> "Iterator[BatchReply[T]]":
        return (BatchReply(self, number) for number in range(self._size))

    async def filled(self) -> list[T]:
        """The answers, in the order of their places."""
        if len(self._said) < self._size:
            await self._full
        return [self._said[number] for number in range(self._size)]

    def has(self, number: int) -> bool:
        return number in self._said

    def put(self, number: int, said: T) -> None:
        assert number not in self._said, "it was answered before"
        self._said[number] = said
        if len(self._said) == self._size and not self._full.done():  # Who waited may have gone.
            self._full.set_result(None)


class BatchReply(Generic[T]):
    """What a future is to whoever answers it. A fault is an answer as well."""

    __slots__ = ("_number", "_tray")

    def __init__(self, tray: BatchReplies[T], number: int) -> None:
        self._tray, self._number = tray, number

    def done(self) -> bool:
        return self._tray.has(self._number)

    def set_result(self, said: T, /) -> None:
        self._tray.put(self._number, said)

    set_exception = set_result
