"""Statements by name, out of the .sql files of the package, and batches as their arrays.

A batch goes to the database as one array per column, written here as PostgreSQL reads it. A
general client library looks at every element to find out what it is; we know. Ids and hashes go as
bytes, which are half as long as their text and need no reading.
"""

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from uuid import UUID

MAX_NAMES = 10_000
_BETWEEN = "\x1f"  # Hardly in any text; one that has it is quoted by itself.

# A header names a statement and says why it is safe: «-- claim: lease what is due».
_HEADER = re.compile(r"^-- ([a-z_]+): ", re.MULTILINE)
# Where a statement says {name}, the statement of that name in the same file is a part of it.
_PART = re.compile(r"\{([a-z_]+)\}")


def load(package: str, filename: str) -> Mapping[str, str]:
    return parse(files(package).joinpath(filename).read_text(encoding="utf-8"))


def parse(text: str) -> Mapping[str, str]:
    """Split a file at its headers. Comments stay out of what the server has to parse."""
    parts = _HEADER.split(text)[1:]
    bare = {name: _bare(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    empty = [name for name, statement in bare.items() if not statement]
    assert not empty, f"no statement follows {empty}: is it a line of a comment?"
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
    """Numbers of which most are zero, or false: these are NULL to the statement."""
    return _column([str(v) if v else "NULL" for v in values])


class Binary(bytes):
    """An array as PostgreSQL sends it itself."""


class EncodedText(bytes):
    """An array as text, encoded before: what many batches have in common is kept in this form."""


def encoded(columns: Mapping[str, str]) -> dict[str, object]:
    return {name: EncodedText(text.encode()) for name, text in columns.items()}


_UUID, _BYTEA = 2950, 17  # PostgreSQL's numbers of these types.


def uuids(values: Iterable[UUID | None]) -> Binary:
    return _array(_UUID, [None if v is None else v.int.to_bytes(16, "big") for v in values])


def blobs(values: Iterable[bytes]) -> Binary:
    return _array(_BYTEA, list(values))


def _array(oid: int, elements: Sequence[bytes | None]) -> Binary:
    """A column without a value is sent empty, as in text."""
    empty = elements.count(None)
    if empty == len(elements):
        return Binary(struct.pack(">iiI", 0, 0, oid))
    head = struct.pack(">iiIii", 1, int(empty > 0), oid, len(elements), 1)
    lengths = set() if empty else set(map(len, elements))  # type: ignore[arg-type]
    if len(lengths) == 1:
        length = struct.pack(">i", *lengths)
        return Binary(head + length + length.join(elements))  # type: ignore[arg-type]
    sized = [
        b"\xff\xff\xff\xff" if each is None else struct.pack(">i", len(each)) + each
        for each in elements
    ]
    return Binary(head + b"".join(sized))


def texts(values: Iterable[str | None]) -> str:
    column = list(values)
    whole = [text for text in column if text is not None]
    joined = _BETWEEN.join(whole)
    if len(whole) < len(column) or joined.count(_BETWEEN) >= len(whole):
        return _column(["NULL" if text is None else _quoted(text) for text in column])
    # All at once: to look at each of a thousand costs more than to copy them twice.
    return "{" + _quoted(joined).replace(_BETWEEN, '","') + "}"


def names(values: Iterable[str | None]) -> str:
    """Texts of which there are few: states, verbs, systems, reasons. Each is quoted once."""
    return _column([_NAMES[v] for v in values])


def _column(elements: list[str]) -> str:
    """A column without a value is sent empty: `unnest` fills it up with NULL."""
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
