"""Read requests: stored answers, balances and totals. All of it is durable."""

from tidegate.core import wire
from tidegate.core.wire import FrameKind
from tidegate.trading_core.book import Book


def read(book: Book, kind: FrameKind, body: bytes) -> bytes:
    """The rows of the reply to a read request."""
    match kind:
        case FrameKind.QUERY:
            size = wire.KEY.size
            keys = (body[i : i + size] for i in range(0, len(body), size))
            rows = [wire.ANSWER.pack(*book.answer(key)) for key in keys]
        case FrameKind.BALANCES:
            size = wire.ACCOUNT.size
            accounts = (body[i : i + size] for i in range(0, len(body), size))
            rows = [
                wire.BALANCE.pack(book.status(a), book.balance(a).to_bytes(16)) for a in accounts
            ]
        case _:
            rows = [group + total.to_bytes(32) for group, total in sorted(book.totals.items())]
    return b"".join(rows)
