"""An independent auditor: it keeps its own books and checks every effect against the flow tables.

It reads what the database commits, what is durable on the core's disk and what the core sends on
the wire. It uses no bookkeeping of the engine or of the core.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from tidegate.core.answers import Alarm
from tidegate.core.flow import Edge, Flow
from tidegate.core.kind import Transfer
from tidegate.core.wire import ACCOUNT, ANSWER, KEY, OPERATION, RECORD, STAMP, CoreBook, CoreVerb
from tidegate.engine.alerts import Alert
from tidegate.simulation.audited_transfer import AuditedTransfer, chain
from tidegate.simulation.disk import SimInode
from tidegate.simulation.effects import FEE, expected, flow_effects_of, is_same_transfer
from tidegate.simulation.pool_auditor import PoolAuditor
from tidegate.store.memory_store import HISTORY
from tidegate.store.memory_tables import TRANSFERS
from tidegate.systems.ledger import OUTSIDE
from tidegate.systems.ledger.memory import ACCOUNTS, OPERATIONS
from tidegate.trading_core import wal

LEDGER, CORE = "ledger", "core"
WORLD_IDS = 2**64  # Operations of the world itself, not of a transfer, have ids below this.
EXPECTED = frozenset({"lane_unreachable", "clock_set_back", "floor_refused"})
# Outcome codes: below FINAL an answer never changes. The key of an ended transfer may be RETIRED.
FINAL, BUSY, RETIRED = 32, 32, 34
# A worker decides by the row that it claimed. Others may have claimed the transfer since then.
SLACK_S, SLACK_TRIES, HOUR_S = 10.0, 2, 3600.0
VERBS = {int(verb): verb.name.lower() for verb in CoreVerb}
BOOKS = {int(book): book.name for book in CoreBook}

Account: TypeAlias = tuple[str, int, str, int]  # System, owner, book, asset.


class Violation(AssertionError):
    """A rule was broken that must hold under every fault."""


class AuditorView(NamedTuple):
    """What the auditor may read from the world: the true time, and which workers are alive."""

    clock: Callable[[], float]
    alive: Callable[[object], bool]
    note: Callable[[str, str], None]


class Auditor:
    """Checks everything that is committed, synced, answered and alerted in one seed."""

    def __init__(self, flows: Mapping[str, Flow], view: AuditorView) -> None:
        self.flows, self.view = flows, view
        self.flow_effects = {name: flow_effects_of(flow) for name, flow in flows.items()}
        self.books: Counter[Account] = Counter()
        # Money that the world added, by owner and asset.
        self.granted: Counter[tuple[int, int]] = Counter()
        self.pool = PoolAuditor(self.report, self.books)
        self.transfers: dict[UUID, AuditedTransfer] = {}
        self.open: set[UUID] = set()
        self.edges: Counter[tuple[str, Edge]] = Counter()
        self.violations: list[str] = []
        self.position = 0  # Of the core's log, durable.
        self.acknowledged = 0  # Of the core's log, sent to a client.
        self.pages = 0
        self.executed = 0
        self.clock_steps = 0  # How often the database's clock was set.
        self._frames: dict[int, bytes] = {}
        self._operations: dict[UUID, tuple[Any, ...]] = {}
        self._answers: dict[bytes, tuple[int, int]] = {}
        self.foreign_core = False  # Another core ran in place of ours, so alerts are expected.
        self.alerts_expected: Callable[[], bool] = lambda: True
        self.on_core_move: Callable[[Account, str], None] = lambda _account, _verb: None

    def report(self, text: str) -> None:
        self.view.note("auditor", f"VIOLATION: {text}")
        self.violations.append(text)

    def grant(self, account: Account, amount: int) -> None:
        self.books[account] += amount
        self.granted[account[1], account[3]] += amount

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
                touched.append(self._check_row(row.transfer, history, key in leased, by))
            elif table == OPERATIONS:
                operated.append((key, row))
            elif table == ACCOUNTS:
                accounts.append((key, row))
        for id_, operations in operated:
            self._check_operations(id_, operations)
            touched += [self.transfers[id_]] if id_ in self.transfers else []
        for account, row in accounts:
            if row.available + row.held != (total := self.books[LEDGER, *account]):
                self.report(f"{account} holds {row.available}, but its operations sum to {total}")
        for audited in touched:
            self._check_effects(audited)
            self.pool.check(audited.transfer, written)

    def _check_row(
        self, after: Transfer, history: tuple[Any, ...] | None, lease: bool, by: object
    ) -> AuditedTransfer:
        audited = self.transfers.get(after.id)
        if audited is None:
            audited = self.transfers[after.id] = AuditedTransfer(after, since_s=self.view.clock())
            self.open.add(after.id)
            self._check_answers(audited, after, history or (), by)
        else:
            before = audited.transfer
            if before.kind.lane is None:
                self.report(f"{after.id} had ended in {before.state} and was written again")
            known = audited.history
            if history is not None and history[: len(known)] != known:
                self.report(f"the history of {after.id} was rewritten")
            if not is_same_transfer(before, after):
                self.report(f"{after.id} became another transfer")
            answers = () if history is None else history[len(known) :]
            if answers:
                self._check_answers(audited, after, answers, by)
            else:
                self._check_unanswered(audited, after, by)
        if history is not None:
            audited.history = history
        audited.tries += lease
        audited.transfer, kind = after, after.kind
        if (kind.lane is None) != self.flows[kind.flow].is_end(kind.state):
            self.report(f"{after.id} is in {kind.state} with lane {kind.lane}")
        if kind.version != audited.version or after.head_hash != audited.head:
            self.report(f"{after.id}: the history does not lead to its row")
        if kind.lane is None:
            self.open.discard(after.id)
        return audited

    def _check_answers(
        self, audited: AuditedTransfer, after: Transfer, answers: Sequence[Any], by: object
    ) -> None:
        flow, edges = self.flows[name := after.kind.flow], self.flow_effects[name].edges
        state = audited.transfer.state if audited.history else str(flow.first)
        if not answers:
            state = flow.arrive(flow.first)[-1]
        for entry, at_us, hashed in answers:
            path, version = entry.path, entry.version
            edge = Edge(version == 0, path, entry.verb, entry.answer)
            self.edges[name, edge] += 1
            if edge not in edges:
                self.report(f"{after.id}: {name} does not allow {edge}")
            if version != audited.version or path[0] != state:
                self.report(f"{after.id}: {path} does not follow {state}")
            audited.head = chain(audited.head, after, entry, at_us)
            if audited.head != hashed:
                self.report(f"{after.id}: the chain is broken at version {version}")
            asking_state = path[len(flow.arrive(flow.first)) - 1 if version == 0 else 0]
            state = path[-1]
            audited.refused = state == asking_state
            audited.version += 1
            if not audited.refused:
                self._leave_state(audited)
            elif not audited.reported:
                audited.must_report.append(by)
                audited.overdue = True
        if state != after.kind.state:
            self.report(f"{after.id} is in {after.state}; its history ends in {state}")
        audited.since_s, audited.tries = self.view.clock(), 0
        steps = " ".join([">".join(answer[0].path) for answer in answers])
        self.view.note(short(after.id), steps or f"created in {after.state}")

    def _check_unanswered(self, audited: AuditedTransfer, after: Transfer, by: object) -> None:
        """No answer. A worker that marks it as paged, or writes it while stuck, must alert."""
        if not audited.reported and (
            self._stuck(audited) or after.kind.paged > audited.transfer.kind.paged
        ):
            audited.must_report.append(by)
            audited.overdue = audited.overdue or self._stuck(audited, SLACK_S, SLACK_TRIES)

    def _leave_state(self, audited: AuditedTransfer) -> None:
        """It leaves its state. If it was stuck, an alert must exist, unless the worker died."""
        unreported = audited.overdue and not audited.reported
        if unreported and all(map(self.view.alive, audited.must_report)):
            state, id_ = audited.transfer.state, audited.transfer.id
            self.report(f"{id_} was stuck in {state} without an alert")
        audited.reported, audited.overdue, audited.must_report = False, False, []

    def _stuck(self, audited: AuditedTransfer, slack_s: float = 0.0, slack: int = 0) -> bool:
        ask = self.flows[audited.transfer.kind.flow].ask(audited.transfer.kind.state)
        if ask is None:
            return False
        after_s, attempts = ask.retry.page_after_s, ask.retry.page_attempts
        waited_s = self.view.clock() - audited.since_s
        return (after_s is not None and waited_s >= after_s + slack_s) or (
            attempts is not None and audited.tries >= attempts + slack
        )

    def claimed(self, transfers: Iterable[Transfer]) -> None:
        for transfer in transfers:
            self.transfers[transfer.id].tries += 1

    def _check_operations(self, id_: UUID, row: tuple[Any, ...]) -> None:
        known = self._operations.get(id_, ())
        keys = {(o.version, o.entry) for o in row} if len(row) > 1 else row
        if row[: len(known)] != known or len(keys) != len(row):
            self.report(f"an operation of {id_} in the ledger was changed or repeated")
        self._operations[id_] = row
        for operation in row[len(known) :]:
            if operation.moved:
                delta = operation.delta + operation.held_delta
                self._effect(id_, (LEDGER, *operation.account), operation.verb, delta)

    # What the core does.

    def synced(self, inode: SimInode) -> None:
        """More of the core's log is durable: read the operations in it."""
        if not inode.name.startswith(wal.PREFIX):
            return
        content, offset = inode.content, inode.audited or wal.HEADER_SIZE
        while offset < inode.synced:
            start = offset + wal.FRAME_SIZE
            is_frame = start <= inode.synced and content.startswith(wal.FRAME_MAGIC, offset)
            head = wal.FRAME.unpack_from(content, offset) if is_frame else ()
            if not head or start + head[1] > inode.synced:
                self.report(f"the core's log continues at byte {offset} with something not a frame")
                offset = inode.synced
                break
            _, length, position, records, _ = head
            payload = bytes(content[start : start + length])
            offset = start + length
            if position < self.position:
                if self._frames.get(position) != payload:
                    self.report(f"the core's log was rewritten at position {position}")
            elif position > self.position:
                self.report(f"the core's log has a gap from {self.position} to {position}")
            else:
                self._frames[position] = payload
                self.position += records
                self._read_frame(payload)
        inode.audited = offset

    def _read_frame(self, payload: bytes) -> None:
        offset = 0
        while offset < len(payload):
            kind, _, length = wal.SECTION.unpack_from(payload, offset)
            offset += wal.SECTION.size
            if kind == wal.RecordKind.OPERATIONS:
                for row in RECORD.iter_unpack(payload[offset : offset + length]):
                    self._record(row)
            offset += length

    def _record(self, row: tuple[Any, ...]) -> None:
        key, verb, _, _, account, _, _, change, _ = row
        delta = int.from_bytes(change, signed=True)
        if not delta:
            return
        book, asset_id, owner = ACCOUNT.unpack(account)
        moved = CORE, owner, BOOKS[book], asset_id
        id_ = UUID(bytes=KEY.unpack(key)[0])
        if id_.int < WORLD_IDS:
            self.grant(moved, delta)
            return
        self._effect(id_, moved, VERBS[verb], delta)
        if (audited := self.transfers.get(id_)) is not None:
            self._check_effects(audited)
        self.on_core_move(moved, VERBS[verb])

    def opened(self, inode: SimInode, position: int, balances: Mapping[Account, int]) -> None:
        """The core has started: it must know everything that was ever durable."""
        inode.audited = 0
        self.synced(inode)
        if position < max(self.position, self.acknowledged):
            known = f"{self.position} was durable and {self.acknowledged} acknowledged"
            self.report(f"the core restarted at position {position}; {known}")
        self.compare(CORE, balances)

    def answered(self, questions: bytes, reply: bytes) -> None:
        """The core answers: the answer must be durable, and the same as before for its key."""
        _, position, _ = STAMP.unpack_from(reply)
        self.acknowledged = max(self.acknowledged, position)
        if position > self.position:
            self.report(f"the core acknowledges {position}, but {self.position} is durable")
        operations = OPERATION.iter_unpack(questions)
        answers = ANSWER.iter_unpack(reply[STAMP.size :])
        for (key, *_), answer in zip(operations, answers, strict=True):
            code, answer_position = answer
            if code > BUSY and (code != RETIRED or UUID(bytes=key[:16]) in self.open):
                self.report(f"the core answers {code} for key {key.hex()}")
            elif answer_position > self.position:
                self.report(f"the core answers at {answer_position}; {self.position} is durable")
            elif code < FINAL and self._answers.setdefault(key, answer) != answer:
                self.report(f"the core answers {answer} for key {key.hex()}; before, it differed")

    # What both do to the money of a transfer.

    def _effect(self, id_: UUID, account: Account, verb: str, delta: int) -> None:
        self.executed += 1
        self.books[account] = held = self.books[account] + delta
        if held < 0 and account[2] != OUTSIDE:
            self.report(f"{account} is overdrawn by {-held}")
        audited = self.transfers.get(id_)
        if audited is None:
            self.report(f"{account} was moved by {delta} for {id_}, which does not exist")
            return
        transfer = audited.transfer
        system, owner, book, asset_id = account
        effect, due = expected(transfer, account, verb)
        if asset_id != transfer.kind.asset_id or delta != due:
            self.report(f"{verb} of {delta} at {system} {owner} {book} does not belong to {id_}")
        audited.net += delta
        if effect == FEE:
            audited.fee += delta  # Part of the credit of the target, not an effect of its own.
        else:
            audited.effects = (
                tuple(sorted((*audited.effects, effect))) if audited.effects else (effect,)
            )
        self.view.note(system, f"{verb} {delta:+d} at {owner} {book} for {short(id_)}")

    def _check_effects(self, audited: AuditedTransfer) -> None:
        transfer, kind = audited.transfer, audited.transfer.kind
        if audited.effects not in self.flow_effects[kind.flow].effects[kind.state]:
            effects = ", ".join(audited.effects) or "nothing"
            self.report(f"{transfer.id} is in {kind.state}, but these effects happened: {effects}")
        if audited.fee != (kind.fee if "target.credit" in audited.effects else 0):
            self.report(f"{transfer.id} was charged {audited.fee} of a fee of {kind.fee}")
        if kind.lane is None and audited.net:
            self.report(f"{transfer.id} has ended, but its effects sum to {audited.net}")

    def compare(self, system: str, balances: Mapping[Account, int]) -> None:
        """The balances of a system must be the auditor's."""
        expected_balances = {a: n for a, n in self.books.items() if n and a[0] == system}
        actual = {a: n for a, n in balances.items() if n}
        if expected_balances != actual:
            wrong = sorted(dict(expected_balances.items() ^ actual.items()))
            self.report(f"{system} holds other balances than its operations: {wrong[:3]}")

    # Alerts.

    def alerted(self, alert: Alert, by: object) -> None:
        if alert.alarm is Alarm.NONE:
            return
        self.pages += 1
        self.view.note(str(by), f"{alert.alarm.name}: {alert.cause} {alert.state or ''}")
        if alert.transfer_id is None:
            if self.foreign_core and "refuses to serve" in alert.cause:
                return
            if alert.alarm > Alarm.PAGE or alert.code not in EXPECTED:
                self.report(f"a false alarm: {alert.alarm.name} {alert.cause}")
            elif not self.alerts_expected():
                self.report(f"paged, but nothing had failed: {alert.cause}")
            return
        audited = self.transfers[alert.transfer_id]
        # The database counts from the start of a transaction, the auditor from its end.
        stuck = self._stuck(audited, -(HOUR_S if self.clock_steps else SLACK_S))
        if alert.alarm is Alarm.HALT or not (stuck or audited.refused):
            self.report(f"a false alarm: {alert.alarm.name} {alert.cause} of {alert.transfer_id}")
        audited.reported = True

    def finish(self, ledger: Mapping[Account, int], core: Mapping[Account, int]) -> None:
        """At the end of the seed: all transfers have ended, and all books are right."""
        if self.open:
            self.report(f"{len(self.open)} transfers have not ended")
        self.compare(LEDGER, ledger)
        self.compare(CORE, core)
        sums: Counter[tuple[int, int]] = Counter()
        for (_, owner, _, asset_id), amount in self.books.items():
            sums[owner, asset_id] += amount
        for key, amount in self.granted.items():
            if sums[key] != amount:
                self.report(f"owner and asset {key} hold {sums[key]} instead of {amount}")


def short(id_: UUID) -> str:
    """Enough of an id to distinguish the transfers of one seed."""
    return f"{id_.int >> 16 & 0xFFFFFFFF:08x}"
