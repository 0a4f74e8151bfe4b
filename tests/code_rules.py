"""The style rules that a program can check: each finds the violations in a source file."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

MAX_FUNCTION_LINES = 50
MAX_MODULE_LINES = 400
MAX_COLUMNS = 100
MAX_PARAMETERS = 5

BANNED_WORDS = frozenset({"manager", "helper", "util", "handler", "process", "data", "info"})
# Banned names that are allowed, because another library requires them or they are exact, and why.
BORROWED_NAMES = {
    ("src/tidegate/service/connections.py", "data_received"): "asyncio calls it by this name",
    ("src/tidegate/core/wire.py", "process"): "of the operating system: each has its own mark",
    ("src/tidegate/systems/trading/client.py", "process"): "the same, on its way to core_positions",
}

CLOCK_MODULES = frozenset({"time", "datetime", "random", "secrets", "os", "uuid"})
CLOCKS = re.compile(
    r"time\.(time|monotonic|perf_counter|process_time|thread_time|clock_gettime)(_ns)?"
    r"|time\.(localtime|gmtime|ctime|asctime|strftime)"
    r"|(datetime\.)?(datetime|date)\.(now|utcnow|today)"
)
DICE = re.compile(
    r"random\.([a-z]\w*|SystemRandom)|secrets\.\w+|os\.(urandom|getrandom)|uuid\.uuid[1467]"
)

CORE_MAY_IMPORT = re.compile(
    r"tidegate\.(trading_core(\..*)?|core\.(ids|money|refusals|wire)(\..*)?)"
)


class Source(NamedTuple):
    """A source file with its path relative to the root."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return parsed(self.text)


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


Finding: TypeAlias = tuple[int, str]
Check: TypeAlias = Callable[[Source], Iterator[Finding]]


