"""The page on what was tried says what the last run reached: no less than we promise."""

import json

from tests.proof import FIGURES, KEPT, PAGE, missing, page, too_slow


def test_the_last_proof_reached_what_it_must() -> None:
    proof = json.loads(KEPT.read_text())
    assert proof.keys() >= {figure.key for figure in FIGURES}
    assert missing(proof) == []
    assert proof["mutants_caught"] == proof["mutants"]


def test_the_page_shows_the_figures_of_that_run() -> None:
    assert PAGE.read_text() == page(json.loads(KEPT.read_text()))


def test_a_run_that_reached_less_is_not_kept() -> None:
    proof = {**json.loads(KEPT.read_text()), "seeds": 4_999, "violations": 1}
    assert len(missing(proof)) == 2


def test_a_run_that_was_slow_is_kept_and_the_page_says_so() -> None:
    proof = {**json.loads(KEPT.read_text()), "seeds_per_second_per_core": 49.9}
    assert missing(proof) == []
    [slow] = too_slow(proof)
    assert slow == "seeds per second and core: 49.9, and the aim is 50"
    assert slow in page(proof)
    assert too_slow({**proof, "seeds_per_second_per_core": 50}) == []
