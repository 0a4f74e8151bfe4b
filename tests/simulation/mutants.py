"""Planted bugs, and the search that must find each: this shows that the other tests find bugs.

`python -m tests.simulation.mutants [-o json]` plants one after the other and searches for it.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest
from rich.console import Console
from rich.table import Table

from tests.simulation import money_searches, searches, waiting_searches
from tests.simulation.planted import core, engine, inbox, money, pool, store
from tests.simulation.searches import Search, Trial


class Mutant(NamedTuple):
    """A bug: the function that plants it, the fault that it must cause, and how to search for it.

    The docstring of the function describes the bug. If it causes another fault than expected, it
    does not count as caught: then the function or something else is broken.
    """

    plant: Callable[[pytest.MonkeyPatch], None]
    pattern: str  # A regular expression that the fault must match.
    search: Search = searches.SEEDS

    @property
    def name(self) -> str:
        return self.plant.__name__

    @property
    def description(self) -> str:
        assert self.plant.__doc__, f"{self.name} has no docstring"
        return self.plant.__doc__


MUTANTS: tuple[Mutant, ...] = (
    Mutant(engine.refund_on_timeout, "these effects happened"),
    Mutant(engine.exception_is_a_no, "these effects happened"),
    Mutant(engine.gives_up, "these effects happened", searches.BUSY),
    Mutant(engine.doubt_is_counted_as_an_answer, "does not lead to its row"),
    Mutant(engine.new_key_for_each_attempt, "target.credit, target.credit"),
    Mutant(engine.float_amount, "does not belong to", searches.LARGE_AMOUNTS),
    Mutant(engine.asks_before_it_persists, "which does not exist"),
    Mutant(engine.hands_over_before_the_commit, "which does not exist"),
    Mutant(engine.lost_commit_under_new_ids, "whose id no client received", searches.COMMITS),
    Mutant(engine.lost_commit_is_an_error, "whose id no client received", searches.COMMITS),
    Mutant(
        engine.refuses_what_may_have_happened,
        "whose id no client received",
        waiting_searches.LIMIT_USED_UP,
    ),
    Mutant(engine.refuses_what_another_process_made, "was refused", waiting_searches.DAILY_LIMITS),
    Mutant(
        inbox.inbox_takes_without_a_lock,
        "was decided twice|does not lead to its row|does not follow|was written again",
        waiting_searches.LATE_PROGRAMS,
    ),
    Mutant(inbox.inbox_decides_later, "was not updated", waiting_searches.PROGRAMS),
    Mutant(inbox.expiry_is_judged_at_the_claim, "after it had expired", waiting_searches.PROGRAMS),
    Mutant(
        engine.accepts_what_waits_for_a_lock,
        "was accepted but does not exist",
        waiting_searches.HELD_ACCOUNT,
    ),
    Mutant(engine.one_lock_stops_all, "wait for a held account", waiting_searches.HELD_ACCOUNT),
    Mutant(engine.another_amount_under_a_known_key, "another amount"),
    Mutant(engine.ended_rows_move_again, "had ended"),
    Mutant(engine.unordered_locks, "nothing failed", searches.CROWD),
    Mutant(engine.ring_ignores_halts, "during a halt", searches.HALTED),
    Mutant(engine.never_scans, "not ended"),
    Mutant(engine.attempts_start_again, "without an alert", searches.BUSY),
    Mutant(engine.no_alerts, "without an alert", searches.BUSY),
    Mutant(engine.false_alerts, "a false alarm"),
    Mutant(engine.outages_are_not_recorded, "too few probes are recorded", searches.LONG_OUTAGE),
    Mutant(engine.trusts_the_databases_clock, "not ended", searches.DATABASE_CLOCK),
    Mutant(engine.drops_an_answer, "does not follow"),
    Mutant(store.no_compare_and_set, "had ended|does not follow|does not lead to its row"),
    Mutant(store.compares_states, "does not follow", searches.REFUNDS),
    Mutant(store.trusts_the_lease, "does not follow|does not lead to its row", searches.REFUNDS),
    Mutant(
        store.leases_by_the_workers_clock,
        "not ended|for over a minute without an alert",
        waiting_searches.WORKERS_CLOCKS,
    ),
    Mutant(store.hands_over_without_a_list, "not ended"),
    Mutant(store.lists_after_the_commit, "not ended"),
    Mutant(store.lists_are_deleted_while_rows_are_locked, "not ended"),
    Mutant(store.lists_are_deleted_early, "not ended"),
    Mutant(store.what_is_held_stays_held, "not ended"),
    Mutant(store.lists_wait_for_a_clock_that_was_set_back, "not ended", searches.DATABASE_CLOCK),
    Mutant(store.claims_every_flow, "a loop of the engine died"),
    Mutant(store.cid_per_worker, "became|was written again|whose id no client received"),
    Mutant(store.history_not_chained, "the chain is broken"),
    Mutant(store.hash_leaves_out_the_answer, "the chain is broken"),
    Mutant(store.judges_before_it_locks, "overdrawn|nothing failed, but all ended", searches.CROWD),
    Mutant(
        store.effect_before_the_lock,
        "changed or repeated|overdrawn",
        waiting_searches.OUT_OF_THE_CORE,
    ),
    Mutant(store.ledger_forgets_refusals, "is Unknown", searches.LEDGER_CERTIFICATE),
    Mutant(store.ledger_batch_sees_no_balance_before_it, "overdrawn", searches.CROWD),
    Mutant(store.ledger_takes_a_reused_key, "is Unknown", searches.LEDGER_CERTIFICATE),
    Mutant(store.ledger_undoes_twice, "the balance is", searches.LEDGER_CERTIFICATE),
    Mutant(store.ledger_undo_without_tombstone, "is Rejected", searches.LEDGER_CERTIFICATE),
    Mutant(pool.stale_checks_approve, "was approved to pay|not ended", searches.PAYERS),
    Mutant(pool.approved_is_paid, "in a day over limit", searches.PAYERS),
    Mutant(pool.allowance_sees_no_payment_before_it, "in a day over limit", searches.PAYERS),
    Mutant(pool.pool_keeps_no_record, "the pool's record is"),
    Mutant(money.second_halt_is_lost, "during a halt", money_searches.TWICE_HALTED),
    Mutant(money.audit_ignores_the_account, "was not found", money_searches.AUDIT),
    Mutant(money.ledger_credits_another_book, "does not belong to|effects happened"),
    Mutant(money.ledger_keeps_the_fee, "was charged|has ended, but", money_searches.SALES_WORLD),
    Mutant(money.target_gets_the_fee_too, "does not belong to", money_searches.SALES_WORLD),
    Mutant(
        money.refund_of_captured_money_is_refused,
        "a false alarm|not ended",
        money_searches.SALES_WORLD,
    ),
    Mutant(engine.floor_by_one_clock_sent_at_once, "the core answers 34", searches.FLOORS),
    Mutant(store.ids_by_the_clock_alone, "not ended", searches.FLOORS),
    Mutant(store.creations_below_the_floor, "the core answers 34", searches.FLOORS),
    Mutant(core.busy_is_a_no, "these effects happened", searches.BUSY),
    Mutant(core.key_without_version, "the core answers", searches.REFUNDS),
    Mutant(core.answers_shifted, "these effects happened"),
    Mutant(core.takes_an_empty_core, "a foreign core was asked", searches.FOREIGN_CORE),
    Mutant(core.takes_an_old_copy, "a foreign core was asked", searches.OLD_COPY),
    Mutant(core.core_forgets_refusals, "before, it differed"),
    Mutant(core.core_forgets_by_count, "before, it differed|effects happened|the core answers"),
    Mutant(
        core.answers_before_the_sync, "is durable|cannot read its own disk|holds other balances"
    ),
    Mutant(core.answers_duplicates_before_the_sync, "answers at", searches.SLOW_DISK),
    Mutant(core.remembers_before_the_log, "not a frame|durable|has a gap|does not belong to"),
    Mutant(core.syncs_once_more, "is durable"),
    Mutant(core.judges_while_it_syncs, "BEHIND|rewritten|is durable|cannot read its own disk"),
    Mutant(core.core_batch_sees_no_key_before_it, "these effects happened", searches.SLOW_DISK),
    Mutant(core.core_takes_a_reused_key, "is Unknown", searches.CORE_CERTIFICATE),
    Mutant(core.core_refuses_refunds_of_the_frozen, "is Done", searches.CORE_CERTIFICATE),
    Mutant(core.core_undoes_twice, "the balance is", searches.CORE_CERTIFICATE),
    Mutant(core.core_undo_without_tombstone, "is Rejected", searches.CORE_CERTIFICATE),
    Mutant(core.torn_tail_stays, "not a frame"),
    Mutant(core.damage_is_skipped, "was not detected", searches.DAMAGES),
    Mutant(core.snapshot_is_not_synced, "is missing", searches.SNAPSHOTS),
    Mutant(
        core.snapshot_without_its_memory,
        "these effects happened|before, it differed|the core answers|undoes an unknown operation",
        searches.SNAPSHOTS,
    ),
    Mutant(core.old_log_goes_too_soon, "is missing", searches.SNAPSHOTS),
    Mutant(core.new_log_without_its_name, "restarted at position|is missing"),
)


def caught(mutant: Mutant) -> Trial | None:
    """The first trial that finds anything, if one does within the budget."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        return next((trial for trial in mutant.search.trials() if trial.fault), None)


