"""An independent auditor: it keeps its own books of what really happened, and believes nobody.

It sees what the database commits, what the core's disk holds durably and what the core says on
the wire. It asks neither the engine nor the core what they think.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from tidegate.core.answers import Alarm
from tidegate.core.flow import Edge, Flow
from tidegate.core.kind import GENESIS, Transfer
from tidegate.core.transfer import HistoryEntry
from tidegate.core.wire import ACCOUNT, ANSWER, KEY, OPERATION, RECORD, STAMP, CoreBook, CoreVerb
from tidegate.engine.alerts import Alert
from tidegate.simulation.disk import SimInode
from tidegate.simulation.effects import FEE, Effects, expected, flow_effects_of, same
from tidegate.simulation.pool_auditor import PoolAuditor
from tidegate.store.memory_store import HISTORY
from tidegate.store.memory_tables import TRANSFERS
from tidegate.systems.ledger import OUTSIDE
from tidegate.systems.ledger.memory import ACCOUNTS, OPERATIONS
from tidegate.trading_core import wal

LEDGER, CORE = "ledger", "core"
OWN = 2**64  # Operations of the world itself, not of any transfer, have ids below this.
EXPECTED = frozenset({"lane_unreachable", "clock_set_back", "floor_refused"})
FINAL, BUSY, RETIRED = 32, 32, 34  # Below FINAL it is for ever. What has ended may be RETIRED.
# A worker judges by what it was given: others may have taken the transfer up meanwhile.
SLACK_S, SLACK_TRIES, HOUR_S = 10.0, 2, 3600.0
VERBS = {int(verb): verb.name.lower() for verb in CoreVerb}
BOOKS = {int(book): book.name for book in CoreBook}

Account: TypeAlias = tuple[str, int, str, int]  # System, owner, book, asset.


class Violation(AssertionError):
    """Something happened that must not, whatever fails."""


@dataclass(slots=True)
class AuditedTransfer:
    """One transfer as the auditor has seen it."""

    transfer: Transfer
    version: int = 0
    head: bytes = GENESIS
    history: tuple[Any, ...] = ()
    effects: Effects = ()
    net: int = 0  # What its effects add to all books together.
    fee: int = 0  # What its fees account was credited.
    since_s: float = 0.0  # When it came to rest in its state.
    tries: int = 0  # How often it was given out since.
    refused: bool = False  # Its last answer was a «no» that is not accepted.
    told: bool = False  # People know that it is stuck where it is.
    overdue: bool = False  # They should.
    owing: list[object] = field(default_factory=list)  # Who has written down that it is stuck.


class AuditorView(NamedTuple):
    """What the auditor may ask of the world: the true time, and who is alive."""

    clock: Callable[[], float]
    alive: Callable[[object], bool]
    note: Callable[[str, str], None]


class Auditor:
    def __init__(self, flows: Mapping[str, Flow], eyes: AuditorView) -> None:
        self.flows, self.eyes = flows, eyes
        self.laws = {name: flow_effects_of(flow) for name, flow in flows.items()}
        self.books: Counter[Account] = Counter()
        self.endowed: Counter[tuple[int, int]] = Counter()  # By owner and asset: the world's own.
        self.pool = PoolAuditor(self.blame, self.books)
        self.lives: dict[UUID, AuditedTransfer] = {}
        self.open: set[UUID] = set()
        self.edges: Counter[tuple[str, Edge]] = Counter()
        self.violations: list[str] = []
        self.position = 0  # Of the core's log, durable.
        self.acknowledged = 0  # Of the core's log, told to somebody.
        self.pages = 0
        self.untold = 0  # Transfers that were stuck, and whoever was to say so had died.
        self.executed = self.steps = 0  # Steps: of the database's clock, by which it counts.
        self._frames: dict[int, bytes] = {}
        self._operations: dict[UUID, tuple[Any, ...]] = {}
        self._answers: dict[bytes, tuple[int, int]] = {}
        self.estranged = False  # Another core was there instead of ours: people are to be told.
        self.trouble: Callable[[], bool] = lambda: True
        self.moved: Callable[[Account, str], None] = lambda _account, _verb: None

    def blame(self, text: str) -> None:
        self.eyes.note("auditor", f"VIOLATION: {text}")
        self.violations.append(text)

    def endow(self, account: Account, amount: int) -> None:
        self.books[account] += amount
        self.endowed[account[1], account[3]] += amount

    # What the database commits.

    def committed(
        self, written: Mapping[tuple[str, Any], Any], leased: frozenset[UUID], by: object
    ) -> None:
        touched: list[AuditedTransfer] = []
        operated: list[Any] = []
        accounts: list[Any] = []
        for (table, key), row in written.items():
            if table == TRANSFERS:
                history = written.get((HISTORY, key))
                touched.append(self._stored(row.transfer, history, key in leased, by))
            elif table == OPERATIONS:
                operated.append((key, row))
            elif table == ACCOUNTS:
                accounts.append((key, row))
        for id_, operations in operated:
            self._operated(id_, operations)
            touched += [self.lives[id_]] if id_ in self.lives else []
        for account, row in accounts:
            if row.available + row.held != (kept := self.books[LEDGER, *account]):
                self.blame(f"{account} holds {row.available}, and its operations make {kept}")
        for life in touched:
            self._judge(life)
            self.pool.look(life.transfer, written)

    def _stored(
        self, after: Transfer, history: tuple[Any, ...] | None, lease: bool, by: object
    ) -> AuditedTransfer:
        life = self.lives.get(after.id)
        if life is None:
            life = self.lives[after.id] = AuditedTransfer(after, since_s=self.eyes.clock())
            self.open.add(after.id)
            self._fresh(life, after, history or (), by)
        else:
            before = life.transfer
            if before.kind.lane is None:
                self.blame(f"{after.id} had ended in {before.state}, and was written again")
            known = life.history
            if history is not None and history[: len(known)] != known:
                self.blame(f"the history of {after.id} was rewritten")
            if not same(before, after):
                self.blame(f"{after.id} became another transfer")
            fresh = () if history is None else history[len(known) :]
            if fresh:
                self._fresh(life, after, fresh, by)
            else:
                self._stayed(life, after, by)
        if history is not None:
            life.history = history
        life.tries += lease
        life.transfer, kind = after, after.kind
        if (kind.lane is None) != self.flows[kind.flow].is_end(kind.state):
            self.blame(f"{after.id} rests in {kind.state} with lane {kind.lane}")
        if kind.version != life.version or after.head_hash != life.head:
            self.blame(f"{after.id}: the history does not lead to its row")
        if kind.lane is None:
            self.open.discard(after.id)
        return life

    def _fresh(
        self, life: AuditedTransfer, after: Transfer, answers: Sequence[Any], by: object
    ) -> None:
        flow, edges = self.flows[name := after.kind.flow], self.laws[name].edges
        state = life.transfer.state if life.history else str(flow.first)
        if not answers:
            state = flow.arrive(flow.first)[-1]
        for entry, at_us, hashed in answers:
            path, version = entry.path, entry.version
            edge = Edge(version == 0, path, entry.verb, entry.answer)
            self.edges[name, edge] += 1
            if edge not in edges:
                self.blame(f"{after.id}: {name} does not allow {edge}")
            if version != life.version or path[0] != state:
                self.blame(f"{after.id}: {path} does not follow on {state}")
            life.head = chain(life.head, after, entry, at_us)
            if life.head != hashed:
                self.blame(f"{after.id}: the chain is broken at version {version}")
            asked = path[len(flow.arrive(flow.first)) - 1 if version == 0 else 0]
            state = path[-1]
            life.refused = state == asked
            life.version += 1
            if not life.refused:
                self._left(life)
            elif not life.told:
                life.owing.append(by)
                life.overdue = True
        if state != after.kind.state:
            self.blame(f"{after.id} is in {after.state}; its history ends in {state}")
        life.since_s, life.tries = self.eyes.clock(), 0
        walked = " ".join([">".join(each[0].path) for each in answers]) or f"born in {after.state}"
        self.eyes.note(short(after.id), walked)

    def _stayed(self, life: AuditedTransfer, after: Transfer, by: object) -> None:
        """No answer. Whoever marks it as paged, or writes when it is stuck, must tell of it."""
        if not life.told and (self._stuck(life) or after.kind.paged > life.transfer.kind.paged):
            life.owing.append(by)
            life.overdue = life.overdue or self._stuck(life, SLACK_S, SLACK_TRIES)

    def _left(self, life: AuditedTransfer) -> None:
        """It goes on. Was it stuck, and nobody has said so although nobody died over it?"""
        if life.overdue and not life.told:
            self.untold += 1
            if all(map(self.eyes.alive, life.owing)):
                state, id_ = life.transfer.state, life.transfer.id
                self.blame(f"{id_} was stuck in {state}, and nobody was told")
        life.told, life.overdue, life.owing = False, False, []

    def _stuck(self, life: AuditedTransfer, slack_s: float = 0.0, slack: int = 0) -> bool:
        ask = self.flows[life.transfer.kind.flow].ask(life.transfer.kind.state)
        if ask is None:
            return False
        late, often = ask.patience.page_after_s, ask.patience.page_attempts
        waited_s = self.eyes.clock() - life.since_s
        return (late is not None and waited_s >= late + slack_s) or (
            often is not None and life.tries >= often + slack
        )

    def claimed(self, transfers: Iterable[Transfer]) -> None:
        for transfer in transfers:
            self.lives[transfer.id].tries += 1

    def _operated(self, id_: UUID, row: tuple[Any, ...]) -> None:
        known = self._operations.get(id_, ())
        keys = {(o.version, o.entry) for o in row} if len(row) > 1 else row
        if row[: len(known)] != known or len(keys) != len(row):
            self.blame(f"an operation of {id_} in the ledger was changed or repeated")
        self._operations[id_] = row
        for operation in row[len(known) :]:
            if operation.moved:
                delta = operation.delta + operation.held_delta
                self._effect(id_, (LEDGER, *operation.account), operation.verb, delta)

    # What the core does.

    def synced(self, inode: SimInode) -> None:
        """Another part of the core's log is durable: read what it says was done."""
        if not inode.name.startswith(wal.PREFIX):
            return
        content, offset = inode.content, inode.audited or wal.HEADER_SIZE
        while offset < inode.synced:
            start = offset + wal.FRAME_SIZE
            sound = start <= inode.synced and content.startswith(wal.FRAME_MAGIC, offset)
            head = wal.FRAME.unpack_from(content, offset) if sound else ()
            if not head or start + head[1] > inode.synced:
                self.blame(f"the core's log goes on at byte {offset} with what is no frame")
                offset = inode.synced
                break
            _, length, position, records, _ = head
            payload = bytes(content[start : start + length])
            offset = start + length
            if position < self.position:
                if self._frames.get(position) != payload:
                    self.blame(f"the core's log was rewritten at position {position}")
            elif position > self.position:
                self.blame(f"the core's log has a gap from {self.position} to {position}")
            else:
                self._frames[position] = payload
                self.position += records
                self._read(payload)
        inode.audited = offset

    def _read(self, payload: bytes) -> None:
        at = 0
        while at < len(payload):
            kind, _, length = wal.SECTION.unpack_from(payload, at)
            at += wal.SECTION.size
            if kind == wal.RecordKind.OPERATIONS:
                for row in RECORD.iter_unpack(payload[at : at + length]):
                    self._record(row)
            at += length

    def _record(self, row: tuple[Any, ...]) -> None:
        key, verb, _, _, account, _, _, change, _ = row
        delta = int.from_bytes(change, signed=True)
        if not delta:
            return
        book, asset_id, owner = ACCOUNT.unpack(account)
        place = CORE, owner, BOOKS[book], asset_id
        id_ = UUID(bytes=KEY.unpack(key)[0])
        if id_.int < OWN:
            self.endow(place, delta)
            return
        self._effect(id_, place, VERBS[verb], delta)
        if (life := self.lives.get(id_)) is not None:
            self._judge(life)
        self.moved(place, VERBS[verb])

    def opened(self, inode: SimInode, position: int, balances: Mapping[Account, int]) -> None:
        """The core has started: it must know everything that it ever had made durable."""
        inode.audited = 0
        self.synced(inode)
        if position < max(self.position, self.acknowledged):
            known = f"{self.position} was durable and {self.acknowledged} acknowledged"
            self.blame(f"the core came back at position {position}; {known}")
        self.compare(CORE, balances)

    def answered(self, questions: bytes, reply: bytes) -> None:
        """The core says something: it must be durable, and what it said before."""
        _, position, _ = STAMP.unpack_from(reply)
        self.acknowledged = max(self.acknowledged, position)
        if position > self.position:
            self.blame(f"the core acknowledges {position}, and {self.position} is durable")
        asked = OPERATION.iter_unpack(questions)
        for (key, *_), said in zip(asked, ANSWER.iter_unpack(reply[STAMP.size :]), strict=True):
            if said[0] > BUSY and (said[0] != RETIRED or UUID(bytes=key[:16]) in self.open):
                self.blame(f"the core answers {said[0]} under {key.hex()}")
            elif said[1] > self.position:
                self.blame(f"the core answers by {said[1]}, and {self.position} is durable")
            elif said[0] < FINAL and self._answers.setdefault(key, said) != said:
                self.blame(f"the core answers {said} under {key.hex()}, and said otherwise before")

    # What both do to the money of a transfer.

    def _effect(self, id_: UUID, account: Account, verb: str, delta: int) -> None:
        self.executed += 1
        self.books[account] = held = self.books[account] + delta
        if held < 0 and account[2] != OUTSIDE:
            self.blame(f"{account} is overdrawn by {-held}")
        life = self.lives.get(id_)
        if life is None:
            self.blame(f"{account} was moved by {delta} for {id_}, which does not exist")
            return
        transfer = life.transfer
        system, owner, book, asset_id = account
        effect, due = expected(transfer, account, verb)
        if asset_id != transfer.kind.asset_id or delta != due:
            self.blame(f"{verb} of {delta} at {system} {owner} {book} is not what {id_} is about")
        life.net += delta
        if effect == FEE:
            life.fee += delta  # A part of the credit of the target, and no effect of its own.
        else:
            life.effects = tuple(sorted((*life.effects, effect))) if life.effects else (effect,)
        self.eyes.note(system, f"{verb} {delta:+d} at {owner} {book} for {short(id_)}")

    def _judge(self, life: AuditedTransfer) -> None:
        transfer, kind = life.transfer, life.transfer.kind
        if life.effects not in self.laws[kind.flow].effects[kind.state]:
            effects = ", ".join(life.effects) or "nothing"
            self.blame(f"{transfer.id} is in {kind.state}, and this was done: {effects}")
        if life.fee != (kind.fee if "target.credit" in life.effects else 0):
            self.blame(f"{transfer.id} was charged {life.fee} of a fee of {kind.fee}")
        if kind.lane is None and life.net:
            self.blame(f"{transfer.id} has ended, and {life.net} is off")

    def compare(self, system: str, balances: Mapping[Account, int]) -> None:
        """A system's own view of its accounts must be ours."""
        ours = {a: n for a, n in self.books.items() if n and a[0] == system}
        theirs = {a: n for a, n in balances.items() if n}
        if ours != theirs:
            off = sorted(dict(ours.items() ^ theirs.items()))
            self.blame(f"{system} holds other balances than it was asked to make: {off[:3]}")

    # What people are told.

    def alerted(self, alert: Alert, by: object) -> None:
        if alert.alarm is Alarm.NONE:
            return
        self.pages += 1
        self.eyes.note(str(by), f"{alert.alarm.name}: {alert.cause} {alert.state or ''}")
        if alert.transfer_id is None:
            if self.estranged and "refuses to serve" in alert.cause:
                return
            if alert.alarm > Alarm.PAGE or alert.code not in EXPECTED:
                self.blame(f"a false alarm: {alert.alarm.name} {alert.cause}")
            elif not self.trouble():
                self.blame(f"paged although nothing had failed: {alert.cause}")
            return
        life = self.lives[alert.transfer_id]
        # The database counts from the beginning of a transaction, and we from its end.
        stuck = self._stuck(life, -(HOUR_S if self.steps else SLACK_S))
        if alert.alarm is Alarm.HALT or not (stuck or life.refused):
            self.blame(f"a false alarm: {alert.alarm.name} {alert.cause} of {alert.transfer_id}")
        life.told = True

    def finish(self, ledger: Mapping[Account, int], core: Mapping[Account, int]) -> None:
        """When all is over: everything has ended, and every book is as we have kept it."""
        if self.open:
            self.blame(f"{len(self.open)} transfers have not ended")
        self.compare(LEDGER, ledger)
        self.compare(CORE, core)
        sums: Counter[tuple[int, int]] = Counter()
        for (_, owner, _, asset_id), amount in self.books.items():
            sums[owner, asset_id] += amount
        for key, amount in self.endowed.items():
            if sums[key] != amount:
                self.blame(f"owner and asset {key} hold {sums[key]} instead of {amount}")


def short(id_: UUID) -> str:
    """Enough of an id to tell the transfers of one seed apart."""
    return f"{id_.int >> 16 & 0xFFFFFFFF:08x}"


def chain(head: bytes, transfer: Transfer, entry: HistoryEntry, at_us: int) -> bytes:
    """What an answer's hash must be, worked out once more."""
    told = (entry.version, entry.path, entry.verb, entry.answer, entry.reason)
    evidence = sorted(entry.evidence.items()) if entry.evidence else []
    row = [f"{transfer.id.int:032x}", transfer.kind.flow, *told, evidence, entry.actor, at_us]
    return hashlib.sha256(head + msgspec.json.encode(row)).digest()
