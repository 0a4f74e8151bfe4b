"""Places in the source that have six or more lines of one shape: an idea that is written twice.

Lines of functions are compared with all names, texts and numbers made equal. Declarations,
brackets and arguments that are handed on do not count.
"""

import ast
import io
import keyword
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

LINES = 6
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
HANDED_ON = re.compile(
    r"\W*|(\*\*? )?n ,|s ,|0 ,|n = [n.s0\[\] ]+ ,?|s : [n.s0\[\]() ]+ ,?|else :|try :"
)


class Place(NamedTuple):
    path: str
    first: int
    last: int


def in_functions(source: str) -> set[int]:
    """The numbers of the lines that are in the body of a function, without its docstring."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            for statement in body:
                found |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return found


def shapes(source: str) -> list[tuple[int, str]]:
    """The lines that count, with their numbers."""
    lines: dict[int, list[str]] = defaultdict(list)
    counted = in_functions(source)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in SKIPPED or token.start[0] not in counted:
            continue
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            lines[token.start[0]].append("n")
        elif token.type == tokenize.STRING:
            lines[token.start[0]].append("s")
        elif token.type == tokenize.NUMBER:
            lines[token.start[0]].append("0")
        else:
            lines[token.start[0]].append(token.string)
    shaped = [(number, " ".join(parts)) for number, parts in sorted(lines.items())]
    return [(number, shape) for number, shape in shaped if not HANDED_ON.fullmatch(shape)]


def pairs(sources: dict[str, str]) -> Iterator[tuple[Place, Place]]:
    """Every two places that share a run of six or more such lines, the longest run of each."""
    lines = {path: shapes(source) for path, source in sources.items()}
    windows: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path, shaped in lines.items():
        for start in range(len(shaped) - LINES + 1):
            window = tuple(shape for _, shape in shaped[start : start + LINES])
            if len(set(window)) > LINES // 2:  # Else it is a list, one entry per line.
                windows[window].append((path, start))
    seen: set[tuple[str, int, str, int]] = set()
    for places in windows.values():
        for (one, i), (other, j) in combinations(places, 2):
            before = one, i - 1, other, j - 1
            overlaps = one == other and j - i < LINES
            if before in seen or overlaps:
                seen.add((one, i, other, j))
                continue
            seen.add((one, i, other, j))
            size = LINES
            while (
                i + size < len(lines[one])
                and j + size < len(lines[other])
                and lines[one][i + size][1] == lines[other][j + size][1]
            ):
                size += 1
            yield (
                Place(one, lines[one][i][0], lines[one][i + size - 1][0]),
                Place(other, lines[other][j][0], lines[other][j + size - 1][0]),
            )


def read(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for path in sorted(folder.rglob("*.py"))
    }


if __name__ == "__main__":
    for one, other in pairs(read(Path(__file__).parents[1] / "src" / "tidegate")):
        print(f"{one.path}:{one.first}-{one.last} ~ {other.path}:{other.first}-{other.last}")
