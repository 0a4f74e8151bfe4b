"""The client of the trading core: it sends questions, reads answers and keeps the history mark."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec
from msgspec.structs import replace

from tidegate.core import wire
from tidegate.core.account import Account
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import Verb
from tidegate.core.ports import SqlTransaction
from tidegate.core.refusals import Doubt, Reason
from tidegate.core.sql import load
from tidegate.core.transfer import Question
from tidegate.core.wire import (
    AccountStatus,
    CoreEvent,
    CoreFrame,
    CoreOutcome,
    FrameKind,
    HistoryMark,
    Streams,
)
from tidegate.systems.trading.connection import LOST, Connect, CoreConnection

STATEMENTS = load("tidegate.systems.trading", "trading.sql")

LoadKnownCore: TypeAlias = Callable[[], Awaitable["KnownCore"]]

DEBIT, CREDIT, REFUND = Verb.DEBIT, Verb.CREDIT, Verb.REFUND
BOOKS = {book.name: int(book) for book in wire.CoreBook}
DONE = int(CoreOutcome.DONE)
EMPTY = frozenset({CoreOutcome.EMPTY, CoreOutcome.TOMBSTONE})
REASONS: dict[int, str] = {
    o: str(Reason[o.name]) for o in CoreOutcome if o.name in Reason.__members__
}
DOUBTS: dict[int, str] = {o: str(Doubt[o.name]) for o in CoreOutcome if o.name in Doubt.__members__}
DOUBTS[CoreOutcome.MALFORMED] = CoreOutcome.MALFORMED.name
ALARMS: dict[int, Alarm] = {CoreOutcome.BUSY: Alarm.NONE, CoreOutcome.UNDO_UNFOUNDED: Alarm.HALT}
# Temporary refusals: connect again later, without an alert.
RETRY_GREETING = frozenset({wire.SessionRefusal.CROWDED, wire.SessionRefusal.REBOUND})
MALFORMED = Unknown(CoreOutcome.MALFORMED.name, Alarm.PAGE)


class CoreRefusesService(Unreachable):
    """The core refuses this client, or this client refuses the core: one of them lost history."""


class CoreCaller(NamedTuple):
    """The name of this process for the core, and its time limit for a reply."""

    process: str
    timeout_s: float = 5.0


class KnownCore(NamedTuple):
    """What our database records of itself and of a core. It is sent in the greeting."""

    store: str = ""  # Empty: this client is an administrator.
    place: str = ""  # The identity of our database and its cluster.
    assets: frozenset[int] = frozenset()
    mark: HistoryMark | None = None


class CoreBalance(NamedTuple):
    status: AccountStatus
    amount: int


class CoreTotals(NamedTuple):
    """The sum of all balances per (book, asset), at one position."""

    position: int
    sums: dict[tuple[str, int], int]


async def load_known_core(tx: SqlTransaction, core: str) -> KnownCore:
    """Read the identity of this store, and the newest mark of a core that any process has seen."""
    marks = await tx.fetch(STATEMENTS["marks"], {"core": core})
    [(store, place, assets)] = await tx.fetch(STATEMENTS["introduction"], {})
    known = newest(HistoryMark(*row) for row in marks)
    return KnownCore(str(store), place, frozenset(assets), known)


def newest(marks: Iterable[HistoryMark]) -> HistoryMark | None:
    known = list(marks)
    if len({mark.uuid for mark in known}) > 1:
        names = ", ".join(sorted({str(mark.uuid) for mark in known}))
        raise CoreRefusesService(f"our database has marks of several cores: {names}")
    if not known:
        return None
    last = max(known, key=lambda mark: mark.position)
    if any(mark.position == last.position and mark.crc != last.crc for mark in known):
        raise CoreRefusesService(f"our database has two histories of core {last.uuid}")
    return HistoryMark(last.uuid, last.position, last.crc, max(mark.epoch for mark in known))


class TradingCoreClient:
    """The trading core as a system. Many calls of `ask` may run at the same time."""

    reversible = True

    def __init__(
        self,
        name: str,
        connect: Connect,
        caller: CoreCaller,
        load_known: LoadKnownCore,
        on_refused: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.refusal: str | None = None  # The last refusal. None once the core serves us again.
        self.floor = UUID(int=0)  # The core has retired the ids below it.
        self._connect, self._caller, self._load_known = connect, caller, load_known
        self._on_refused = on_refused
        # Called with the core's floor before the first request, so that no id is made below it.
        self.on_floor: Callable[[UUID], Awaitable[object]] | None = None
        self._assets: frozenset[int] = frozenset()  # The assets sent to the core.
        self.mark: HistoryMark | None = None  # The newest mark that the core has sent.
        self._connection: CoreConnection | None = None
        self._connecting = asyncio.Lock()

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        """Answer each question, in order. After Unreachable, no answer is known."""
        if not self._assets.issuperset({q.asset_id for q in questions}):
            await self._send_assets()
        invalid = {i: reason for i, q in enumerate(questions) if (reason := self._objection(q))}
        packed = list(map(_packed, questions))
        for i in invalid:
            packed[i] = _packed(replace(questions[i], void=True))
        sent = [record for record in packed if record is not None]
        answers: list[Answer] = []
        for start in range(0, len(sent), wire.MAX_OPERATIONS):
            chunk = sent[start : start + wire.MAX_OPERATIONS]
            reply = await self._call(FrameKind.ASK, b"".join(chunk))
            answers += [_answer(*outcome) for outcome in self._answers(reply, len(chunk))]
        if len(sent) < len(packed):
            received = iter(answers)
            answers = [MALFORMED if record is None else next(received) for record in packed]
        for i, reason in invalid.items():
            if isinstance(stored := answers[i], Rejected) and stored.reason == Reason.UNDONE:
                answers[i] = Rejected(reason, stored.evidence)
        return answers

    def _objection(self, question: Question) -> Reason | None:
        """Why this client refuses a question itself. It never refuses an undo.

        Such a question is sent as a void: it is refused for ever only if the core stores that.
        """
        if question.asset_id in self._assets and question.party.owner > 0:
            return None
        if question.void or question.verb not in (DEBIT, CREDIT):
            return None
        wrong_asset = question.asset_id not in self._assets
        return Reason.INVALID_ASSET if wrong_asset else Reason.INVALID_OWNER

    async def _send_assets(self) -> None:
        """Send the core the assets that were added since the greeting."""
        await self._connected()
        known = (await self._load_known()).assets
        if known - self._assets:
            await self._call(FrameKind.ASSETS, wire.pack_assets(known))
            self._assets = known

    async def query(self, keys: Sequence[tuple[UUID, int]]) -> Sequence[Answer | None]:
        """The answer stored under each key, or None. At most 8192 keys."""
        reply = await self._call(FrameKind.QUERY, wire.pack_keys(keys))
        outcomes = self._answers(reply, len(keys))
        return [None if not outcome else _answer(outcome, at) for outcome, at in outcomes]

    async def balance(self, owner: int, book: str, asset_id: int) -> CoreBalance:
        body = wire.account(wire.CoreBook[book], asset_id, owner)
        reply = await self._call(FrameKind.BALANCES, body)
        [(status, raw)] = self._rows(wire.BALANCE, reply)
        return CoreBalance(AccountStatus(status), int.from_bytes(raw))

    async def balances(self, accounts: Sequence[Account]) -> tuple[int, Sequence[int]]:
        """A position, and the balance of each account at it. At most 8192 accounts."""
        packed = (wire.account(wire.CoreBook[a.book], a.asset_id, a.owner) for a in accounts)
        reply = await self._call(FrameKind.BALANCES, b"".join(packed))
        amounts = [int.from_bytes(raw) for _, raw in self._rows(wire.BALANCE, reply)]
        return wire.unpack_stamp(reply.body).position, amounts

    async def totals(self) -> CoreTotals:
        reply = await self._call(FrameKind.TOTALS)
        sums = {
            (wire.CoreBook(book).name, asset_id): int.from_bytes(raw)
            for book, asset_id, raw in self._rows(wire.TOTAL, reply)
        }
        return CoreTotals(wire.unpack_stamp(reply.body).position, sums)

    async def set_status(self, owner: int, book: str, asset_id: int, status: AccountStatus) -> None:
        """Raise RequestNotCarriedOut, and open no account, if the owner or asset is unknown."""
        if asset_id not in self._assets:
            await self._send_assets()
        account = wire.account(wire.CoreBook[book], asset_id, owner)
        await self._call(FrameKind.SET_STATUS, wire.STATUS.pack(account, status))

    async def retire(self, floor: UUID) -> UUID:
        """Retire all ids below `floor`; return the core's floor: its clock may keep it lower."""
        reply = await self._call(FrameKind.RETIRE, floor.bytes)
        [(raw,)] = self._rows(wire.FLOOR, reply)
        self.floor = UUID(bytes=raw)
        return self.floor

    async def rebind(self, before: str, binding: wire.Binding) -> wire.Binding:
        """Bind the core to another store or database, for an operator; return the new binding."""
        reply = await self._call(FrameKind.REBIND, wire.pack(wire.Rebinding(before, binding)))
        try:
            return wire.unpack_binding(reply.body[wire.STAMP.size :])
        except wire.MalformedFrame as fault:
            raise self._malformed(fault) from fault

    async def snapshot(self) -> None:
        await self._call(FrameKind.SNAPSHOT)

    async def events(self, after: int) -> AsyncIterator[CoreEvent]:
        """Yield every operation after a position, in order, once it is durable. It never ends."""
        async with contextlib.aclosing(self.follow(after)) as chunks:
            async for _, chunk in chunks:
                for event in chunk:
                    yield event

    async def follow(self, after: int) -> AsyncGenerator[tuple[int, Sequence[CoreEvent]], None]:
        """Yield the events in chunks, each with the position up to which they are complete."""
        reader, writer = await self._greeted()
        try:
            writer.write(wire.frame(FrameKind.EVENTS, 1, wire.AFTER.pack(after)))
            while True:
                reply = await wire.receive(reader)
                if reply.kind == FrameKind.REFUSED:
                    raise Unreachable(wire.unpack_refusal(reply.body).message)
                chunk = list(wire.unpack_events(reply.body))
                yield chunk[-1].position if chunk else wire.unpack_stamp(reply.body).position, chunk
        except LOST as lost:
            raise Unreachable(f"the event stream of {self.name} was lost: {lost}") from lost
        finally:
            writer.close()

    async def remember(self, tx: SqlTransaction) -> None:
        """Store the newest mark in the transaction that records the answers up to it."""
        if self.mark is not None:
            key = {"core": self.name, "process": self._caller.process}
            await tx.post(STATEMENTS["remember"], key | msgspec.structs.asdict(self.mark))

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _call(self, kind: FrameKind, body: bytes = b"") -> CoreFrame:
        connection = await self._connected()
        reply = await connection.call(kind, body, self._caller.timeout_s)
        if reply.kind == FrameKind.BUSY:
            if kind != FrameKind.ASK:
                raise Unreachable(f"{self.name} is busy; nothing was done")
        else:
            self._observe(connection, reply)
        return reply

    def _observe(self, connection: CoreConnection, reply: CoreFrame) -> None:
        """Keep the newest mark. Refuse a reply from an earlier start of the core."""
        assert self.mark is not None
        try:
            epoch, position, crc = wire.unpack_stamp(reply.body)
        except wire.MalformedFrame as fault:
            raise connection.fail(str(self._malformed(fault))) from fault
        if epoch < self.mark.epoch:
            connection.fail("an earlier start of the core answered")
            raise self._refused(f"it answered from epoch {epoch}, before {self.mark.epoch}")
        if position > self.mark.position or epoch > self.mark.epoch:
            self.mark = HistoryMark(self.mark.uuid, position, crc, epoch)

    async def _connected(self) -> CoreConnection:
        async with self._connecting:
            if self._connection is None or self._connection.failed:
                self._connection = CoreConnection(await self._greeted())
            return self._connection

    async def _greeted(self) -> Streams:
        """Open a connection and greet: the core must know all the history that we know."""
        try:
            ours = await self._load_known()
            known = newest(mark for mark in (ours.mark, self.mark) if mark)
        except CoreRefusesService as fault:
            raise self._refused(str(fault)) from fault
        try:
            async with asyncio.timeout(self._caller.timeout_s):
                streams = await self._connect()
        except LOST as lost:
            raise Unreachable(f"{self.name} cannot be reached: {lost!r}") from lost
        try:
            async with asyncio.timeout(self._caller.timeout_s):
                welcome = await self._greet(streams, ours._replace(mark=known))
        except LOST as lost:
            streams[1].close()
            raise Unreachable(f"{self.name}: the greeting failed: {lost!r}") from lost
        except Unreachable:
            streams[1].close()
            raise
        self.refusal = None
        self._assets = ours.assets
        self.floor = UUID(bytes=welcome.floor)
        if self.on_floor is not None:
            try:
                await self.on_floor(self.floor)
            except Unreachable:
                streams[1].close()
                raise
        if self.mark is None or self.mark.position <= welcome.mark.position:
            self.mark = welcome.mark
        return streams

    async def _greet(self, streams: Streams, ours: KnownCore) -> wire.Welcome:
        reader, writer = streams
        store, place, assets, known = ours
        epoch = known.epoch if known else 0
        identity = (store, self._caller.process, known, epoch, place, tuple(sorted(assets)))
        hello = wire.Hello(wire.PROTOCOL, *identity)
        writer.write(wire.frame(FrameKind.HELLO, 0, wire.pack(hello)))
        kind, _, body = await wire.receive(reader)
        if kind == FrameKind.REFUSED:
            refusal = wire.unpack_refusal(body)
            if refusal.code in RETRY_GREETING:
                raise Unreachable(refusal.message)
            raise self._refused(refusal.message)
        if kind != FrameKind.WELCOME:
            raise wire.MalformedFrame(f"expected a welcome, got a frame of kind {kind}")
        welcome = wire.unpack_welcome(body)
        if known is not None:
            # The core has checked this, too. A second check costs nothing.
            mark = welcome.mark
            if mark.uuid != known.uuid or mark.position < known.position:
                raise self._refused(f"it is not the core that our database knows: {mark}")
            if mark.epoch < epoch:
                raise self._refused(f"it is at epoch {mark.epoch}, but {epoch} was seen")
        return welcome

    def _refused(self, message: str) -> CoreRefusesService:
        self.refusal = f"{self.name} refuses to serve: {message}"
        if self._on_refused is not None:
            self._on_refused(self.refusal)
        return CoreRefusesService(self.refusal)

    def _answers(self, reply: CoreFrame, count: int) -> Sequence[tuple[int, int]]:
        if reply.kind == FrameKind.BUSY:
            return [(CoreOutcome.BUSY, 0)] * count
        try:
            return wire.unpack_answers(reply.body, count)
        except wire.MalformedFrame as fault:
            raise self._malformed(fault) from fault

    def _rows(self, form: struct.Struct, reply: CoreFrame) -> Sequence[tuple[Any, ...]]:
        try:
            return list(wire.rows(form, reply.body[wire.STAMP.size :]))
        except wire.MalformedFrame as fault:
            raise self._malformed(fault) from fault

    def _malformed(self, fault: wire.MalformedFrame) -> Unreachable:
        return Unreachable(f"{self.name} sent a malformed reply: {fault}")


