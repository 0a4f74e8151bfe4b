"""The page about adapters shows code that is tested and output that was printed."""

import json
import re
from collections.abc import Sequence

import pytest

from tests.certify.certifying import ROOT, certify
from tidegate.certify import CHECKS

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "adapters.md").read_text()
BLOCKS: Sequence[tuple[str, str]] = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)

# The checks that the broken adapter fails. It fails no others.
BROKEN = {
    *("sticky-refusal", "absent", "key-reused", "restart", "void"),
    *("undo-twice", "racing-undos", "tombstone", "late-original"),
    *("unfounded-undo", "undo-of-a-refusal"),
}


@pytest.mark.parametrize("name", ["adapter", "adapter_bench", "broken_adapter"])
def test_the_code_on_the_page_is_the_example(name: str) -> None:
    assert ("python", (ROOT / "examples" / f"{name}.py").read_text()) in BLOCKS


def test_the_adapter_has_fewer_than_60_lines_and_its_bench_fewer_than_35() -> None:
    assert len((ROOT / "examples" / "adapter.py").read_text().splitlines()) < 60
    assert len((ROOT / "examples" / "adapter_bench.py").read_text().splitlines()) < 35


def test_the_page_shows_the_output_of_the_command() -> None:
    shown = [text for kind, text in BLOCKS if kind == "console" and "tidegate certify" in text]
    assert len(shown) == 2
    for text in shown:
        command, _, table = text.partition("\n")
        ran = certify(*command.removeprefix("$ tidegate certify ").split())
        assert [line.rstrip() for line in ran.stdout.splitlines()] == table.splitlines()
        assert ran.returncode == ("FAILED" in table)


def test_the_adapter_keeps_every_promise_that_its_bench_can_test() -> None:
    ran = certify("examples.adapter_bench:bench", "-o", "json")
    report = json.loads(ran.stdout)
    untried = {check["name"] for check in report["checks"] if check["verdict"] == "not tried"}
    assert (ran.returncode, report["certified"]) == (0, True)
    assert {c["verdict"] for c in report["checks"]} == {"held", "not tried"}
    assert untried == {
        *("killed-before", "killed-after", "reply-lost", "unreachable"),
        *("frozen", "disabled", "query"),
    }


def test_the_broken_adapter_fails_the_expected_checks_and_no_others() -> None:
    ran = certify("examples.broken_adapter:bench", "-o", "json")
    report = json.loads(ran.stdout)
    failed = [check for check in report["checks"] if check["verdict"] == "failed"]
    assert (ran.returncode, report["certified"]) == (1, False)
    assert {check["name"] for check in failed} == BROKEN
    assert all(c["story"] and c["expected"] and c["loss"] and c["mend"] for c in failed)
    assert f"fails {len(BROKEN)} of the {len(CHECKS)} checks" in PAGE
    assert f"puts {len(CHECKS)} promises" in PAGE
