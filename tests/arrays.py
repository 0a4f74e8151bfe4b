"""Lets psycopg's own cursors send Tidegate's encoded arrays, by converting them to text."""

from psycopg import adapters
from psycopg.adapt import Dumper

from tidegate.core.sql import Binary, EncodedText

# The type ids of PostgreSQL.
BYTES, BIGINTS, INTEGERS, TEXTS, UUIDS = 17, 20, 23, 25, 2950


class AsText(Dumper):
    def dump(self, obj: Binary) -> bytes:
        type_ = int.from_bytes(obj[8:12], "big")
        texts = ["NULL" if item is None else as_text(type_, item) for item in elements(obj)]
        return ("{" + ",".join(texts) + "}").encode()


def as_text(type_: int, element: bytes) -> str:
    if type_ in (BIGINTS, INTEGERS):
        return str(int.from_bytes(element, "big", signed=True))
    if type_ == TEXTS:
        escaped = element.decode().replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    assert type_ in (BYTES, UUIDS), f"a type without a text: {type_}"
    return f'"{element.hex()}"' if type_ == UUIDS else f'"\\\\x{element.hex()}"'


class AsItIs(Dumper):
    def dump(self, obj: EncodedText) -> bytes:
        return bytes(obj)


def elements(array: Binary) -> list[bytes | None]:
    found: list[bytes | None] = []
    rest = array[20:]
    while rest:
        length = int.from_bytes(rest[:4], "big", signed=True)
        found.append(None if length < 0 else rest[4 : 4 + length])
        rest = rest[4 + max(length, 0) :]
    return found


def send_arrays_as_text() -> None:
    adapters.register_dumper(Binary, AsText)
    adapters.register_dumper(EncodedText, AsItIs)
