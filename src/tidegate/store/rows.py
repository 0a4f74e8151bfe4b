"""Between values and columns: batches as arrays on the way in, rows as transfers on the way out."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from tidegate.core.ports import Key, Tables
from tidegate.core.sql import blobs, encoded, names, numbers, sparse, texts, uuids
from tidegate.core.transfer import (
    Expiry,
    Form,
    Kind,
    Line,
    Moves,
    Party,
    Step,
    Transfer,
    details_of,
    hashed_form,
    kind_of,
    link,
    seats_of,
)

ATTEMPTS_KEPT = 20
PROBES_KEPT = 100  # Of an unreachable lane: the times of the newest.
NEVER = Expiry()
FEW = 8  # Kinds of a batch: what more of them say is not kept, it would be too much.

Columns: TypeAlias = dict[str, object]

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


def written(
    moves: Moves, leased: Sequence[bool], at_us: int
) -> tuple[list[Transfer], list[list[bytes]]]:
    """The transfers as the moves leave them in the store, and the hash of each of their answers."""
    rows, chains = [], []
    columns = moves.transfers, moves.steps, moves.evidences, leased
    for t, step, evidence, held in zip(*columns, strict=True):
        head, hashes = t.head_hash, []
        for form, kept in zip(_forms(step), evidence, strict=True):
            head = link(head, form, t.id, kept, at_us)
            hashes.append(head)
        chains.append(hashes)
        kind = _leased(step.after) if held else step.after
        answered = bool(hashes)
        times = (t.created_us or at_us, at_us if answered else t.updated_us or at_us)
        waited_s = 0.0 if answered else t.waited_s
        own = (t.owner, t.amount, t.parent, t.cid, head, t.trace)
        rows.append(Transfer(kind, t.id, *own, *times, waited_s))
    return rows, chains


def text(mapping: object) -> str | None:
    """JSON, or NULL for nothing: an empty object would cost its bytes in every row."""
    return _encode(mapping).decode() if mapping else None


def _numbered(marks: Iterable[Hashable]) -> tuple[list[int], list[Any]]:
    """Of each row the number of its mark, and the marks in their order.

    A batch differs in little but ids and amounts: all else is said once, and pointed at.
    """
    found: dict[Hashable, int] = {}
    which = [found.setdefault(mark, len(found) + 1) for mark in marks]
    return which, list(found)


class _Written(NamedTuple):
    """What the columns of a kind say. Kinds that differ in their parties only say the same."""

    start: int
    deadline_s: float | None
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


_said_of = attrgetter(*_Written._fields[2:])


def entry_columns(moves: Moves, chains: Sequence[Sequence[bytes]]) -> dict[str, object]:
    steps, evidences = moves.steps, moves.evidences
    marks = [(step.after.flow, line) for step in steps for line in step.lines]
    which, lines = _numbered(marks)
    pairs = zip(moves.transfers, steps, strict=True)
    return {
        "history_ids": uuids([t.id for t, step in pairs for _ in step.lines]),
        "history_kinds": numbers(which),
        "evidences": texts([text(kept) for row in evidences for kept in row]),
        "history_hashes": blobs([hashed for hashes in chains for hashed in hashes]),
        **_shared(_line_columns, lines),
    }


@lru_cache(1024)
def _kept(columns: Callable[..., Columns], said: tuple[Any, ...]) -> Columns:
    """Most batches have few kinds and few lines, and the next one has the same."""
    return columns(said)


def _shared(columns: Callable[..., Columns], said: Sequence[Any]) -> Columns:
    return _kept(columns, tuple(said)) if len(said) <= FEW else columns(said)


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
        # Of those that are created:
        "flows": names(k.flow for k in kinds),
        "assets": numbers(k.asset_id for k in kinds),
        "spaces": names(k.space or None for k in kinds),
        "fees": sparse(k.fee for k in kinds),
        "details": texts([text(dict(k.details)) for k in kinds]),
    }
    return encoded(columns)


def state_columns(
    moves: Moves, rows: Sequence[Transfer], leased: Sequence[bool], lease_s: float
) -> dict[str, object]:
    """The columns that a creation and a move share."""
    by_object, marks = _numbered(zip(moves.steps, [row.kind for row in rows], strict=True))
    contents = [_Written(s.start, s.deadline_s, *_said_of(k)) for s, k in marks]
    merged, kinds = _numbered(contents)
    which = by_object if len(kinds) == len(marks) else [merged[n - 1] for n in by_object]
    delays = [
        lease_s if held else step.delay_s for step, held in zip(moves.steps, leased, strict=True)
    ]
    return {
        "ids": uuids([t.id for t in rows]),
        "kinds": numbers(which),
        "delays": sparse(delays),
        "hashes": blobs([t.head_hash for t in rows]),
        **_shared(_kind_columns, kinds),
    }


def party_columns(moves: Moves) -> dict[str, object]:
    """Parties change rarely; where they do not, nothing is written."""
    changed = [step.before and step.before.seats != step.after.seats for step in moves.steps]
    parties = [text(moves.now(r).parties) if other else None for r, other in enumerate(changed)]
    return {"parties": texts(parties)}


def attempt_columns(moves: Moves) -> dict[str, object]:
    kept = [(t.id, s) for t, s in zip(moves.transfers, moves.steps, strict=True) if s.attempt]
    return {
        "attempt_ids": uuids([id_ for id_, _ in kept]),
        "attempt_slots": numbers(step.after.retries % ATTEMPTS_KEPT for _, step in kept),
        "attempt_versions": numbers(step.start for _, step in kept),
        "attempt_retries": numbers(step.after.retries for _, step in kept),
        "attempt_reasons": texts([step.attempt for _, step in kept]),
    }


def creation_columns(moves: Moves) -> dict[str, object]:
    created = moves.transfers
    expiries = [expiry or NEVER for expiry in moves.expiries or [NEVER] * len(created)]
    return {
        "owners": numbers([t.owner for t in created]),
        "parties": texts([_encode(t.parties).decode() for t in created]),
        "amounts": numbers([t.amount for t in created]),
        "parents": uuids([t.parent for t in created]),
        "traces": texts([t.trace for t in created]),
        "cids": texts([t.cid for t in created]),
        "lives": numbers([expiry.after_s for expiry in expiries]),
        "expiries": numbers([expiry.at_us for expiry in expiries]),
    }


def key_columns(keys: Sequence[Key]) -> dict[str, object]:
    return {
        "owners": numbers(key.owner for key in keys),
        "keys": texts(key.text for key in keys),
        "fingerprints": blobs(key.fingerprint for key in keys),
        "ids": uuids(key.transfer_id for key in keys),
    }


def table_columns(flows: Tables) -> dict[str, object]:
    return {"flows": texts(flows), "checksums": texts(flows.values())}
