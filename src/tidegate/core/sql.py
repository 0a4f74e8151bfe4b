"""Named statements from the .sql files of the package, and the arrays that carry batches.

A batch is sent as one array per column. The arrays are encoded here, because a general client
library inspects every element to find its type, and our types are known. Columns with a value per
row use PostgreSQL's binary format, which the server need not parse. Values that many rows share
are sent once, as short arrays of text, and each row contains an index into them.
"""

import re
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, TypeAlias
from uuid import UUID

MAX_NAMES = 10_000
_SEPARATOR = "\x1f"  # Rare in texts. Texts with it are quoted one by one.

# A header names a statement and explains it: "-- claim: lease what is due".
_HEADER = re.compile(r"^-- ([a-z_]+): ", re.MULTILINE)
# {name} in a statement is replaced by the statement of that name in the same file.
_PART = re.compile(r"\{([a-z_]+)\}")


def load(package: str, filename: str) -> Mapping[str, str]:
    return parse(files(package).joinpath(filename).read_text(encoding="utf-8"))


def parse(text: str) -> Mapping[str, str]:
    """Split a file at its headers. Comments are removed, so that the server need not parse them."""
    parts = _HEADER.split(text)[1:]
    bare = {name: _bare(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    empty = [name for name, statement in bare.items() if not statement]
    assert not empty, f"no statement follows the header {empty}: is it a line of a comment?"
    return {
        name: _PART.sub(lambda part: bare.get(part[1], part[0]), text)
        for name, text in bare.items()
    }


def _bare(body: str) -> str:
    lines = [re.sub(r"\s*--.*$", "", line) for line in body.splitlines()[1:]]
    return "\n".join(line for line in lines if line.strip()).rstrip().removesuffix(";")


def numbers(values: Iterable[int | float | bool | None]) -> str:
    column = list(values)
    if None in column:
        return _column(["NULL" if v is None else str(v) for v in column])
    return "{" + ",".join(map(str, column)) + "}"


def sparse(values: Iterable[int | float | bool]) -> str:
    """Numbers of which most are zero or false. These are sent as NULL."""
    return _column([str(v) if v else "NULL" for v in values])


class Binary(bytes):
    """An array in PostgreSQL's binary format."""


class EncodedText(bytes):
    """An array as encoded text. Values that many batches share are cached in this form."""


def encoded(columns: Mapping[str, str]) -> dict[str, object]:
    return {name: EncodedText(text.encode()) for name, text in columns.items()}


# PostgreSQL's object ids of these types.
_UUID, _BYTEA, _INT4, _INT8, _TEXT = 2950, 17, 23, 20, 25
_MIN_INT8, _MAX_INT8 = -(2**63), 2**63 - 1
_NULL = b"\xff\xff\xff\xff"


def integers(values: Iterable[int]) -> Binary:
    """Small numbers, such as indexes and versions. There are few, so their encoding is cached."""
    column = list(values)
    return Binary(_head(_INT4, len(column)) + b"".join([_INTEGERS[v] for v in column]))


class _Integers(dict[int, bytes]):
    def __missing__(self, value: int) -> bytes:
        packed = struct.pack(">ii", 4, value)
        if len(self) < MAX_NAMES:
            self[value] = packed
        return packed


_INTEGERS = _Integers()
_BLOCK = 64  # Numbers that are packed by one call, each with its length before it.
_pack_block = struct.Struct(">" + "iq" * _BLOCK).pack


def bigints(values: Iterable[int]) -> Binary:
    column = list(values)
    blocks = len(column) // _BLOCK * _BLOCK
    cells = [8] * (2 * _BLOCK)
    packed = [_head(_INT8, len(column))]
    for start in range(0, blocks, _BLOCK):
        cells[1::2] = column[start : start + _BLOCK]
        packed.append(_pack_block(*cells))
    packed += [b"\0\0\0\x08" + v.to_bytes(8, "big", signed=True) for v in column[blocks:]]
    return Binary(b"".join(packed))


def amounts(values: Sequence[int]) -> tuple[Binary, str]:
    """Amounts in two columns: one for those that fit 64 bits, and one, as text, for the others.

    In each row one column has the value and the other NULL.
    """
    if not values or (min(values) >= _MIN_INT8 and max(values) <= _MAX_INT8):
        return bigints(values), "{}"
    fits = [_MIN_INT8 <= v <= _MAX_INT8 for v in values]
    packed = [
        struct.pack(">iq", 8, v) if small else _NULL for v, small in zip(values, fits, strict=True)
    ]
    small = Binary(_head(_INT8, len(values), nulls=True) + b"".join(packed))
    return small, _column(
        ["NULL" if small else str(v) for v, small in zip(values, fits, strict=True)]
    )


def strings(values: Iterable[str | None]) -> Binary:
    """Texts in binary form. The server refuses a text that it cannot store."""
    column = list(values)
    empty = column.count(None)
    if empty == len(column):
        return Binary(_head(_TEXT, 0))
    if not empty:
        # The lengths are added as characters, so that one call encodes the whole column.
        joined = "".join(column)  # type: ignore[arg-type]
        if joined.isascii():
            sized = [_LENGTHS[len(v)] + v for v in column]  # type: ignore[arg-type, operator]
            return Binary(_head(_TEXT, len(column)) + "".join(sized).encode("latin-1"))
    raw = [None if v is None else v.encode() for v in column]
    sized_raw = [_NULL if v is None else struct.pack(">i", len(v)) + v for v in raw]
    return Binary(_head(_TEXT, len(column), nulls=empty > 0) + b"".join(sized_raw))


class _Lengths(dict[int, str]):
    def __missing__(self, length: int) -> str:
        packed = struct.pack(">i", length).decode("latin-1")
        if len(self) < MAX_NAMES:
            self[length] = packed
        return packed


_LENGTHS = _Lengths()


def _head(oid: int, count: int, *, nulls: bool = False) -> bytes:
    if not count:
        return struct.pack(">iiI", 0, 0, oid)
    return struct.pack(">iiIii", 1, int(nulls), oid, count, 1)


def repeated(runs: Iterable[tuple[int, int]]) -> Binary:
    """Integers in runs, as (value, count)."""
    runs = list(runs)
    total = sum(count for _, count in runs)
    return Binary(_head(_INT4, total) + b"".join([_INTEGERS[v] * count for v, count in runs]))


def optional_texts(parts: Sequence[int | Sequence[bytes | None]]) -> Binary:
    """Encoded texts in parts. A part that is a number means so many rows of NULL."""
    count = sum(part if isinstance(part, int) else len(part) for part in parts)
    if all(isinstance(part, int) for part in parts):
        return Binary(_head(_TEXT, 0))
    pieces: list[bytes] = []
    for part in parts:
        if isinstance(part, int):
            pieces.append(_NULL * part)
        else:
            pieces += [_NULL if t is None else len(t).to_bytes(4, "big") + t for t in part]
    return Binary(_head(_TEXT, count, nulls=True) + b"".join(pieces))


def uuids(values: Iterable[UUID]) -> Binary:
    packed = [v.int.to_bytes(16, "big") for v in values]
    length = b"\0\0\0\x10" if packed else b""
    return Binary(_head(_UUID, len(packed)) + length + length.join(packed))


def optional_uuids(values: Iterable[UUID | None]) -> Binary:
    return _array(_UUID, [None if v is None else v.int.to_bytes(16, "big") for v in values])


def blobs(values: Iterable[bytes]) -> Binary:
    return _array(_BYTEA, list(values))


def _array(oid: int, elements: Sequence[bytes | None]) -> Binary:
    """Encode a column. If all its values are NULL, it is sent empty, as `_column` does."""
    empty = elements.count(None)
    if empty == len(elements):
        return Binary(_head(oid, 0))
    head = _head(oid, len(elements), nulls=empty > 0)
    lengths = set() if empty else set(map(len, elements))  # type: ignore[arg-type]
    if len(lengths) == 1:
        length = struct.pack(">i", *lengths)
        return Binary(head + length + length.join(elements))  # type: ignore[arg-type]
    sized = [_NULL if v is None else struct.pack(">i", len(v)) + v for v in elements]
    return Binary(head + b"".join(sized))


def texts(values: Iterable[str | None]) -> str:
    column = list(values)
    present = [text for text in column if text is not None]
    joined = _SEPARATOR.join(present)
    if len(present) < len(column) or joined.count(_SEPARATOR) >= len(present):
        return _column(["NULL" if text is None else _quoted(text) for text in column])
    # Quote all texts at once: copying them twice is cheaper than checking each of a thousand.
    return "{" + _quoted(joined).replace(_SEPARATOR, '","') + "}"


def names(values: Iterable[str | None]) -> str:
    """Texts with few distinct values: states, verbs, systems, reasons. Each is quoted once."""
    return _column([_NAMES[v] for v in values])


Columns: TypeAlias = dict[str, object]

# The columns of a batch with more groups than this are not cached: there are too many variants.
MAX_SHARED_GROUPS = 8


def numbered(keys: Iterable[Hashable]) -> tuple[list[int], list[Any]]:
    """Number the distinct keys from 1. Return the number of each row, and the distinct keys."""
    numbers_by_key: dict[Hashable, int] = {}
    row_numbers = [numbers_by_key.setdefault(key, len(numbers_by_key) + 1) for key in keys]
    return row_numbers, list(numbers_by_key)


def shared(columns: Callable[..., Columns], groups: Sequence[Any]) -> Columns:
    """The columns of the groups of a batch. Most batches have the same few groups: cache them."""
    if len(groups) <= MAX_SHARED_GROUPS:
        return _cached_columns(columns, tuple(groups))
    return columns(groups)


@lru_cache(1024)
def _cached_columns(columns: Callable[..., Columns], groups: tuple[Any, ...]) -> Columns:
    return columns(groups)


def _column(elements: list[str]) -> str:
    """Encode a column. If all its values are NULL, it is sent empty: `unnest` adds the NULLs."""
    if elements.count("NULL") == len(elements):
        return "{}"
    return "{" + ",".join(elements) + "}"


class _Names(dict[str | None, str]):
    def __missing__(self, text: str | None) -> str:
        quoted = "NULL" if text is None else _quoted(text)
        if len(self) < MAX_NAMES:
            self[text] = quoted
        return quoted


_NAMES = _Names()


def _quoted(text: str) -> str:
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
