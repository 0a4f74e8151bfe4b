"""The page docs/proof.md shows the figures of the last `make proof`, which reached all it must."""

import json

from tests.proof import FIGURES, FIGURES_FILE, PAGE, missing, page, too_slow


def test_the_last_proof_reached_all_required_figures() -> None:
    proof = json.loads(FIGURES_FILE.read_text())
    assert proof.keys() >= {figure.key for figure in FIGURES}
    assert missing(proof) == []
    assert proof["mutants_caught"] == proof["mutants"]


def test_the_page_shows_the_figures_of_that_run() -> None:
    assert PAGE.read_text() == page(json.loads(FIGURES_FILE.read_text()))


def test_a_run_that_reached_less_fails() -> None:
    proof = {**json.loads(FIGURES_FILE.read_text()), "seeds": 4_999, "violations": 1}
    assert len(missing(proof)) == 2


def test_a_slow_run_passes_and_the_page_reports_it() -> None:
    proof = {**json.loads(FIGURES_FILE.read_text()), "seeds_per_second_per_core": 49.9}
    assert missing(proof) == []
    [slow] = too_slow(proof)
    assert slow == "seeds per second and core: 49.9, below the aim of 50"
    assert slow in page(proof)
    assert too_slow({**proof, "seeds_per_second_per_core": 50}) == []