def is_expected(mutant: Mutant, trial: Trial | None) -> bool:
    """Whether the trial found the expected fault."""
    return trial is not None and re.search(mutant.pattern, trial.fault) is not None


def false_alarms(search: Search) -> list[Trial]:
    """Everything that the whole budget of a search finds without a planted bug."""
    return [trial for trial in search.trials() if trial.fault]


def show(found: dict[Mutant, Trial | None]) -> None:
    table = Table("planted bug", "caught at", "fault", title="Mutants")
    for mutant, trial in found.items():
        at, fault = trial or ("", "")
        at = at if is_expected(mutant, trial) else f"NOT CAUGHT {at}"
        name = mutant.name.replace("_", " ")
        table.add_row(f"{name}\n[dim]{mutant.description}", at, fault[:160])
    console = Console()
    console.print(table)
    console.print(f"{sum(is_expected(*pair) for pair in found.items())} of {len(found)} caught")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation.mutants", description=__doc__)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("names", nargs="*", help="only these bugs")
    options = parser.parse_args()
    planted = [m for m in MUTANTS if not options.names or m.name in options.names]
    found = {mutant: caught(mutant) for mutant in planted}
    names = {m.name: trial.name for m, trial in found.items() if trial and is_expected(m, trial)}
    if options.output == "json":
        figures = {"mutants": len(found), "mutants_caught": len(names), "caught": names}
        print(json.dumps(figures, indent=2))
    else:
        show(found)
    return 0 if len(names) == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
