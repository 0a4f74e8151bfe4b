"""Every check can fail, fails for what it is about, and says something that helps."""

import asyncio
from itertools import count
from uuid import UUID

import pytest

from tests.certify.bank import BankBench, Flaw
from tidegate.certify import CHECKS, CheckOutcome, CheckResult, attempt, failure

_fresh = (UUID(int=number << 80) for number in count(1))

# What each flaw breaks, and nothing else.
BREAKS = {
    Flaw.NONE: "",
    Flaw.LOOKS_THEN_ACTS: "concurrent-duplicates",
    Flaw.LOOKS_ONCE: "twice-in-a-batch",
    Flaw.FORGETS_UNDONE: "late-duplicate undo-twice racing-undos racing-original",
    Flaw.NO_FINGERPRINT: "key-reused",
    Flaw.FORGETS_REFUSALS: "key-reused sticky-refusal restart absent query",
    Flaw.DEAF_TO_VOID: "void",
    Flaw.UNDOES_TWICE: "undo-twice racing-undos",
    Flaw.UNDO_RACES: "racing-undos",
    Flaw.NO_TOMBSTONE: "tombstone late-original restart",
    Flaw.TOMBSTONE_FADES: "late-original restart",
    Flaw.UNDO_UNEXPECTED: "unfounded-undo",
    Flaw.REFUNDS_REFUSALS: "undo-of-a-refusal",
    Flaw.ALL_OR_NOTHING: "partial-refusal order-of-answers in-order",
    Flaw.YES_FIRST: "partial-refusal order-of-answers in-order",
    Flaw.OPENING_BALANCE: "in-order overdraft",
    Flaw.DEBITS_FIRST: "through-a-batch",
    Flaw.OVERWRITES: "racing-original overdraft many-sessions",
    Flaw.MARKS_FIRST: "killed-before",
    Flaw.EFFECT_FIRST: "concurrent-duplicates racing-original killed-after asker-killed",
    Flaw.TIMEOUT_IS_NO: "reply-lost",
    Flaw.ABSENCE_IS_NO: "unreachable",
    Flaw.MEMORY_ONLY: "restart",
    Flaw.FROZEN_TAKES_NOTHING: "frozen",
    Flaw.DISABLED_TAKES_NOTHING: "disabled",
    Flaw.NO_ONE_NO_RECORD: "absent",
    Flaw.ZERO_IS_DONE: "amounts",
    Flaw.ONE_PURSE: "other-asset",
    Flaw.ELSE_PAYS: "senseless",
    Flaw.NOT_FOUND_IS_NO: "query",
}
# What breaks so much that only the worst of it is named.
BREAKS_AT_LEAST = {
    Flaw.NO_KEYS: "duplicate",
    Flaw.NO_VERSION: "version-in-key",
    Flaw.LAST_KEY: "reordering",
    Flaw.SAYS_NOTHING: " ".join(check.name for check in CHECKS),
}


def tried(flaw: Flaw) -> list[CheckResult]:
    return [asyncio.run(attempt(check, lambda: BankBench(flaw), next(_fresh))) for check in CHECKS]


def failed(flaw: Flaw) -> set[str]:
    return {found.check.name for found in tried(flaw) if found.verdict is CheckOutcome.FAILED}


@pytest.mark.parametrize("flaw", BREAKS)
def test_a_flaw_breaks_what_it_should_and_nothing_else(flaw: Flaw) -> None:
    assert failed(flaw) == set(BREAKS[flaw].split())


@pytest.mark.parametrize("flaw", BREAKS_AT_LEAST)
def test_a_gross_flaw_is_found(flaw: Flaw) -> None:
    assert set(BREAKS_AT_LEAST[flaw].split()) <= failed(flaw)


def test_a_bench_that_offers_everything_leaves_nothing_untried() -> None:
    assert {found.verdict for found in tried(Flaw.NONE)} == {CheckOutcome.HELD}


def test_every_flaw_is_tried_and_every_check_has_a_flaw_that_breaks_it() -> None:
    assert {*BREAKS, *BREAKS_AT_LEAST} == set(Flaw)
    named = [*BREAKS.values(), BREAKS_AT_LEAST[Flaw.NO_KEYS]]
    named += [BREAKS_AT_LEAST[Flaw.NO_VERSION], BREAKS_AT_LEAST[Flaw.LAST_KEY]]
    assert {name for names in named for name in names.split()} == {c.name for c in CHECKS}


def test_names_are_unique_and_every_text_says_something() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.promise[0].isupper()
        assert not check.promise.endswith(".")
        assert all(len(text) > 20 for text in (check.promise, check.loss, check.mend))


def test_a_failure_says_what_was_asked_what_came_the_loss_and_the_mend() -> None:
    [found] = [found for found in tried(Flaw.FORGETS_REFUSALS) if found.check.name == "absent"]
    assert failure(found).splitlines() == [
        "absent FAILED: From an account that is not there nothing is taken, and that stays so.",
        "  what happened:",
        "    CREDIT 100, key A/0 → Done",
        "    balance: 100",
        "    DEBIT 1, key B/0, another owner → Rejected(INSUFFICIENT)",
        "    CREDIT 50, key C/0, another owner → Done",
        "    DEBIT 1, key B/0, another owner → Done",
        (
            "  expected:  DEBIT 1, key B/0, another owner gets the answer it got before:"
            " Rejected(INSUFFICIENT)"
        ),
        (
            "  the loss:  a debit that was refused would succeed once the account is opened, after"
            " its transfer has failed"
        ),
        "  mend it:   store the refusal under its key though there is no account to store it with",
    ]
