"""The client of the trading core: questions out, answers back, and what it must not forget."""

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
LATER = frozenset(
    {wire.SessionRefusal.CROWDED, wire.SessionRefusal.REBOUND}
)  # Greet again: nobody is called.
MALFORMED = Unknown(CoreOutcome.MALFORMED.name, Alarm.PAGE)


class CoreRefusesService(Unreachable):
    """The core will not serve us, or we will not be served by it: one of us has lost something."""


class CoreCaller(NamedTuple):
    """Who we are to the core, and how long we wait for it."""

    process: str
    timeout_s: float = 5.0


class KnownCore(NamedTuple):
    """What our database says of itself and of a core, when we greet it."""

    store: str = ""  # Empty: we are an administrator.
    place: str = ""
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
    """Who we are, and the newest of what all processes have seen of a core."""
    marks = await tx.fetch(STATEMENTS["marks"], {"core": core})
    [(store, place, assets)] = await tx.fetch(STATEMENTS["introduction"], {})
    known = newest(HistoryMark(*row) for row in marks)
    return KnownCore(str(store), place, frozenset(assets), known)


def newest(marks: Iterable[HistoryMark]) -> HistoryMark | None:
    found = list(marks)
    if len({mark.uuid for mark in found}) > 1:
        names = ", ".join(sorted({str(mark.uuid) for mark in found}))
        raise CoreRefusesService(f"our database remembers several cores under one name: {names}")
    if not found:
        return None
    last = max(found, key=lambda mark: mark.position)
    if any(mark.position == last.position and mark.crc != last.crc for mark in found):
        raise CoreRefusesService(
            f"we remember two histories of core {last.uuid} at {last.position}"
        )
    return HistoryMark(last.uuid, last.position, last.crc, max(mark.epoch for mark in found))


