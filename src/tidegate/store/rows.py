"""Converts batches of moves to array parameters, and rows of the database to transfers."""

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from tidegate.core.answers import Evidence
from tidegate.core.kind import (
    Party,
    PartyTemplate,
    Transfer,
    TransferKind,
    details_of,
    kind_of,
    party_templates_of,
)
from tidegate.core.moves import Moves
from tidegate.core.ports import FlowChecksums, RequestKey
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
    optional_texts,
    optional_uuids,
    repeated,
    shared,
    sparse,
    strings,
    texts,
    uuids,
)
from tidegate.core.transfer import EntryForm, Expiry
from tidegate.store.written_rows import WrittenRows, in_order

ATTEMPTS_KEPT = 20
PROBES_KEPT = 100  # How many of the newest probe times of an unreachable lane are kept.
NEVER = Expiry()


# How each field of a transfer and of its kind is read. The id is the first, because a row without
# an id is no transfer.
READ_AS = {
    "id": "t.id",
    "owner": "t.owner",
    "flow": "t.flow",
    "state": "t.state",
    "lane": "t.lane",
    "party_templates": "t.parties::text",
    "asset_id": "t.asset_id",
    "amount": "t.amount",
    "fee": "t.fee",
    "version": "t.version",
    "attempts": "t.attempts",
    "retries": "t.retries",
    "paged": "t.paged",
    "undoes": "t.undoes",
    "parent": "t.parent",
    "details": "t.detail::text",
    "cid": "t.cid",
    "space": "coalesce(t.space, '')",
    "head_hash": "t.head_hash",
    "error": "t.error",
    "trace": "t.trace",
    "created_us": "(extract(epoch FROM t.created_at) * 1000000)::bigint",
    "updated_us": "(extract(epoch FROM t.updated_at) * 1000000)::bigint",
    "waited_s": "extract(epoch FROM now() - t.updated_at)::float8",
    "expired": "coalesce(t.deadline_at <= now(), false)",
}
TRANSFER_COLUMNS = ", ".join(READ_AS.values())
_KIND_FIELDS = TransferKind.__struct_fields__
_OWN_FIELDS = [field for field in Transfer.__struct_fields__ if field != "kind"]

_PARTIES = msgspec.json.Decoder(dict[str, Party])
_DETAIL = msgspec.json.Decoder(dict[str, str])
_encode = msgspec.json.encode


def transfer_from(row: Sequence[Any]) -> Transfer:
    fields = dict(zip(READ_AS, row, strict=True))
    parties, detail = fields["party_templates"], fields["details"]
    fields["party_templates"] = party_templates_of(_PARTIES.decode(parties), fields["owner"])
    fields["details"] = () if detail is None else details_of(_DETAIL.decode(detail))
    kind = kind_of(*[fields[field] for field in _KIND_FIELDS])
    return Transfer(kind, *[fields[field] for field in _OWN_FIELDS])


def text(mapping: object) -> str | None:
    """JSON, or None (NULL) if empty: an empty object would take space in every row."""
    return _encode(mapping).decode() if mapping else None


class _KindValues(NamedTuple):
    """The values that all rows of a kind share. Kinds that differ only in parties have the same."""

    start: int  # The version before the move.
    deadline_s: float | None
    delay_s: float
    held: bool  # Handed over inside the process.
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


_kind_fields = attrgetter(*_KindValues._fields[4:])


def entry_columns(batch: WrittenRows) -> Columns:
    """One row per answer, group by group. The values that a group shares are sent once."""
    pairs = [(written, n) for written in batch.groups for n in range(len(written.hashes))]
    indexes, lines = numbered((w.step.after.flow, w.step.entry_forms[n]) for w, n in pairs)
    counts = [len(written.hashes[n]) for written, n in pairs]
    rows = batch.rows
    return {
        "history_ids": uuids([rows[i].id for written, _ in pairs for i in written.group.indexes]),
        "history_kinds": repeated(zip(indexes, counts, strict=True)),
        "evidences": optional_texts(
            [
                count if (evidences := written.group.evidences[n]) is None else _as_texts(evidences)
                for (written, n), count in zip(pairs, counts, strict=True)
            ]
        ),
        "history_hashes": blobs([hashed for written, n in pairs for hashed in written.hashes[n]]),
        **shared(_line_columns, lines),
    }


def _as_texts(evidences: Sequence[Evidence]) -> list[bytes | None]:
    return [_encode(evidence) if evidence else None for evidence in evidences]


def _line_columns(lines: Sequence[tuple[str, EntryForm]]) -> Columns:
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


