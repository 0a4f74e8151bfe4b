"""Between values and columns: batches as arrays on the way in, rows as transfers on the way out."""

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
from tidegate.core.transfer import AnswerForm, Expiry
from tidegate.store.written_rows import WrittenRows, in_order

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
    party_templates = party_templates_of(_PARTIES.decode(parties), owner)
    details = () if detail is None else details_of(_DETAIL.decode(detail))
    kind = kind_of(
        *(
            flow,
            state,
            lane,
            party_templates,
            asset_id,
            fee,
            version,
            attempts,
            retries,
            paged,
            undoes,
        ),
        *(details, space, error, expired),
    )
    own = (owner, amount, parent, cid, head, trace, created_us, updated_us, waited_s)
    return Transfer(kind, id_, *own)


def text(mapping: object) -> str | None:
    """JSON, or NULL for nothing: an empty object would cost its bytes in every row."""
    return _encode(mapping).decode() if mapping else None


class _Written(NamedTuple):
    """What the columns of a kind say. Kinds that differ in their parties only say the same."""

    start: int
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


_said_of = attrgetter(*_Written._fields[4:])


def entry_columns(batch: WrittenRows) -> Columns:
    """One row per answer, group by group: what a group has in common is named once."""
    pairs = [(mark, number) for mark in batch.marks for number in range(len(mark.hashes))]
    which, lines = numbered((mark.step.after.flow, mark.step.lines[n]) for mark, n in pairs)
    counts = [len(mark.hashes[n]) for mark, n in pairs]
    rows = batch.rows
    return {
        "history_ids": uuids([rows[p].id for mark, _ in pairs for p in mark.group.places]),
        "history_kinds": repeated(zip(which, counts, strict=True)),
        "evidences": optional_texts(
            [
                count if (evidences := mark.group.evidences[n]) is None else _as_texts(evidences)
                for (mark, n), count in zip(pairs, counts, strict=True)
            ]
        ),
        "history_hashes": blobs([hashed for mark, n in pairs for hashed in mark.hashes[n]]),
        **shared(_line_columns, lines),
    }


def _as_texts(evidences: Sequence[Evidence]) -> list[bytes | None]:
    return [_encode(kept) if kept else None for kept in evidences]


def _line_columns(lines: Sequence[tuple[str, AnswerForm]]) -> Columns:
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
        "helds": sparse(k.held for k in kinds),
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
        _Written(
            mark.step.start,
            mark.step.deadline_s,
            lease_s if mark.leased else mark.step.delay_s,
            mark.is_held,
            *_said_of(mark.kind),
        )
        for mark in batch.marks
    ]
    which, kinds = numbered(contents)
    rows = batch.rows
    if len(kinds) == 1:
        numbers_ = repeated([(1, len(rows))])
    else:
        places = [mark.group.places for mark in batch.marks]
        parts = [(p, [n] * len(p)) for p, n in zip(places, which, strict=True)]
        numbers_ = integers(in_order(parts, len(rows)))
    return {
        "lease_s": lease_s,
        "ids": uuids([t.id for t in rows]),
        "kinds": numbers_,
        "hashes": blobs([t.head_hash for t in rows]),
        **shared(_kind_columns, kinds),
    }


def party_columns(moves: Moves) -> Columns:
    """Parties change rarely; where they do not, nothing is written."""
    parties: list[str | None] = [None] * len(moves)
    for step, places, _ in moves.groups:
        if step.before is not None and step.before.party_templates != step.after.party_templates:
            for place in places:
                parties[place] = _party_text(
                    step.after.party_templates, moves.transfers[place].owner
                )
    return {"parties": strings(parties)}


def _party_texts(transfers: Sequence[Transfer]) -> list[str]:
    pieces = {kind: _party_pieces(kind.party_templates) for kind in {t.kind for t in transfers}}
    return [str(t.owner).join(pieces[t.kind]) for t in transfers]


def _party_text(party_templates: tuple[PartyTemplate, ...], owner: int) -> str:
    return str(owner).join(_party_pieces(party_templates))


@lru_cache(4096)
def _party_pieces(party_templates: tuple[PartyTemplate, ...]) -> tuple[str, ...]:
    """The parties as JSON, in pieces between which the transfer's own owner stands."""
    pieces, text = [], "{"
    for number, template in enumerate(party_templates):
        role, system, book = (_encode(word).decode() for word in template[:3])
        text += f"{',' if number else ''}{role}:[{system},{book},"
        if template.owner is None:
            pieces.append(text)
            text = "]"
        else:
            text += f"{template.owner}]"
    return (*pieces, text + "}")


def attempt_columns(moves: Moves) -> Columns:
    kept = [
        (moves.transfers[place].id, step)
        for step, places, _ in moves.groups
        if step.attempt
        for place in places
    ]
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
        "parents": optional_uuids([t.parent for t in created]),
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


def key_columns(keys: Sequence[RequestKey]) -> Columns:
    return {
        "owners": bigints([key.owner for key in keys]),
        "keys": strings([key.text for key in keys]),
        "fingerprints": blobs([key.fingerprint for key in keys]),
        "ids": uuids([key.transfer_id for key in keys]),
    }


def table_columns(flows: FlowChecksums) -> Columns:
    return {"flows": texts(flows), "checksums": texts(flows.values())}
