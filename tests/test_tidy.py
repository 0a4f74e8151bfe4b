"""The files to which each style rule applies. Each rule is tested on sources that break it."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.code_rules import (
    BORROWED_NAMES,
    Check,
    Source,
    banned_names,
    broad_excepts,
    built_statements,
    clocks_and_dice,
    floats,
    foreign_imports,
    long_functions,
    long_modules,
    many_parameters,
    missing_docstrings,
    named_schemas,
    names,
    needless_dos,
    triggers,
    unexplained_statements,
    unfinished_work,
    volatile_functions,
    wide_lines,
)

ROOT = Path(__file__).parents[1]
PACKAGE = "src/tidegate"

# The composition root, and the modules that run as a process or supervise one.
CLOCKS_ALLOWED = (
    "app.py",
    "serving.py",
    "cli.py",
    "supervisor/",
    "postgres/",
    "trading_core/server.py",
    "simulation/runs.py",  # It measures how many seeds it runs per second.
)


class Rule(NamedTuple):
    sentence: str
    check: Check
    where: str  # A regular expression over paths.
    broken: tuple[str, ...]
    but: str = "$^"  # A regular expression over paths that are excepted.


PYTHON, OURS, QUERIES = r".*\.py", rf"{PACKAGE}/.*\.py", rf"{PACKAGE}/.*\.sql"
MIGRATIONS = r".*/migrations/.*"
ROOTS = rf"{PACKAGE}/(" + "|".join(map(re.escape, CLOCKS_ALLOWED)) + ").*"

RULES = (
    Rule(
        "a function has at most 50 lines",
        long_functions,
        PYTHON,
        ("def f():\n" + "    x = 1\n" * 50, "async def f():\n" + "    x = 1\n" * 50),
    ),
    Rule("a module has at most 400 lines", long_modules, PYTHON, ("x = 1\n" * 401,)),
    Rule("a line has at most 100 columns", wide_lines, r"src/.*\.(py|sql)", ("#" * 101,)),
    Rule(
        "a function takes at most 5 arguments",
        many_parameters,
        OURS,
        ("def f(a, b, c, d, e, f): ...", "class A:\n    def f(self, a, b, c, d, /, e, *, f): ..."),
    ),
    Rule(
        "a name has a meaning",
        banned_names,
        OURS,
        (
            "class LaneManager: ...",
            "def process(): ...",
            "async def info(): ...",
            "def f(raw_data): ...",
            "userInfo = 1",
            "self.data = 1",
            "for util in (): ...",
            "import numpy as data",
            "try: ...\nexcept OSError as info: raise",
        ),
    ),
    Rule("a name is not do_something", needless_dos, PYTHON, ("def do_it(): ...", "do_not = 1")),
    Rule(
        "clocks and dice are arguments",
        clocks_and_dice,
        OURS,
        (
            "import time\nx = time.time()",
            "import time\ndef f(clock=time.monotonic): ...",
            "from time import monotonic",
            "x = datetime.now(UTC)",
            "x = datetime.datetime.utcnow()",
            "x = date.today()",
            "import uuid\nx = uuid.uuid4()",
            "from uuid import uuid4",
            "import random as chance",
            "import random\nx = random.random()",
            "from random import choice",
            "x = random.Random()",
            "x = os.urandom(16)",
            "from secrets import token_hex",
        ),
        but=ROOTS,
    ),
    Rule(
        "only step.py, write_batch.py and inbox_reader.py in engine/ catch any exception",
        broad_excepts,
        OURS,
        (
            "try: ...\nexcept Exception: pass",
            "try: ...\nexcept: pass",
            "try: ...\nexcept (OSError, BaseException) as e:\n    x = e",
        ),
        but=rf"{PACKAGE}/engine/(step|write_batch|inbox_reader)\.py",
    ),
    Rule(
        "a module opens with a sentence on one line",
        missing_docstrings,
        PYTHON,
        ("x = 1", '"""no sentence"""', '"""A sentence that\ngoes on."""'),
        but=r"tests/(\w+/)*__init__\.py",
    ),
    Rule(
        "work is finished or left out",
        unfinished_work,
        r".*\.(py|sql)",
        ("# TODO: later", "-- FIXME"),
        but=r"tests/(code_rules|test_tidy)\.py",
    ),
    Rule(
        "no float in money",
        floats,
        rf"{PACKAGE}/core/money\.py",
        ("x = 0.1", "x = float('1')", "x = 1 / 3"),
    ),
    Rule(
        "the trading core imports only money, refusals and its wire",
        foreign_imports,
        rf"{PACKAGE}/trading_core/.*\.py",
        (
            "from tidegate.core.flow import Flow",
            "import tidegate.store",
            "from tidegate import core",
            "from tidegate.core import flow, wire",
            "from ..core import flow",
        ),
    ),
    Rule(
        "a statement is not put together from parts",
        built_statements,
        OURS,
        (
            'await tx.fetch(f"SELECT {x}", {})',
            'connection.execute("SELECT " + x)',
            'connection.execute("SELECT %s" % x)',
            'connection.execute("SELECT {}".format(x))',
            'connection.execute(sql.SQL(f"SELECT {x}"))',
        ),
    ),
    Rule(
        "a statement has a name and a sentence",
        unexplained_statements,
        QUERIES,
        (
            "SELECT 1;\n",
            "-- claim: no full stop\nSELECT 1;\n",
            "-- a: Fine.\nSELECT 1;\n\nSELECT 2;\n",
            "-- a: Fine.\nSELECT 1;\n\n-- a: Again.\nSELECT 2;\n",
        ),
        but=MIGRATIONS,
    ),
    Rule(
        "no statement names the schema of a store",
        named_schemas,
        QUERIES,
        ("SELECT 1 FROM store_one.transfers", "UPDATE public.ledger_accounts"),
        but=rf"{PACKAGE}/store/migrations/shared/.*",
    ),
    Rule(
        "there are no triggers, but on the table of the transfer pool",
        triggers,
        QUERIES,
        ("CREATE TRIGGER t", "create constraint trigger t"),
        but=rf"{PACKAGE}/store/migrations/economy/(0002_doors|0004_inbox)\.sql",
    ),
    Rule(
        "a statement calls nothing volatile",
        volatile_functions,
        QUERIES,
        ("SELECT clock_timestamp()", "SELECT RANDOM ()", "SELECT gen_random_uuid()"),
        but=MIGRATIONS,
    ),
)

every_rule = pytest.mark.parametrize("rule", RULES, ids=[rule.sentence for rule in RULES])


def sources() -> Iterable[Source]:
    for folder in ("src", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".sql"):
                name = path.relative_to(ROOT).as_posix()
                yield Source(name, path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def all_sources() -> list[Source]:
    return list(sources())


@every_rule
def test_every_source_keeps_the_rule(rule: Rule, all_sources: list[Source]) -> None:
    ruled = [
        source
        for source in all_sources
        if re.fullmatch(rule.where, source.path) and not re.fullmatch(rule.but, source.path)
    ]
    assert ruled, f"the rule applies to no file: {rule.sentence}"
    findings = [
        f"{source.path}:{line}: {rule.sentence}: {what}"
        for source in ruled
        for line, what in rule.check(source)
    ]
    assert not findings, "\n".join(findings)


@every_rule
def test_a_rule_can_be_broken(rule: Rule) -> None:
    for text in rule.broken:
        assert list(rule.check(Source("src/tidegate/broken.py", text))), text


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (many_parameters, "class A:\n    def f(self, a, b, c, d, e): ..."),
        (banned_names, "processed = database = informed = utility = 1  # the process, its data"),
        (banned_names, "x = record.data\nprocess()"),
        (clocks_and_dice, "def f(dice: random.Random, clock):\n    return dice.random(), clock()"),
        (clocks_and_dice, "import random\nx = random.Random(7)\ny = datetime.fromtimestamp(1)"),
        (broad_excepts, "try: ...\nexcept BaseException:\n    close()\n    raise"),
        (broad_excepts, "try: ...\nexcept (OSError, ValueError): pass"),
        (built_statements, 'connection.execute(sql.SQL("SELECT {}").format(sql.Identifier(x)))'),
        (built_statements, 'await tx.fetch(STATEMENTS["look"], {})'),
        (unexplained_statements, "-- a: One\n-- sentence.\nSELECT 1;\n\n-- b: Two.\nSELECT 2;\n"),
        (named_schemas, "SELECT t.id FROM transfers AS t JOIN trading.transfers AS v USING (id)"),
        (foreign_imports, "from tidegate.core import wire\nfrom tidegate.core.money import MAX"),
        (missing_docstrings, '"""One sentence.\n\nAnd more."""'),
    ],
)
def test_a_rule_accepts_good_code(check: Check, text: str) -> None:
    assert list(check(Source("src/tidegate/good.py", text))) == []


def test_every_exception_to_the_banned_names_is_still_used(all_sources: list[Source]) -> None:
    given = {
        (source.path, name)
        for source in all_sources
        if source.path.endswith(".py")
        for _, name in names(source)
    }
    assert set(BORROWED_NAMES) <= given
    assert all(BORROWED_NAMES.values())
