"""The binary protocol between the trading core and its clients.

A frame is a head (length, CRC, kind, request id) and a body. Bodies with money in them are
arrays of fixed structs, big-endian; amounts are 16 bytes. The rest is MessagePack.
"""

import asyncio
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

import msgspec

PROTOCOL = 2  # Since 2 a client sends its store and its assets: a core serves one store.
MAX_OPERATIONS = 8_192  # In one request.
MAX_BODY = 2**20
MAX_NAME = 64
MAX_ASSETS = 65_536

HEAD = struct.Struct(">IIBI")  # Length of the body, CRC, kind, request id.
STAMP = struct.Struct(">QQI")  # Epoch, position and chain CRC at the moment of the reply.
OPERATION = struct.Struct(">20sBBI13s16s")  # Key, verb, mode, undoes, account, amount.
FIELDS = struct.Struct(">16sIBBIBIQ16s")  # The same, with the key and the account split up.
assert FIELDS.size == OPERATION.size
# Bits of the mode. EXPECT_DONE: our history has a Done for the key that is undone. VOID: do not
# execute the operation, but reject it for ever, unless an outcome is stored already.
EXPECT_DONE, VOID = 1, 2
RECORD = struct.Struct(">20sBBI13s16sB16s16s")  # The same, then outcome, delta, balance after.
ANSWER = struct.Struct(">BQ")  # Outcome, position of the record that stores it.
EVENT = struct.Struct(f">Q{RECORD.size}s")
KEY = struct.Struct(">16sI")
ACCOUNT = struct.Struct(">BIQ")  # Book, asset, owner: a prefix of it is the group of a total.
STATUS = struct.Struct(">13sB")
BALANCE = struct.Struct(">B16s")
TOTAL = struct.Struct(">BI32s")
FLOOR = struct.Struct(">16s")
AFTER = struct.Struct(">Q")
ASSET = struct.Struct(">I")

MAX_U32 = 2**32 - 1


class FrameKind(IntEnum):
    """The kind of a frame. Each request kind is listed together with its reply.

    REFUSED with the id of a request refuses that request: it was not executed, and the session
    continues. With id 0 it ends the session.
    """

    HELLO, WELCOME, REFUSED = 1, 2, 3
    ASK, ANSWERS = 10, 11
    QUERY, FOUND = 12, 13
    BALANCES, BALANCED = 14, 15
    TOTALS, SUMMED = 16, 17
    SET_STATUS, RETIRE, SNAPSHOT, RECORDED = 18, 19, 20, 21
    EVENTS, APPLIED = 22, 23
    BIND, REBIND, ASSETS = 24, 25, 26  # The core uses BIND for itself: no client sends it.
    BUSY = 30  # The queue was full: the request was not executed.


class CoreVerb(IntEnum):
    DEBIT = 1
    CREDIT = 2
    REFUND = 3


class CoreBook(IntEnum):
    SPOT = 1
    FUTURE = 2
    MARGIN = 3


class AccountStatus(IntEnum):
    ABSENT = 0  # The account was never credited, and its status never set.
    ACTIVE = 1
    FROZEN = 2
    DISABLED = 3


class CoreOutcome(IntEnum):
    """The outcome of an operation. Outcomes below 32 are stored under its key, others are not."""

    NOTHING = 0
    DONE = 1
    EMPTY = 2  # An undo without (further) effect, because there was nothing left to undo.
    TOMBSTONE = 3  # An undo of an unknown key. That key is refused from now on.
    INVALID_AMOUNT = 8
    SOURCE_ACCOUNT_NOT_FOUND = 9
    ACCOUNT_FROZEN = 10
    ACCOUNT_DISABLED = 11
    INSUFFICIENT_BALANCE = 12
    BALANCE_OVERFLOW = 13
    UNDONE = 14
    INVALID_OWNER = 15
    INVALID_ASSET = 16
    BUSY = 32
    KEY_REUSED = 33
    RETIRED = 34
    UNDO_UNFOUNDED = 35
    MALFORMED = 36


