"""Statements by name, out of the .sql files that ship with the package."""

import re
from collections.abc import Mapping
from importlib.resources import files

# A header names a statement and says why it is safe: «-- claim: lease what is due».
_HEADER = re.compile(r"^-- ([a-z_]+): ", re.MULTILINE)


def load(package: str, filename: str) -> Mapping[str, str]:
    return parse(files(package).joinpath(filename).read_text(encoding="utf-8"))


def parse(text: str) -> Mapping[str, str]:
    """Split a file at its headers. Comments stay out of what the server has to parse."""
    parts = _HEADER.split(text)[1:]
    return {name: _bare(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _bare(body: str) -> str:
    lines = [re.sub(r"\s*--.*$", "", line) for line in body.splitlines()[1:]]
    return "\n".join(line for line in lines if line.strip()).rstrip().removesuffix(";")
