"""Planted bugs, and what finds each: the proof that the other proofs have teeth.

`python -m tests.simulation.mutants [-o json]` plants one after the other and looks for it.
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
from tests.simulation.planted import core, engine, money, pool, store
from tests.simulation.searches import Search, Trial


class Mutant(NamedTuple):
    """A bug: how it is planted, what gives it away, and where to look for it.

    Its story is the plant's docstring. One that shows itself in another way than it should is
    not caught: then the plant is broken, or something else is.
    """

    plant: Callable[[pytest.MonkeyPatch], None]
    shows: str  # A pattern.
    hunt: Search = searches.SEEDS

    @property
    def name(self) -> str:
        return self.plant.__name__

    @property
    def why(self) -> str:
        assert self.plant.__doc__, f"{self.name} tells no story"
        return self.plant.__doc__


MUTANTS: tuple[Mutant, ...] = (
    Mutant(engine.refund_on_timeout, "this was done"),
    Mutant(engine.exception_is_a_no, "this was done"),
    Mutant(engine.gives_up, "this was done", searches.BUSY),
    Mutant(engine.doubt_is_counted_as_an_answer, "does not lead to its row"),
    Mutant(engine.new_key_for_each_attempt, "target.credit, target.credit"),
    Mutant(engine.float_amount, "is not what", searches.LARGE_AMOUNTS),
    Mutant(engine.asks_before_it_persists, "which does not exist"),
    Mutant(engine.hands_over_before_the_commit, "which does not exist"),
    Mutant(engine.lost_commit_under_new_ids, "nobody was told of", searches.COMMITS),
    Mutant(engine.lost_commit_is_an_error, "nobody was told of", searches.COMMITS),
    Mutant(engine.refuses_what_may_have_happened, "nobody was told of", waiting_searches.USED_UP),
    Mutant(engine.refuses_what_another_process_made, "was refused", waiting_searches.DAILY_LIMITS),
    Mutant(
        engine.inbox_takes_without_a_lock,
        "was decided twice|does not lead to its row|does not follow|was written again",
        waiting_searches.LATE_PROGRAMS,
    ),
    Mutant(engine.inbox_decides_later, "does not say so", waiting_searches.PROGRAMS),
    Mutant(engine.expiry_is_judged_at_the_claim, "after it had expired", waiting_searches.PROGRAMS),
    Mutant(
        engine.accepts_what_waits_for_a_lock,
        "was accepted, and it is not there",
        waiting_searches.HELD_ACCOUNT,
    ),
    Mutant(engine.one_lock_stops_all, "wait for a held account", waiting_searches.HELD_ACCOUNT),
    Mutant(engine.another_amount_under_a_known_key, "another amount"),
    Mutant(engine.ended_rows_move_again, "had ended"),
    Mutant(engine.unordered_locks, "nothing failed", searches.CROWD),
    Mutant(engine.ring_ignores_the_brake, "although all was halted", searches.BRAKED),
    Mutant(engine.never_scans, "not ended"),
    Mutant(engine.forgets_how_often, "nobody was told", searches.BUSY),
    Mutant(engine.calls_nobody, "nobody was told", searches.BUSY),
    Mutant(engine.cries_wolf, "a false alarm"),
    Mutant(engine.outages_leave_no_trace, "nothing says how often", searches.LONG_OUTAGE),
    Mutant(engine.trusts_the_databases_clock, "not ended", searches.DATABASE_CLOCK),
    Mutant(engine.drops_an_answer, "does not follow"),
    Mutant(store.no_compare_and_set, "had ended|does not follow|does not lead to its row"),
    Mutant(store.compares_states, "does not follow", searches.REFUNDS),
    Mutant(store.trusts_the_lease, "does not follow|does not lead to its row", searches.REFUNDS),
    Mutant(
        store.leases_by_the_workers_clock,
        "not ended|for over a minute, and nobody was told",
        waiting_searches.WORKERS_CLOCKS,
    ),
    Mutant(store.hands_over_without_a_list, "not ended"),
    Mutant(store.lists_once_it_is_told, "not ended"),
    Mutant(store.lists_are_deleted_while_rows_are_locked, "not ended"),
    Mutant(store.lists_are_deleted_early, "not ended"),
    Mutant(store.what_is_held_stays_held, "not ended"),
    Mutant(store.lists_wait_for_a_clock_that_was_set_back, "not ended", searches.DATABASE_CLOCK),
    Mutant(store.claims_every_flow, "a loop of the engine died"),
    Mutant(store.cid_per_worker, "became|was written again|nobody was told of"),
    Mutant(store.history_not_chained, "the chain is broken"),
    Mutant(store.hash_leaves_out_the_answer, "the chain is broken"),
    Mutant(store.judges_before_it_locks, "overdrawn|nothing failed, and all ended", searches.CROWD),
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
    Mutant(pool.approved_is_paid, "is the limit", searches.PAYERS),
    Mutant(pool.allowance_sees_no_payment_before_it, "is the limit", searches.PAYERS),
    Mutant(pool.pool_keeps_no_record, "the pool has it as"),
    Mutant(money.second_halt_is_lost, "although all was halted", money_searches.TWICE_BRAKED),
    Mutant(money.audit_overlooks_the_account, "was paid unnoticed", money_searches.AUDITED),
    Mutant(money.ledger_credits_another_book, "is not what|this was done"),
    Mutant(money.ledger_keeps_the_fee, "was charged|has ended, and", money_searches.SALES_WORLD),
    Mutant(money.target_gets_the_fee_too, "is not what", money_searches.SALES_WORLD),
    Mutant(
        money.refund_of_captured_money_is_refused,
        "a false alarm|not ended",
        money_searches.SALES_WORLD,
    ),
    Mutant(engine.floor_by_one_clock_sent_at_once, "the core answers 34", searches.FLOORS),
    Mutant(store.ids_by_the_clock_alone, "not ended", searches.FLOORS),
    Mutant(store.births_below_the_floor, "the core answers 34", searches.FLOORS),
    Mutant(core.busy_is_a_no, "this was done", searches.BUSY),
    Mutant(core.key_without_version, "the core answers", searches.REFUNDS),
    Mutant(core.answers_shifted, "this was done"),
    Mutant(core.takes_an_empty_core, "not ours", searches.STRANGER),
    Mutant(core.takes_an_old_copy, "not ours", searches.OLD_COPY),
    Mutant(core.core_forgets_refusals, "said otherwise before"),
    Mutant(core.core_forgets_by_count, "said otherwise before|this was done|the core answers"),
    Mutant(
        core.answers_before_the_sync, "is durable|does not read its own disk|holds other balances"
    ),
    Mutant(core.answers_duplicates_before_the_sync, "answers by", searches.SLOW_DISK),
    Mutant(core.remembers_before_the_log, "no frame|durable|has a gap|is not what"),
    Mutant(core.syncs_once_more, "is durable"),
    Mutant(core.judges_while_it_syncs, "BEHIND|rewritten|is durable|does not read its own disk"),
    Mutant(core.core_batch_sees_no_key_before_it, "this was done", searches.SLOW_DISK),
    Mutant(core.core_takes_a_reused_key, "is Unknown", searches.CORE_CERTIFICATE),
    Mutant(core.core_refuses_refunds_of_the_frozen, "is Done", searches.CORE_CERTIFICATE),
    Mutant(core.core_undoes_twice, "the balance is", searches.CORE_CERTIFICATE),
    Mutant(core.core_undo_without_tombstone, "is Rejected", searches.CORE_CERTIFICATE),
    Mutant(core.torn_tail_stays, "no frame"),
    Mutant(core.damage_is_skipped, "as if it were whole", searches.DAMAGES),
    Mutant(core.snapshot_is_not_synced, "is missing", searches.SNAPSHOTS),
    Mutant(
        core.snapshot_without_its_memory,
        "this was done|said otherwise|the core answers|undoes what was never done",
        searches.SNAPSHOTS,
    ),
    Mutant(core.old_log_goes_too_soon, "is missing", searches.SNAPSHOTS),
    Mutant(core.new_log_without_its_name, "came back at position|is missing"),
)


def caught(mutant: Mutant) -> Trial | None:
    """The first try that finds anything, if one does within the budget."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        return next((trial for trial in mutant.hunt.trials() if trial.fault), None)


