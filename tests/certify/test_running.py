"""The command and the pytest plugin: their output, exit codes and imports."""

import json
from pathlib import Path

import pytest

from tests.certify.certifying import certify, run
from tidegate.certify import CHECKS

pytestmark = pytest.mark.slow

GOOD, BAD = "examples.adapter_bench:bench", "examples.broken_adapter:bench"


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("nowhere:bench", "No module named 'nowhere'; is its directory on PYTHONPATH?"),
        ("examples.adapter:nothing", "examples.adapter has no function 'nothing'"),
        ("examples.adapter", "'examples.adapter' is not of the form module:factory"),
    ],
)
def test_a_missing_factory_is_a_one_line_error_without_a_traceback(
    factory: str, message: str
) -> None:
    ran = certify(factory)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("tidegate: ")
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_only_the_named_checks_run() -> None:
    ran = certify(GOOD, "--only", "void", "-o", "json")
    assert [check["name"] for check in json.loads(ran.stdout)["checks"]] == ["void"]
    assert certify(GOOD, "--only", "everything").returncode == 2


def test_the_option_makes_one_test_for_each_check(tmp_path: Path) -> None:
    ran = run("pytest", "-q", "-rfs", "--tidegate-certify", BAD, directory=tmp_path)
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[-1].startswith("11 failed, 17 passed, 7 skipped")
    assert f"_ {BAD}::sticky-refusal _" in ran.stdout
    assert "fix:       store the refusal under its key" in ran.stdout
    assert "the bench has no restart" not in ran.stdout
    assert "the bench has no query(question)" in ran.stdout
    assert "Traceback" not in ran.stdout


def test_the_option_works_beside_other_tests(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own() -> None: ...\n")
    ran = run("pytest", "-q", "--tidegate-certify", GOOD, "-k", "own or void", directory=tmp_path)
    assert ran.returncode == 0
    assert ran.stdout.splitlines()[-1].startswith(f"2 passed, {len(CHECKS) - 1} deselected")
    wrong = run("pytest", "-q", "--tidegate-certify", "nowhere:bench", directory=tmp_path)
    assert wrong.returncode == 4
    assert "ERROR: --tidegate-certify: nowhere:bench: No module named" in wrong.stderr


def test_one_line_in_a_test_module_makes_the_same_tests(tmp_path: Path) -> None:
    (tmp_path / "test_bank.py").write_text(
        "from examples.adapter_bench import bench\n"
        "from tidegate.certify.plugin import certificate\n\n"
        "test_bank = certificate(bench)\n"
    )
    ran = run("pytest", "-q", directory=tmp_path)
    assert ran.stdout.splitlines()[-1].startswith("28 passed, 7 skipped")


def test_a_run_without_the_option_does_not_import_tidegate(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "import sys\n\n\n"
        "def test_own(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.hasplugin('tidegate')\n"
        "    assert 'tidegate_pytest' in sys.modules\n"
        "    assert not [name for name in sys.modules if name.partition('.')[0] == 'tidegate']\n"
    )
    ran = run("pytest", "-q", directory=tmp_path)
    assert ran.returncode == 0, ran.stdout
