"""Lets psycopg's own cursors send what Tidegate sends through its pipe: arrays as bytes."""

from psycopg import adapters
from psycopg.adapt import Dumper

from tidegate.core.sql import Binary, EncodedText

UUIDS = 2950  # PostgreSQL's number of the type.


class AsText(Dumper):
    def dump(self, obj: Binary) -> bytes:
        mark = "" if int.from_bytes(obj[8:12], "big") == UUIDS else "\\\\x"
        texts = ["NULL" if each is None else f'"{mark}{each.hex()}"' for each in elements(obj)]
        return ("{" + ",".join(texts) + "}").encode()


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