def right(mutant: Mutant, trial: Trial | None) -> bool:
    """Whether it was found, and for what it is."""
    return trial is not None and re.search(mutant.shows, trial.fault) is not None


def false_alarms(hunt: Search) -> list[Trial]:
    """What the whole budget of a hunt finds where nothing is planted."""
    return [trial for trial in hunt.trials() if trial.fault]


def show(found: dict[Mutant, Trial | None]) -> None:
    table = Table("planted bug", "caught at", "by what was wrong", title="Mutants")
    for mutant, trial in found.items():
        at, fault = trial or ("", "")
        at = at if right(mutant, trial) else f"NOT CAUGHT {at}"
        table.add_row(f"{mutant.name.replace('_', ' ')}\n[dim]{mutant.why}", at, fault[:160])
    console = Console()
    console.print(table)
    console.print(f"{sum(right(*pair) for pair in found.items())} of {len(found)} caught")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation.mutants", description=__doc__)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("names", nargs="*", help="of some bugs only")
    chosen = parser.parse_args()
    planted = [m for m in MUTANTS if not chosen.names or m.name in chosen.names]
    found = {mutant: caught(mutant) for mutant in planted}
    names = {m.name: trial.name for m, trial in found.items() if trial and right(m, trial)}
    if chosen.output == "json":
        said = {"mutants": len(found), "mutants_caught": len(names), "caught": names}
        print(json.dumps(said, indent=2))
    else:
        show(found)
    return 0 if len(names) == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
