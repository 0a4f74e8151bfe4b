"""Between values and columns: batches as arrays on the way in, rows as transfers on the way out."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from tidegate.core.ports import Key, Tables
from tidegate.core.sql import (
    Columns,
    amounts,
    bigints,
    blobs,
    encoded,
    integers,
    names,
    numbered,
    numbers,
    shared,
    sparse,
    strings,
    texts,
    uuids,
)
from tidegate.core.transfer import (
    Expiry,
    Form,
    Kind,
    Line,
    Moves,
    Party,
    Seat,
    Step,
    Transfer,
    chain,
    dated,
    details_of,
    hashed_form,
    kind_of,
    seats_of,
)

ATTEMPTS_KEPT = 20
PROBES_KEPT = 100  # Of an unreachable lane: the times of the newest.
NEVER = Expiry()

# In the order of the fields of Transfer.
TRANSFER_COLUMNS = """t.id, t.owner, t.flow, t.state, t.lane, t.parties::text, t.asset_id, t.amount,
       t.fee, t.version, t.attempts, t.retries, t.paged, t.undoes, t.parent, t.detail::text, t.cid,
       coalesce(t.space, ''), t.head_hash, t.error, t.trace,
       (extract(epoch FROM t.created_at) * 1000000)::bigint,
       (extract(epoch FROM t.updated_at) * 1000000)::bigint,
       extract(epoch FROM now() - t.updated_at)::float8,
       coalesce(t.deadline_at <= now(), false)"""

_PARTIES = msgspec.json.Decoder(dict[str, Party])
_DETAIL = msgspec.json.Decoder(dict[str, str])
_encode = msgspec.json.encode


def transfer_from(row: Sequence[Any]) -> Transfer:
    id_, owner, flow, state, lane, parties, asset_id, amount, fee = row[:9]
    version, attempts, retries, paged, undoes, parent, detail, cid, space = row[9:18]
    head, error, trace, created_us, updated_us, waited_s, expired = row[18:]
    seats = seats_of(_PARTIES.decode(parties), owner)
    details = () if detail is None else details_of(_DETAIL.decode(detail))
    kind = kind_of(
        *(flow, state, lane, seats, asset_id, fee, version, attempts, retries, paged, undoes),
        *(details, space, error, expired),
    )
    own = (owner, amount, parent, cid, head, trace, created_us, updated_us, waited_s)
    return Transfer(kind, id_, *own)


@lru_cache(4096)
def _forms(step: Step) -> tuple[Form, ...]:
    return tuple(hashed_form(step.after.flow, line) for line in step.lines)


@lru_cache(4096)
def _leased(kind: Kind) -> Kind:
    """A leased row is about to be asked about without a claim that would count the attempt."""
    return kind.but(attempts=kind.attempts + 1)


class Mark(NamedTuple):
    """What rows of a batch have in common: their step, their kind in the store, and the lease."""

    step: Step
    kind: Kind
    leased: bool


class WrittenRows(NamedTuple):
    """A batch as it is in the store when it has committed."""

    rows: list[Transfer]
    chains: list[list[bytes]]  # Of each row, the hashes of its answers.
    which: list[int]  # Of each row, the number of its mark, from one on.
    marks: list[Mark]


def written(moves: Moves, leased: Sequence[bool], at_us: int) -> WrittenRows:
    which, pairs = numbered(zip(moves.steps, leased, strict=True))
    marks = [Mark(step, _leased(step.after) if held else step.after, held) for step, held in pairs]
    plans = [(m.kind, [dated(form, at_us) for form in _forms(m.step)]) for m in marks]
    rows, chains = [], []
    for t, number, evidences in zip(moves.transfers, which, moves.evidences, strict=True):
        kind, forms = plans[number - 1]
        created_us = t.created_us or at_us
        if forms:
            hashes = chain(t.head_hash, forms, t.id, evidences)
            head, updated_us, waited_s = hashes[-1], at_us, 0.0
        else:
            hashes = []
            head, updated_us, waited_s = t.head_hash, t.updated_us or at_us, t.waited_s
        chains.append(hashes)
        own = (t.owner, t.amount, t.parent, t.cid, head, t.trace, created_us, updated_us, waited_s)
        rows.append(Transfer(kind, t.id, *own))
    return WrittenRows(rows, chains, which, marks)


def text(mapping: object) -> str | None:
    """JSON, or NULL for nothing: an empty object would cost its bytes in every row."""
    return _encode(mapping).decode() if mapping else None


class _Written(NamedTuple):
    """What the columns of a kind say. Kinds that differ in their parties only say the same."""

    start: int
    deadline_s: float | None
    delay_s: float
    flow: str
    asset_id: int
    fee: int
    details: tuple[tuple[str, str], ...]
    space: str
    state: str
    lane: str | None
    version: int
    attempts: int
    retries: int
    paged: bool
    undoes: int | None
    error: str | None


_said_of = attrgetter(*_Written._fields[3:])


def entry_columns(moves: Moves, chains: Sequence[Sequence[bytes]]) -> Columns:
    """One row per answer. The steps of a batch are few, and each has its lines."""
    steps, evidences = moves.steps, moves.evidences
    each = list(dict.fromkeys(steps))
    which, lines = numbered((step.after.flow, line) for step in each for line in step.lines)
    following = iter(which)
    places = {step: list(islice(following, len(step.lines))) for step in each}
    pairs = zip(moves.transfers, steps, strict=True)
    return {
        "history_ids": uuids([t.id for t, step in pairs for _ in step.lines]),
        "history_kinds": integers([place for step in steps for place in places[step]]),
        "evidences": strings(
            [_encode(kept).decode() if kept else None for row in evidences for kept in row]
        ),
        "history_hashes": blobs([hashed for hashes in chains for hashed in hashes]),
        **shared(_line_columns, lines),
    }


def _line_columns(lines: Sequence[tuple[str, Line]]) -> Columns:
    columns = {
        "history_flows": names(flow for flow, _ in lines),
        "history_versions": numbers(line.version for _, line in lines),
        "froms": names(line.path[0] for _, line in lines),
        "waypoints": names(" ".join(line.path[1:-1]) for _, line in lines),
        "tos": names(line.path[-1] for _, line in lines),
        "verbs": names(line.verb for _, line in lines),
        "answers": names(line.answer for _, line in lines),
        "reasons": names(line.reason for _, line in lines),
        "actors": names(line.actor for _, line in lines),
    }
    return encoded(columns)


def _kind_columns(kinds: Sequence[_Written]) -> Columns:
    columns = {
        "states": names(k.state for k in kinds),
        "lanes": names(k.lane for k in kinds),
        "new_versions": numbers(k.version for k in kinds),
        "attempts": sparse(k.attempts for k in kinds),
        "retries": sparse(k.retries for k in kinds),
        "pageds": sparse(k.paged for k in kinds),
        "undoes": numbers(k.undoes for k in kinds),
        "errors": names(k.error for k in kinds),
        "deadlines": numbers(k.deadline_s for k in kinds),
        "versions": numbers(k.start for k in kinds),
        "delays": sparse(k.delay_s for k in kinds),
        # Of those that are created:
        "flows": names(k.flow for k in kinds),
        "assets": numbers(k.asset_id for k in kinds),
        "spaces": names(k.space or None for k in kinds),
        "fees": sparse(k.fee for k in kinds),
        "details": texts([text(dict(k.details)) for k in kinds]),
    }
    return encoded(columns)


def state_columns(batch: WrittenRows, lease_s: float) -> Columns:
    """The columns that a creation and a move share."""
    contents = [
        _Written(step.start, step.deadline_s, lease_s if held else step.delay_s, *_said_of(kind))
        for step, kind, held in batch.marks
    ]
    merged, kinds = numbered(contents)
    same = len(kinds) == len(contents)
    return {
        "ids": uuids([t.id for t in batch.rows]),
        "kinds": integers(batch.which if same else [merged[n - 1] for n in batch.which]),
        "hashes": blobs([t.head_hash for t in batch.rows]),
        **shared(_kind_columns, kinds),
    }


def party_columns(moves: Moves) -> Columns:
    """Parties change rarely; where they do not, nothing is written."""
    changed = {
        step
        for step in set(moves.steps)
        if step.before is not None and step.before.seats != step.after.seats
    }
    if not changed:
        return {"parties": strings(())}
    parties = [
        _party_text(step.after.seats, t.owner) if step in changed else None
        for t, step in zip(moves.transfers, moves.steps, strict=True)
    ]
    return {"parties": strings(parties)}


def _party_texts(transfers: Sequence[Transfer]) -> list[str]:
    pieces = {kind: _party_pieces(kind.seats) for kind in {t.kind for t in transfers}}
    return [str(t.owner).join(pieces[t.kind]) for t in transfers]


def _party_text(seats: tuple[Seat, ...], owner: int) -> str:
    return str(owner).join(_party_pieces(seats))


@lru_cache(4096)
def _party_pieces(seats: tuple[Seat, ...]) -> tuple[str, ...]:
    """The parties as JSON, in pieces between which the transfer's own owner stands."""
    pieces, text = [], "{"
    for number, seat in enumerate(seats):
        role, system, book = (_encode(word).decode() for word in seat[:3])
        text += f"{',' if number else ''}{role}:[{system},{book},"
        if seat.owner is None:
            pieces.append(text)
            text = "]"
        else:
            text += f"{seat.owner}]"
    return (*pieces, text + "}")