def _kind_columns(kinds: Sequence[_KindValues]) -> Columns:
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
        "helds": sparse(k.held for k in kinds),
        # Only for transfers that are created:
        "flows": names(k.flow for k in kinds),
        "assets": numbers(k.asset_id for k in kinds),
        "spaces": names(k.space or None for k in kinds),
        "fees": sparse(k.fee for k in kinds),
        "details": texts([text(dict(k.details)) for k in kinds]),
    }
    return encoded(columns)


def state_columns(batch: WrittenRows, lease_s: float) -> Columns:
    """The columns that creations and moves share."""
    values = [
        _KindValues(
            written.step.start,
            written.step.deadline_s,
            lease_s if written.leased else written.step.delay_s,
            written.is_held,
            *_kind_fields(written.kind),
        )
        for written in batch.groups
    ]
    kind_numbers, kinds = numbered(values)
    rows = batch.rows
    if len(kinds) == 1:
        row_kinds = repeated([(1, len(rows))])
    else:
        indexes = [written.group.indexes for written in batch.groups]
        parts = [(i, [n] * len(i)) for i, n in zip(indexes, kind_numbers, strict=True)]
        row_kinds = integers(in_order(parts, len(rows)))
    return {
        "lease_s": lease_s,
        "ids": uuids([t.id for t in rows]),
        "kinds": row_kinds,
        "hashes": blobs([t.head_hash for t in rows]),
        **shared(_kind_columns, kinds),
    }


def party_columns(moves: Moves) -> Columns:
    """The parties of rows whose parties change, which is rare; NULL for the others."""
    parties: list[str | None] = [None] * len(moves)
    for step, indexes, _ in moves.groups:
        if step.before is not None and step.before.party_templates != step.after.party_templates:
            for index in indexes:
                parties[index] = _party_text(
                    step.after.party_templates, moves.transfers[index].owner
                )
    return {"parties": strings(parties)}


def _party_texts(transfers: Sequence[Transfer]) -> list[str]:
    pieces = {kind: _party_pieces(kind.party_templates) for kind in {t.kind for t in transfers}}
    return [str(t.owner).join(pieces[t.kind]) for t in transfers]


def _party_text(party_templates: tuple[PartyTemplate, ...], owner: int) -> str:
    return str(owner).join(_party_pieces(party_templates))


@lru_cache(4096)
def _party_pieces(party_templates: tuple[PartyTemplate, ...]) -> tuple[str, ...]:
    """The parties as JSON, cut into pieces where the transfer's own owner is inserted."""
    pieces, text = [], "{"
    for number, template in enumerate(party_templates):
        role, system, book = (_encode(name).decode() for name in template[:3])
        text += f"{',' if number else ''}{role}:[{system},{book},"
        if template.owner is None:
            pieces.append(text)
            text = "]"
        else:
            text += f"{template.owner}]"
    return (*pieces, text + "}")


def attempt_columns(moves: Moves) -> Columns:
    attempted = [
        (moves.transfers[index].id, step)
        for step, indexes, _ in moves.groups
        if step.attempt
        for index in indexes
    ]
    return {
        "attempt_ids": uuids([id_ for id_, _ in attempted]),
        "attempt_slots": numbers(step.after.retries % ATTEMPTS_KEPT for _, step in attempted),
        "attempt_versions": numbers(step.start for _, step in attempted),
        "attempt_retries": numbers(step.after.retries for _, step in attempted),
        "attempt_reasons": texts([step.attempt for _, step in attempted]),
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
        "parents": optional_uuids([t.parent for t in created]),
        "traces": strings([t.trace for t in created]),
        "cids": strings([t.cid for t in created]),
        "lives": numbers([expiry.after_s for expiry in expiries]),
        "expiries": numbers([expiry.at_us for expiry in expiries]),
    }


def read_columns(transfers: Sequence[Transfer]) -> Columns:
    """Rows as the caller read them, to be compared with the current rows."""
    kinds = [t.kind for t in transfers]
    return {
        "ids": uuids([t.id for t in transfers]),
        "versions": integers([kind.version for kind in kinds]),
        "attempts": integers([kind.attempts for kind in kinds]),
    }


def as_counted(
    transfer: Transfer, attempts: int | None, retries: int | None, paged: bool | None
) -> Transfer | None:
    """The transfer with its current counters, or None if it has moved."""
    if attempts is None:
        return None
    if attempts == transfer.attempts:
        return transfer
    return transfer.replace(attempts=attempts, retries=retries, paged=paged)


def key_columns(keys: Sequence[RequestKey]) -> Columns:
    return {
        "owners": bigints([key.owner for key in keys]),
        "keys": strings([key.text for key in keys]),
        "fingerprints": blobs([key.fingerprint for key in keys]),
        "ids": uuids([key.transfer_id for key in keys]),
    }


def table_columns(flows: FlowChecksums) -> Columns:
    return {"flows": texts(flows), "checksums": texts(flows.values())}