class SessionRefusal(IntEnum):
    """Why a core refuses to serve a client, or to execute a request."""

    PROTOCOL = 1
    OTHER_CORE = 2  # The core has another uuid: its data directory is new, or of another core.
    BEHIND = 3  # The core has lost operations that the client knows to be durable.
    FORKED = 4  # The history of the core differs at the position that the client knows.
    TOO_OLD = 5  # The core no longer has the CRC at that position.
    STALE_EPOCH = 6  # The client has seen a later start of this core.
    CROWDED = 7
    EVENTS_GONE = 8  # The log no longer contains the requested position.
    MALFORMED = 9
    OTHER_STORE = 10  # The core serves another store. It serves only one.
    MOVED = 11  # The store is in another database than before: it was restored or copied.
    REBOUND = 12  # An operator has rebound the core since this session began.
    NOT_ALLOWED = 13  # The request is not allowed in this session: with a store, or without one.
    INVALID_ACCOUNT = 14  # The owner or the asset of the account does not exist.


Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=MAX_U32)]
U64 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class HistoryMark(msgspec.Struct, frozen=True, array_like=True):
    """A position in the log of a core, and the CRC that identifies the log up to it."""

    uuid: UUID
    position: U64
    crc: U64
    epoch: U64


class Binding(msgspec.Struct, frozen=True, array_like=True):
    """The one store that a core serves, and the database that the store is in."""

    store: Name = ""
    place: Name = ""


