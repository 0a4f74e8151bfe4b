"""Each check fails for the flaws that it is about, and its failure explains the flaw."""

import asyncio
from itertools import count
from uuid import UUID

import pytest

from tests.certify.bank import BankBench, Flaw
from tidegate.certify import CHECKS, CheckOutcome, CheckResult, failure, run_check

_fresh = (UUID(int=number << 80) for number in count(1))

# The checks that each flaw fails. It fails no others.
BREAKS = {
    Flaw.NONE: "",
    Flaw.LOOKUP_THEN_WAIT: "concurrent-duplicates",
    Flaw.LOOKUP_ONCE: "twice-in-a-batch",
    Flaw.FORGETS_UNDONE: "late-duplicate undo-twice racing-undos racing-original",
    Flaw.NO_FINGERPRINT: "key-reused",
    Flaw.FORGETS_REFUSALS: "key-reused sticky-refusal restart absent query",
    Flaw.IGNORES_VOID: "void",
    Flaw.UNDOES_TWICE: "undo-twice racing-undos",
    Flaw.UNDO_RACES: "racing-undos",
    Flaw.NO_TOMBSTONE: "tombstone late-original restart",
    Flaw.TOMBSTONE_DELETED: "late-original restart",
    Flaw.UNDO_UNEXPECTED: "unfounded-undo",
    Flaw.REFUNDS_REFUSALS: "undo-of-a-refusal",
    Flaw.ALL_OR_NOTHING: "partial-refusal order-of-answers in-order",
    Flaw.DONE_FIRST: "partial-refusal order-of-answers in-order",
    Flaw.OPENING_BALANCE: "in-order overdraft",
    Flaw.DEBITS_FIRST: "through-a-batch",
    Flaw.OVERWRITES: "racing-original overdraft many-sessions",
    Flaw.STARTED_FIRST: "killed-before",
    Flaw.EFFECT_FIRST: "concurrent-duplicates racing-original killed-after asker-killed",
    Flaw.TIMEOUT_IS_REJECTED: "reply-lost",
    Flaw.UNREACHABLE_IS_REJECTED: "unreachable",
    Flaw.MEMORY_ONLY: "restart",
    Flaw.FROZEN_REFUSES_REFUNDS: "frozen",
    Flaw.DISABLED_REFUSES_REFUNDS: "disabled",
    Flaw.ABSENT_NOT_STORED: "absent",
    Flaw.ZERO_IS_DONE: "amounts",
    Flaw.ASSETS_MIXED: "other-asset",
    Flaw.ELSE_PAYS: "senseless",
    Flaw.NOT_FOUND_IS_REJECTED: "query",
}
# Flaws that fail many checks: only the most important ones are listed.
BREAKS_AT_LEAST = {
    Flaw.NO_KEYS: "duplicate",
    Flaw.NO_VERSION: "version-in-key",
    Flaw.LAST_KEY: "reordering",
    Flaw.ANSWERS_NONE: " ".join(check.name for check in CHECKS),
}


def results_of(flaw: Flaw) -> list[CheckResult]:
    return [
        asyncio.run(run_check(check, lambda: BankBench(flaw), next(_fresh))) for check in CHECKS
    ]


def failed(flaw: Flaw) -> set[str]:
    return {r.check.name for r in results_of(flaw) if r.verdict is CheckOutcome.FAILED}


@pytest.mark.parametrize("flaw", BREAKS)
def test_a_flaw_fails_its_checks_and_no_others(flaw: Flaw) -> None:
    assert failed(flaw) == set(BREAKS[flaw].split())


@pytest.mark.parametrize("flaw", BREAKS_AT_LEAST)
def test_a_gross_flaw_is_found(flaw: Flaw) -> None:
    assert set(BREAKS_AT_LEAST[flaw].split()) <= failed(flaw)


def test_all_checks_are_tried_on_a_bench_with_all_members() -> None:
    assert {result.verdict for result in results_of(Flaw.NONE)} == {CheckOutcome.HELD}


def test_every_flaw_is_tested_and_every_check_has_a_flaw_that_fails_it() -> None:
    assert {*BREAKS, *BREAKS_AT_LEAST} == set(Flaw)
    listed = [*BREAKS.values(), BREAKS_AT_LEAST[Flaw.NO_KEYS]]
    listed += [BREAKS_AT_LEAST[Flaw.NO_VERSION], BREAKS_AT_LEAST[Flaw.LAST_KEY]]
    assert {name for names in listed for name in names.split()} == {c.name for c in CHECKS}


def test_names_are_unique_and_no_text_is_missing() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.promise[0].isupper()
        assert not check.promise.endswith(".")
        assert all(len(text) > 20 for text in (check.promise, check.loss, check.mend))


def test_a_failure_lists_questions_and_answers_with_the_risk_and_the_fix() -> None:
    [result] = [r for r in results_of(Flaw.FORGETS_REFUSALS) if r.check.name == "absent"]
    assert failure(result).splitlines() == [
        "absent FAILED: A debit of an account that does not exist is refused, and stays refused.",
        "  what happened:",
        "    CREDIT 100, key A/0 → Done",
        "    balance: 100",
        "    DEBIT 1, key B/0, another owner → Rejected(INSUFFICIENT)",
        "    CREDIT 50, key C/0, another owner → Done",
        "    DEBIT 1, key B/0, another owner → Done",
        (
            "  expected:  DEBIT 1, key B/0, another owner gets the same answer as before:"
            " Rejected(INSUFFICIENT)"
        ),
        (
            "  risk:      the refused debit would succeed once the account is opened, after its"
            " transfer has failed"
        ),
        (
            "  fix:       store the refusal under its key, although there is no account to store"
            " it with"
        ),
    ]