def nodes(source: Source, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    return (node for node in ast.walk(source.tree) if isinstance(node, kinds))


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(source, ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield node


def matches(source: Source, pattern: str, problem: str) -> Iterator[Finding]:
    for number, line in enumerate(source.text.splitlines(), 1):
        for found in re.finditer(pattern, line, re.IGNORECASE):
            yield number, f"{found[0]}: {problem}"


# Size.


def long_functions(source: Source) -> Iterator[Finding]:
    for node in functions(source):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            yield node.lineno, f"{node.name} has {length} lines"


def long_modules(source: Source) -> Iterator[Finding]:
    length = len(source.text.splitlines())
    if length > MAX_MODULE_LINES:
        yield length, f"{length} lines"


def wide_lines(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if len(line) > MAX_COLUMNS:
            yield number, f"{len(line)} columns"


def many_parameters(source: Source) -> Iterator[Finding]:
    for node in functions(source):
        names = [a.arg for a in arguments(node) if a.arg not in ("self", "cls")]
        if len(names) > MAX_PARAMETERS:
            yield node.lineno, f"{node.name} takes {len(names)}"


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


# Names.


def names(source: Source) -> Iterator[tuple[int, str]]:
    """Every name that the source defines, and the name of the file."""
    yield 1, Path(source.path).stem
    for node in ast.walk(source.tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield node.lineno, name
            case ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name


def words(name: str) -> list[str]:
    return [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)]


def banned_names(source: Source) -> Iterator[Finding]:
    for line, name in names(source):
        for word in BANNED_WORDS & set(words(name)):
            if (source.path, name) not in BORROWED_NAMES:
                yield line, f"{name}: the word {word!r} has no meaning"


def needless_dos(source: Source) -> Iterator[Finding]:
    return ((line, name) for line, name in names(source) if name.startswith("do_"))


# Clocks and dice.


def clocks_and_dice(source: Source) -> Iterator[Finding]:
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute():
                if is_clock_or_dice(ast.unparse(node)):
                    yield node.lineno, ast.unparse(node)
            case ast.ImportFrom(module=str(module)):
                for alias in node.names:
                    if is_clock_or_dice(f"{module}.{alias.name}"):
                        yield node.lineno, f"from {module} import {alias.name}"
            case ast.Import():
                for alias in node.names:
                    if alias.asname and alias.name in CLOCK_MODULES:
                        yield node.lineno, f"import {alias.name} under another name"
            case ast.Call(func=func, args=[], keywords=[]):
                if ast.unparse(func) in ("random.Random", "Random"):
                    yield node.lineno, "dice without a seed"


def is_clock_or_dice(dotted: str) -> bool:
    return bool(CLOCKS.fullmatch(dotted) or DICE.fullmatch(dotted))


# Failures.


def broad_excepts(source: Source) -> Iterator[Finding]:
    for node in nodes(source, ast.ExceptHandler):
        assert isinstance(node, ast.ExceptHandler)
        caught = "" if node.type is None else ast.unparse(node.type)
        broad = not caught or {"Exception", "BaseException"} & set(re.findall(r"\w+", caught))
        if broad and not isinstance(node.body[-1], ast.Raise):
            yield node.lineno, f"except {caught}".strip()


# Prose.


def missing_docstrings(source: Source) -> Iterator[Finding]:
    first, _, rest = (ast.get_docstring(source.tree, clean=False) or "").partition("\n")
    if not re.fullmatch(r"[A-Z`«].*\.", first) or (rest and not rest.startswith("\n")):
        yield 1, f"the module opens with {first!r}"


def unfinished_work(source: Source) -> Iterator[Finding]:
    return matches(source, r"\b(TODO|FIXME|XXX)\b", "finish it or leave it out")


def floats(source: Source) -> Iterator[Finding]:
    for node in ast.walk(source.tree):
        match node:
            case ast.Constant(value=float()) | ast.Name(id="float") | ast.Div():
                line = getattr(node, "lineno", 1)
                yield line, ast.unparse(node) if isinstance(node, ast.expr) else "true division"


# Layers.


def foreign_imports(source: Source) -> Iterator[Finding]:
    for node in ast.walk(source.tree):
        match node:
            case ast.ImportFrom(module=str(module), level=0) if CORE_MAY_IMPORT.fullmatch(module):
                continue
            case ast.ImportFrom(module=str(module), level=0):
                reached = [f"{module}.{alias.name}" for alias in node.names]
            case ast.ImportFrom():
                reached = ["tidegate, by a relative import"]
            case ast.Import():
                reached = [alias.name for alias in node.names]
            case _:
                continue
        for name in reached:
            if name.startswith("tidegate") and not CORE_MAY_IMPORT.fullmatch(name):
                yield node.lineno, name


# SQL.


def built_statements(source: Source) -> Iterator[Finding]:
    for node in nodes(source, ast.Call):
        assert isinstance(node, ast.Call)
        called = ast.unparse(node.func).rpartition(".")[2]
        if called in ("execute", "executemany", "fetch", "SQL") and node.args:
            match node.args[0]:
                case ast.JoinedStr() | ast.BinOp():
                    yield node.lineno, f"{called} is given a statement put together from parts"
                case ast.Call(func=ast.Attribute(value=ast.Constant(value=str()))):
                    yield node.lineno, f"{called} is given a statement put together from parts"


def unexplained_statements(source: Source) -> Iterator[Finding]:
    seen: set[str] = set()
    line = 1
    for statement in re.split(r"(?<=;)[ \t]*\n", source.text):
        body = statement.strip()
        header = re.match(r"-- ([a-z_]+): ((?:.*\n--)*.*)\n", body)
        if body and (header is None or not header[2].endswith(".")):
            yield line, "a statement has no header '-- name: a sentence.'"
        elif header is not None and header[1] in seen:
            yield line, f"{header[1]} is there twice"
        seen |= {header[1]} if header else set()
        line += statement.count("\n") + 1


def named_schemas(source: Source) -> Iterator[Finding]:
    tables = "transfers|history|cids|ledger_accounts|ledger_operations"
    pattern = rf"\b(?!trading\.transfers\b)\w+\.({tables})\b"
    return matches(source, pattern, "a store is a schema, and does not say which")


def triggers(source: Source) -> Iterator[Finding]:
    return matches(source, r"CREATE\s+(\w+\s+)*TRIGGER", "nothing moves behind our back")


def volatile_functions(source: Source) -> Iterator[Finding]:
    volatile = "clock_timestamp|timeofday|random|gen_random_uuid|uuid_generate_v[14]|nextval"
    return matches(source, rf"\b({volatile})\s*\(", "a statement means the same wherever it runs")