def attempt_columns(moves: Moves) -> Columns:
    kept = [(t.id, s) for t, s in zip(moves.transfers, moves.steps, strict=True) if s.attempt]
    return {
        "attempt_ids": uuids([id_ for id_, _ in kept]),
        "attempt_slots": numbers(step.after.retries % ATTEMPTS_KEPT for _, step in kept),
        "attempt_versions": numbers(step.start for _, step in kept),
        "attempt_retries": numbers(step.after.retries for _, step in kept),
        "attempt_reasons": texts([step.attempt for _, step in kept]),
    }


def creation_columns(moves: Moves) -> Columns:
    created = moves.transfers
    expiries = [expiry or NEVER for expiry in moves.expiries] if any(moves.expiries) else ()
    small, large = amounts([t.amount for t in created])
    return {
        "owners": bigints([t.owner for t in created]),
        "parties": strings(_party_texts(created)),
        "amounts": small,
        "large_amounts": large,
        "parents": uuids([t.parent for t in created]),
        "traces": strings([t.trace for t in created]),
        "cids": strings([t.cid for t in created]),
        "lives": numbers([expiry.after_s for expiry in expiries]),
        "expiries": numbers([expiry.at_us for expiry in expiries]),
    }


def read_columns(transfers: Sequence[Transfer]) -> Columns:
    """Rows as they were read, to be compared with what they are."""
    kinds = [t.kind for t in transfers]
    return {
        "ids": uuids([t.id for t in transfers]),
        "versions": integers([kind.version for kind in kinds]),
        "attempts": integers([kind.attempts for kind in kinds]),
    }


def as_counted(
    transfer: Transfer, attempts: int | None, retries: int | None, paged: bool | None
) -> Transfer | None:
    """A row with what is counted by now, or None if it has moved."""
    if attempts is None:
        return None
    if attempts == transfer.attempts:
        return transfer
    return transfer.but(attempts=attempts, retries=retries, paged=paged)


def key_columns(keys: Sequence[Key]) -> Columns:
    return {
        "owners": bigints([key.owner for key in keys]),
        "keys": strings([key.text for key in keys]),
        "fingerprints": blobs([key.fingerprint for key in keys]),
        "ids": uuids([key.transfer_id for key in keys]),
    }


def table_columns(flows: Tables) -> Columns:
    return {"flows": texts(flows), "checksums": texts(flows.values())}