class TradingCoreClient:
    """The trading core as a system. Any number of asks may be under way at once."""

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
        self.refusal: str | None = None  # Why we were last refused, until we are served again.
        self.floor = UUID(int=0)  # Ids below it are retired there.
        self._connect, self._caller, self._recall = connect, caller, load_known
        self._on_refused = on_refused
        # Told the floor of the core before anything is asked of it, so that no id is made below.
        self.on_floor: Callable[[UUID], Awaitable[object]] | None = None
        self._assets: frozenset[int] = frozenset()  # Which the core was told of.
        self.mark: HistoryMark | None = None  # The newest that the core has shown us.
        self._link: CoreConnection | None = None
        self._connecting = asyncio.Lock()

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        """Answer each question, in order, or raise Unreachable: then nothing is known of any."""
        if not self._assets.issuperset({q.asset_id for q in questions}):
            await self._tell_assets()
        wrong = {i: reason for i, q in enumerate(questions) if (reason := self._objection(q))}
        packed = list(map(_packed, questions))
        for i in wrong:
            packed[i] = _packed(replace(questions[i], void=True))
        sent = [each for each in packed if each is not None]
        answers: list[Answer] = []
        for start in range(0, len(sent), wire.MAX_OPERATIONS):
            chunk = sent[start : start + wire.MAX_OPERATIONS]
            found = await self._call(FrameKind.ASK, b"".join(chunk))
            answers += [_answer(*each) for each in self._answers(found, len(chunk))]
        if len(sent) < len(packed):
            following = iter(answers)
            answers = [MALFORMED if each is None else next(following) for each in packed]
        for i, reason in wrong.items():
            if isinstance(stored := answers[i], Rejected) and stored.reason == Reason.UNDONE:
                answers[i] = Rejected(reason, stored.evidence)
        return answers

    def _objection(self, question: Question) -> Reason | None:
        """Why a question is refused here, before the core looks at it. An undo never is.

        It is sent as a void, because only what the core keeps under the key is refused for ever.
        """
        if question.asset_id in self._assets and question.party.owner > 0:
            return None
        if question.void or question.verb not in (DEBIT, CREDIT):
            return None
        wrong_asset = question.asset_id not in self._assets
        return Reason.INVALID_ASSET if wrong_asset else Reason.INVALID_OWNER

    async def _tell_assets(self) -> None:
        """An asset may have been added since we have greeted the core."""
        await self._linked()
        known = (await self._recall()).assets
        if known - self._assets:
            await self._call(FrameKind.ASSETS, wire.pack_assets(known))
            self._assets = known

    async def query(self, keys: Sequence[tuple[UUID, int]]) -> Sequence[Answer | None]:
        """What is stored under each key, at most 8192 of them; None if nothing is."""
        found = await self._call(FrameKind.QUERY, wire.pack_keys(keys))
        outcomes = self._answers(found, len(keys))
        return [None if not outcome else _answer(outcome, at) for outcome, at in outcomes]

    async def balance(self, owner: int, book: str, asset_id: int) -> CoreBalance:
        body = wire.account(wire.CoreBook[book], asset_id, owner)
        found = await self._call(FrameKind.BALANCES, body)
        [(status, raw)] = self._rows(wire.BALANCE, found)
        return CoreBalance(AccountStatus(status), int.from_bytes(raw))

    async def balances(self, accounts: Sequence[Account]) -> tuple[int, Sequence[int]]:
        """A position, and what each account holds there; at most 8192 of them."""
        packed = (wire.account(wire.CoreBook[a.book], a.asset_id, a.owner) for a in accounts)
        found = await self._call(FrameKind.BALANCES, b"".join(packed))
        amounts = [int.from_bytes(raw) for _, raw in self._rows(wire.BALANCE, found)]
        return wire.unpack_stamp(found.body).position, amounts

    async def totals(self) -> CoreTotals:
        found = await self._call(FrameKind.TOTALS)
        sums = {
            (wire.CoreBook(book).name, asset_id): int.from_bytes(raw)
            for book, asset_id, raw in self._rows(wire.TOTAL, found)
        }
        return CoreTotals(wire.unpack_stamp(found.body).position, sums)

    async def set_status(self, owner: int, book: str, asset_id: int, status: AccountStatus) -> None:
        """Raises Declined, and opens no account, if the owner or the asset does not exist."""
        if asset_id not in self._assets:
            await self._tell_assets()
        account = wire.account(wire.CoreBook[book], asset_id, owner)
        await self._call(FrameKind.SET_STATUS, wire.STATUS.pack(account, status))

    async def retire(self, floor: UUID) -> UUID:
        """Say that we are done with all ids below `floor`; return the core's own floor.

        That is a lower one if the core's clock says that this one is too late.
        """
        found = await self._call(FrameKind.RETIRE, floor.bytes)
        [(raw,)] = self._rows(wire.FLOOR, found)
        self.floor = UUID(bytes=raw)
        return self.floor

    async def rebind(self, before: str, binding: wire.Binding) -> wire.Binding:
        """An operator's word on which store this core serves, and where; return what holds now."""
        found = await self._call(FrameKind.REBIND, wire.pack(wire.Rebinding(before, binding)))
        try:
            return wire.unpack_binding(found.body[wire.STAMP.size :])
        except wire.MalformedFrame as broken:
            raise Unreachable(f"{self.name} answers in riddles: {broken}") from broken

    async def snapshot(self) -> None:
        await self._call(FrameKind.SNAPSHOT)

    async def events(self, after: int) -> AsyncIterator[CoreEvent]:
        """Every operation after a position, in order, once it is durable. It waits for more."""
        async with contextlib.aclosing(self.follow(after)) as pieces:
            async for _, piece in pieces:
                for event in piece:
                    yield event

    async def follow(self, after: int) -> AsyncGenerator[tuple[int, Sequence[CoreEvent]], None]:
        """The same in pieces, each with the position up to which nothing is missing."""
        reader, writer = await self._greeted()
        try:
            writer.write(wire.frame(FrameKind.EVENTS, 1, wire.AFTER.pack(after)))
            while True:
                found = await wire.receive(reader)
                if found.kind == FrameKind.REFUSED:
                    raise Unreachable(wire.unpack_refusal(found.body).message)
                piece = list(wire.unpack_events(found.body))
                yield piece[-1].position if piece else wire.unpack_stamp(found.body).position, piece
        except LOST as lost:
            raise Unreachable(f"the events of {self.name} were lost: {lost}") from lost
        finally:
            writer.close()

    async def remember(self, tx: SqlTransaction) -> None:
        """Write the newest mark that we acknowledge, with the answers that rest on it."""
        if self.mark is not None:
            who = {"core": self.name, "process": self._caller.process}
            await tx.post(STATEMENTS["remember"], who | msgspec.structs.asdict(self.mark))

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _call(self, kind: FrameKind, body: bytes = b"") -> CoreFrame:
        link = await self._linked()
        found = await link.call(kind, body, self._caller.timeout_s)
        if found.kind == FrameKind.BUSY:
            if kind != FrameKind.ASK:
                raise Unreachable(f"{self.name} is busy; nothing was done")
        else:
            self._observe(link, found)
        return found

    def _observe(self, link: CoreConnection, found: CoreFrame) -> None:
        """Keep the newest mark; an answer from an earlier start of the core is none."""
        assert self.mark is not None
        try:
            epoch, position, crc = wire.unpack_stamp(found.body)
        except wire.MalformedFrame as broken:
            raise link.fail(f"{self.name} answers in riddles: {broken}") from broken
        if epoch < self.mark.epoch:
            link.fail("an earlier start of the core answered")
            raise self._refused(f"{self.name} answers from epoch {epoch}, long past")
        if position > self.mark.position or epoch > self.mark.epoch:
            self.mark = HistoryMark(self.mark.uuid, position, crc, epoch)

    async def _linked(self) -> CoreConnection:
        async with self._connecting:
            if self._link is None or self._link.failed:
                self._link = CoreConnection(await self._greeted())
            return self._link

    async def _greeted(self) -> Streams:
        """A new connection on which the core has said that it knows what we know."""
        try:
            recalled = await self._recall()
            known = newest(mark for mark in (recalled.mark, self.mark) if mark)
        except CoreRefusesService as torn:
            raise self._refused(str(torn)) from torn
        try:
            async with asyncio.timeout(self._caller.timeout_s):
                streams = await self._connect()
        except LOST as lost:
            raise Unreachable(f"{self.name} cannot be reached: {lost!r}") from lost
        try:
            async with asyncio.timeout(self._caller.timeout_s):
                welcome = await self._greet(streams, recalled._replace(mark=known))
        except LOST as lost:
            streams[1].close()
            raise Unreachable(f"{self.name} does not greet: {lost!r}") from lost
        except Unreachable:
            streams[1].close()
            raise
        self.refusal = None
        self._assets = recalled.assets
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

    async def _greet(self, streams: Streams, recalled: KnownCore) -> wire.Welcome:
        reader, writer = streams
        store, place, assets, known = recalled
        epoch = known.epoch if known else 0
        who = (store, self._caller.process, known, epoch, place, tuple(sorted(assets)))
        hello = wire.Hello(wire.PROTOCOL, *who)
        writer.write(wire.frame(FrameKind.HELLO, 0, wire.pack(hello)))
        kind, _, body = await wire.receive(reader)
        if kind == FrameKind.REFUSED:
            refusal = wire.unpack_refusal(body)
            if refusal.code in LATER:
                raise Unreachable(refusal.message)
            raise self._refused(refusal.message)
        if kind != FrameKind.WELCOME:
            raise wire.MalformedFrame(f"a greeting of kind {kind}")
        welcome = wire.unpack_welcome(body)
        if known is not None:
            # The core has looked at this already. That it must agree costs nothing.
            there = welcome.mark
            if there.uuid != known.uuid or there.position < known.position:
                raise self._refused(f"{self.name} is not the core that we know: {there}")
            if there.epoch < epoch:
                raise self._refused(f"{self.name} is at epoch {there.epoch}; {epoch} was seen")
        return welcome

    def _refused(self, message: str) -> CoreRefusesService:
        self.refusal = f"{self.name} refuses to serve: {message}"
        if self._on_refused is not None:
            self._on_refused(self.refusal)
        return CoreRefusesService(self.refusal)

    def _answers(self, found: CoreFrame, count: int) -> Sequence[tuple[int, int]]:
        if found.kind == FrameKind.BUSY:
            return [(CoreOutcome.BUSY, 0)] * count
        try:
            return wire.unpack_answers(found.body, count)
        except wire.MalformedFrame as broken:
            raise Unreachable(f"{self.name} answers in riddles: {broken}") from broken

    def _rows(self, form: struct.Struct, found: CoreFrame) -> Sequence[tuple[Any, ...]]:
        try:
            return list(wire.rows(form, found.body[wire.STAMP.size :]))
        except wire.MalformedFrame as broken:
            raise Unreachable(f"{self.name} answers in riddles: {broken}") from broken


def _packed(question: Question) -> bytes | None:
    """The question as the core is asked it, or None where the core has no words for it."""
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
        return None  # A number that does not fit its field.


def _answer(outcome: int, position: int) -> Answer:
    if outcome == DONE:
        return Done({"position": str(position)})
    if outcome in EMPTY:
        return Done({"position": str(position), "delta": "0"})
    if outcome in REASONS:
        return Rejected(REASONS[outcome], {"position": str(position)})
    # An outcome without a name is a later core's: whatever it means, it is neither yes nor no.
    reason = DOUBTS.get(outcome, f"OUTCOME_{outcome}")
    return Unknown(reason, ALARMS.get(outcome, Alarm.PAGE))
