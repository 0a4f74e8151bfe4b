"""Between values and columns: batches as arrays on the way in, rows as transfers on the way out."""

from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from tidegate.core.ports import Birth
from tidegate.core.sql import blobs, names, numbers, sparse, texts, uuids
from tidegate.core.transfer import NO_DETAIL, Entry, Move, Party, Transfer, chained

ATTEMPTS_KEPT = 20

# In the order of the fields of Transfer.
TRANSFER_COLUMNS = """t.id, t.owner, t.flow, t.state, t.lane, t.parties::text, t.asset_id, t.amount,
       t.version, t.attempts, t.retries, t.paged, t.undoes, t.parent, t.detail::text, t.cid,
       t.head_hash, t.error, t.trace,
       (extract(epoch FROM t.created_at) * 1000000)::bigint,
       (extract(epoch FROM t.updated_at) * 1000000)::bigint,
       extract(epoch FROM now() - t.updated_at)::float8,
       coalesce(t.deadline_at <= now(), false)"""

_PARTIES = msgspec.json.Decoder(dict[str, Party])
_DETAIL = msgspec.json.Decoder(dict[str, str])
_encode = msgspec.json.encode

PARTIES_AT, DETAIL_AT = 5, 14


def transfer_from(row: Sequence[Any]) -> Transfer:
    columns = list(row)
    columns[PARTIES_AT] = _PARTIES.decode(columns[PARTIES_AT])
    detail = columns[DETAIL_AT]
    columns[DETAIL_AT] = NO_DETAIL if detail is None else _DETAIL.decode(detail)
    return Transfer(*columns)


def written(move: Move, leased: bool, at_us: int, created_us: int) -> tuple[Transfer, list[bytes]]:
    """The transfer as the move leaves it in the store, and the hash of each of its answers."""
    head, hashes = move.before.head_hash, []
    for entry in move.entries:
        head = chained(head, move.before, entry, at_us)
        hashes.append(head)
    after = msgspec.structs.replace(
        move.after,
        # A leased row is about to be asked about without a claim that would count the attempt.
        attempts=move.after.attempts + leased,
        head_hash=head,
        created_us=created_us,
        updated_us=at_us if move.entries else move.after.updated_us or at_us,
    )
    return after, hashes


def text(mapping: object) -> str | None:
    """JSON, or NULL for nothing: an empty object would cost its bytes in every row."""
    return _encode(mapping).decode() if mapping else None


# What most rows of a batch have in common with many others of it.
_state_of = attrgetter(
    "flow",
    "asset_id",
    "state",
    "lane",
    "version",
    "attempts",
    "retries",
    "paged",
    "undoes",
    "error",
)
_answer_of = attrgetter("version", "path", "verb", "answer", "reason", "actor")


def _kinds(marks: Iterable[Hashable]) -> tuple[list[int], list[int]]:
    """Of each row the number of its kind, and of each kind the place of a row that is of it.

    A batch differs in little but ids and amounts: all else is said once, and pointed at.
    """
    kinds: dict[Hashable, int] = {}
    which = [kinds.setdefault(mark, len(kinds) + 1) for mark in marks]
    places = {kind: place for place, kind in enumerate(which)}
    return which, [places[kind] for kind in kinds.values()]


def entry_columns(moves: Iterable[tuple[Move, list[bytes]]]) -> dict[str, object]:
    rows: list[tuple[Transfer, Entry, bytes]] = [
        (move.before, entry, hashed)
        for move, hashes in moves
        for entry, hashed in zip(move.entries, hashes, strict=True)
    ]
    which, places = _kinds((transfer.flow, _answer_of(entry)) for transfer, entry, _ in rows)
    kinds = [rows[place][1] for place in places]
    return {
        "history_ids": uuids(transfer.id for transfer, _, _ in rows),
        "history_kinds": numbers(which),
        "evidences": texts(text(entry.evidence) for _, entry, _ in rows),
        "history_hashes": blobs(hashed for _, _, hashed in rows),
        "history_flows": names(rows[place][0].flow for place in places),
        "history_versions": numbers(entry.version for entry in kinds),
        "froms": names(entry.path[0] for entry in kinds),
        "waypoints": names(" ".join(entry.path[1:-1]) for entry in kinds),
        "tos": names(entry.path[-1] for entry in kinds),
        "verbs": names(entry.verb for entry in kinds),
        "answers": names(entry.answer for entry in kinds),
        "reasons": names(entry.reason for entry in kinds),
        "actors": names(entry.actor for entry in kinds),
    }


def state_columns(
    moves: Sequence[Move], rows: Sequence[Transfer], leased: Sequence[bool], lease_s: float
) -> dict[str, object]:
    """The columns that a birth and a move share."""
    which, places = _kinds(
        (move.before.version, move.deadline_s, _state_of(row))
        for move, row in zip(moves, rows, strict=True)
    )
    kinds = [rows[place] for place in places]
    return {
        "ids": uuids(t.id for t in rows),
        "kinds": numbers(which),
        "delays": sparse(
            lease_s if held else move.delay_s for move, held in zip(moves, leased, strict=True)
        ),
        "hashes": blobs(t.head_hash for t in rows),
        "states": names(t.state for t in kinds),
        "lanes": names(t.lane for t in kinds),
        "new_versions": numbers(t.version for t in kinds),
        "attempts": sparse(t.attempts for t in kinds),
        "retries": sparse(t.retries for t in kinds),
        "pageds": sparse(t.paged for t in kinds),
        "undoes": numbers(t.undoes for t in kinds),
        "errors": names(t.error for t in kinds),
        "deadlines": numbers(moves[place].deadline_s for place in places),
        "versions": numbers(moves[place].before.version for place in places),
        "flows": names(t.flow for t in kinds),
        "assets": numbers(t.asset_id for t in kinds),
    }


def party_columns(moves: Sequence[Move]) -> dict[str, object]:
    """Parties change rarely; where they do not, nothing is written."""
    changed = (m.after.parties if m.after.parties != m.before.parties else None for m in moves)
    return {"parties": texts(text(parties) for parties in changed)}


def attempt_columns(moves: Sequence[Move]) -> dict[str, object]:
    kept = [m for m in moves if m.attempt]
    return {
        "attempt_ids": uuids(m.before.id for m in kept),
        "attempt_slots": numbers(m.after.retries % ATTEMPTS_KEPT for m in kept),
        "attempt_versions": numbers(m.before.version for m in kept),
        "attempt_retries": numbers(m.after.retries for m in kept),
        "attempt_reasons": texts(m.attempt for m in kept),
    }


def birth_columns(births: Sequence[Birth]) -> dict[str, object]:
    newborn = [b.move.after for b in births]
    return {
        "owners": numbers(t.owner for t in newborn),
        "parties": texts(_encode(t.parties).decode() for t in newborn),
        "amounts": numbers(t.amount for t in newborn),
        "parents": uuids(t.parent for t in newborn),
        "details": texts(text(t.detail) for t in newborn),
        "traces": texts(t.trace for t in newborn),
        "cids": texts(t.cid for t in newborn),
        "keys": texts(b.cid for b in births),
        "fingerprints": blobs(b.fingerprint for b in births),
        "lives": numbers(b.lives_s for b in births),
    }