class Rebinding(msgspec.Struct, frozen=True, array_like=True):
    """An operator binds the core to a store again, because its database or its name changed."""

    before: Name  # The store that is bound now. If the core serves another, nothing changes.
    binding: Binding


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a client. Clients of protocol 1 omit the last fields and are refused."""

    protocol: int
    store: Name  # Empty for an administrator, who may read and rebind, but not move money.
    process: Name
    mark: HistoryMark | None  # The latest mark in the database of the client.
    epoch: U64 = 0  # The highest epoch that the client has seen.
    place: Name = ""  # The database. If it differs for a known store, that was restored or copied.
    assets: Annotated[tuple[U32, ...], msgspec.Meta(max_length=MAX_ASSETS)] = ()


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    mark: HistoryMark
    floor: bytes  # Ids below it are retired.


class RefusalFrame(msgspec.Struct, frozen=True, array_like=True):
    code: int
    message: str


class CoreFrame(NamedTuple):
    kind: int
    request: int
    body: bytes


class PositionStamp(NamedTuple):
    epoch: int
    position: int
    crc: int


class CoreOperation(NamedTuple):
    """One question in the form that the core takes."""

    transfer_id: bytes
    version: int
    verb: int
    account: bytes
    amount: int
    undoes: int = 0
    expect_done: bool = False


class CoreEvent(NamedTuple):
    """One operation and its outcome. A refused one has no delta."""

    position: int
    transfer_id: UUID
    version: int
    verb: CoreVerb
    book: CoreBook
    owner: int
    asset_id: int
    amount: int
    undoes: int
    outcome: CoreOutcome
    delta: int
    balance: int


class MalformedFrame(Exception):
    """The peer does not follow this protocol: the connection is closed."""


class ByteReader(Protocol):
    async def readexactly(self, n: int, /) -> bytes: ...


class ByteWriter(Protocol):
    def write(self, chunk: bytes, /) -> None: ...

    async def drain(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


Streams: TypeAlias = tuple[ByteReader, ByteWriter]

_M = TypeVar("_M", Hello, Welcome, RefusalFrame, Binding, Rebinding)

# Failures of a connection. After them the outcome of the operation is unknown.
LOST = (OSError, EOFError, MalformedFrame)
assert issubclass(asyncio.IncompleteReadError, LOST)


def frame(kind: int, request: int, body: bytes = b"") -> bytes:
    assert len(body) <= MAX_BODY, f"a body of {len(body)} bytes is too long"
    head = HEAD.pack(len(body), 0, kind, request)
    return HEAD.pack(len(body), zlib.crc32(body, zlib.crc32(head)), kind, request) + body


async def receive(reader: ByteReader) -> CoreFrame:
    """Read the next frame. Its length is checked before the body is read."""
    length, crc, kind, request = HEAD.unpack(await reader.readexactly(HEAD.size))
    if length > MAX_BODY:
        raise MalformedFrame(f"a frame claims {length} bytes; at most {MAX_BODY} are allowed")
    body = await reader.readexactly(length)
    if zlib.crc32(body, zlib.crc32(HEAD.pack(length, 0, kind, request))) != crc:
        raise MalformedFrame("the CRC of a frame is wrong")
    return CoreFrame(kind, request, body)


def pack(message: Hello | Welcome | RefusalFrame | Binding | Rebinding) -> bytes:
    return msgspec.msgpack.encode(message)


def unpack_hello(body: bytes) -> Hello:
    return _unpack(body, Hello)


def unpack_welcome(body: bytes) -> Welcome:
    return _unpack(body, Welcome)


def unpack_refusal(body: bytes) -> RefusalFrame:
    return _unpack(body, RefusalFrame)


def unpack_binding(body: bytes) -> Binding:
    return _unpack(body, Binding)


def unpack_rebinding(body: bytes) -> Rebinding:
    return _unpack(body, Rebinding)


def pack_assets(assets: Iterable[int]) -> bytes:
    return b"".join(map(ASSET.pack, sorted(assets)))


def account(book: int, asset_id: int, owner: int) -> bytes:
    return ACCOUNT.pack(book, asset_id, owner)


def pack_operations(operations: Iterable[CoreOperation]) -> bytes:
    return b"".join(
        OPERATION.pack(
            KEY.pack(o.transfer_id, o.version),
            o.verb,
            o.expect_done,
            o.undoes,
            o.account,
            o.amount.to_bytes(16),
        )
        for o in operations
    )


def pack_keys(keys: Iterable[tuple[UUID, int]]) -> bytes:
    return b"".join(KEY.pack(transfer_id.bytes, version) for transfer_id, version in keys)


def unpack_stamp(body: bytes) -> PositionStamp:
    if len(body) < STAMP.size:
        raise MalformedFrame("a reply is too short for its stamp")
    return PositionStamp(*STAMP.unpack_from(body))


def unpack_answers(body: bytes, count: int) -> Sequence[tuple[int, int]]:
    """Outcome and position of each answer. There must be as many as there were questions."""
    answers = list(rows(ANSWER, body[STAMP.size :]))
    if len(answers) != count:
        raise MalformedFrame(f"{count} questions got {len(answers)} answers")
    return answers


def unpack_events(body: bytes) -> Iterator[CoreEvent]:
    for position, record in rows(EVENT, body[STAMP.size :]):
        key, verb, _, undoes, party, amount, outcome, delta, balance = RECORD.unpack(record)
        transfer_id, version = KEY.unpack(key)
        book, asset_id, owner = ACCOUNT.unpack(party)
        try:
            yield CoreEvent(
                position,
                UUID(bytes=transfer_id),
                version,
                CoreVerb(verb),
                CoreBook(book),
                owner,
                asset_id,
                int.from_bytes(amount),
                undoes,
                CoreOutcome(outcome),
                int.from_bytes(delta, signed=True),
                int.from_bytes(balance),
            )
        except ValueError as fault:
            raise MalformedFrame(f"an event cannot be parsed: {fault}") from fault


def rows(form: struct.Struct, body: bytes) -> Iterator[tuple[Any, ...]]:
    """The structs of a body, which must consist of whole ones."""
    if len(body) % form.size:
        raise MalformedFrame(f"{len(body)} bytes are not a whole number of {form.size}-byte rows")
    return form.iter_unpack(body)


def _unpack(body: bytes, form: type[_M]) -> _M:
    try:
        return msgspec.msgpack.decode(body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
        raise MalformedFrame(f"a {form.__name__} cannot be parsed: {fault}") from fault