def _packed(question: Question) -> bytes | None:
    """The question in the core's format, or None if the format cannot express it."""
    verb, party, undoes = question.verb, question.party, question.undoes
    book = BOOKS.get(party.book)
    code = 2 if verb is CREDIT else 1 if verb is DEBIT else 3 if verb is REFUND else 0
    if not code or book is None or (verb is REFUND) != (undoes is not None):
        return None
    try:
        return wire.FIELDS.pack(
            question.transfer_id.int.to_bytes(16, "big"),
            question.version,
            code,
            wire.VOID if question.void else question.expect_done,
            undoes or 0,
            book,
            question.asset_id,
            party.owner,
            question.amount.to_bytes(16, "big"),
        )
    except (struct.error, OverflowError):
        return None  # A number does not fit its field.


def _answer(outcome: int, position: int) -> Answer:
    if outcome == DONE:
        return Done({"position": str(position)})
    if outcome in EMPTY:
        return Done({"position": str(position), "delta": "0"})
    if outcome in REASONS:
        return Rejected(REASONS[outcome], {"position": str(position)})
    # An outcome without a name comes from a newer core: it is neither a Done nor a Rejected.
    reason = DOUBTS.get(outcome, f"OUTCOME_{outcome}")
    return Unknown(reason, ALARMS.get(outcome, Alarm.PAGE))
