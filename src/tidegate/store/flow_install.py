"""Installs flows: their rules are stored in a table, and one constraint is built from all rules.

The constraint of each table is compared with the stored rules, and built again if it differs. So
the next installation completes one that was killed at any line. A changed flow is checked against
all rows in the transaction that installs it. If a flow is the same and only its constraint is
replaced, the rows are checked afterwards, while the engine runs.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from tidegate.core.flow import End, Flow
from tidegate.store.flow_checks import (
    TAB,
    FlowRules,
    checksum,
    history_rule,
    rules_of,
    state_rule,
)
from tidegate.store.schemas import MigrationRefused, identifier, set_path

CONSTRAINT = "flow_rules"
# Transfers first, in the order in which the engine locks. Archived transfers must fit their flow
# too, so they can refuse a change of a flow.
CHECKED: Mapping[str, Callable[[Iterable[FlowRules]], str]] = {
    "transfers": state_rule,
    "history": history_rule,
    "archived_transfers": state_rule,
    "archived_history": history_rule,
}


def install(
    connection: psycopg.Connection, path: Sequence[str], flows: Sequence[Flow]
) -> Iterator[str]:
    """Install the flows, and yield the changes."""
    with connection.transaction():
        set_path(connection, path)
        changed, unchanged = _store_rules(connection, flows)
        if changed:
            _replace_all(connection)
    for table in CHECKED:
        # One transaction per table: one that locks two tables can deadlock with a running engine.
        with connection.transaction(), _lockable(table):
            set_path(connection, path)
            _replace(connection, table)
    yield from (f"flow {flow.name}" for flow in flows if flow in changed or flow in unchanged)
    for table in CHECKED:
        with connection.transaction(), _lockable(table):
            set_path(connection, path)
            checked = _validate(connection, table)
        if checked:
            yield f"{CONSTRAINT} of {table}"


def _store_rules(
    connection: psycopg.Connection, flows: Sequence[Flow]
) -> tuple[list[Flow], list[Flow]]:
    """Store the rules of the flows. Return the flows that changed, and those that are unchanged but
    have no stored rules yet, because an older version installed them.
    """
    for flow in flows:
        identifier(f"flow_{flow.name}")
        if any(TAB in state for state in flow.rows):
            raise MigrationRefused(f"flow {flow.name}: the name of a state contains a tab")
    rows = connection.execute("SELECT flow, checksum FROM flow_tables").fetchall()
    installed: Mapping[str, str] = dict(rows)
    with_rules = {rules.flow for rules in _stored_rules(connection)}
    named = {flow.name for flow in flows}
    if CONSTRAINT.removeprefix("flow_") in installed.keys() - with_rules - named:
        raise MigrationRefused(
            f"an older version gave the name {CONSTRAINT} to the constraint of a flow: first run"
            " `tidegate migrate`, or `migrate()`, of the program that has this flow"
        )
    changed = [flow for flow in flows if installed.get(flow.name) != checksum(flow)]
    unchanged = [flow for flow in flows if flow not in changed and flow.name not in with_rules]
    for flow in (*changed, *unchanged):
        connection.execute("DELETE FROM flow_rules WHERE flow = %s", (flow.name,))
        connection.execute("INSERT INTO flow_rules VALUES (%s, %s, %s)", rules_of(flow))
    for flow in changed:
        show(connection, flow)
    return changed, unchanged


def show(connection: psycopg.Connection, flow: Flow) -> None:
    """Store the checksum of a flow, and its states for the views."""
    for table in ("flow_tables", "flow_states"):
        delete = sql.SQL("DELETE FROM {} WHERE flow = %s").format(sql.Identifier(table))
        connection.execute(delete, (flow.name,))
    connection.execute("INSERT INTO flow_tables VALUES (%s, %s)", (flow.name, checksum(flow)))
    for state, row in flow.rows.items():
        connection.execute(
            "INSERT INTO flow_states (flow, state, place, is_end, code)"
            " VALUES (%s, %s, %s, %s, %s)",
            (flow.name, state, row.place, isinstance(row, End), flow.codes.get(state)),
        )


def _stored_rules(connection: psycopg.Connection) -> list[FlowRules]:
    cursor = connection.execute("SELECT flow, answers, rests FROM flow_rules ORDER BY flow")
    return [FlowRules(*row) for row in cursor.fetchall()]


def _replace_all(connection: psycopg.Connection) -> None:
    """Check all rows against the new rules while the tables are locked against writes. If a row
    violates them, nothing changes.
    """
    for table in CHECKED:
        try:
            # A savepoint, so that the flow of a row that violates the rules can be looked up.
            with connection.transaction(), _lockable(table):
                _replace(connection, table, "")
        except psycopg.errors.CheckViolation as fault:
            raise MigrationRefused(
                f"flow {_violated_flow(connection, table)}: {table} has rows that the new version"
                " of this flow does not allow; the old version stays in force"
            ) from fault


def _replace(connection: psycopg.Connection, table: str, checked: str = "NOT VALID") -> None:
    """Replace the constraint of a table, unless it is already built from the stored rules.

    The comment on the constraint contains a hash of these rules. The same statement drops the
    separate constraints that older versions made for each flow.
    """
    rules = _stored_rules(connection)
    rule = CHECKED[table](rules)
    mark = f"made of the table flow_rules: {hashlib.sha256(rule.encode()).hexdigest()}"
    existing = connection.execute(
        "SELECT FROM pg_constraint"
        " WHERE conrelid = %s::regclass AND conname = %s AND contype = 'c'"
        " AND obj_description(oid, 'pg_constraint') = %s",
        (table, CONSTRAINT, mark),
    ).fetchone()
    if existing is not None or not rules:
        return
    names = {CONSTRAINT, *(f"flow_{flow}" for flow, _, _ in rules)}
    changes = [
        sql.SQL("DROP CONSTRAINT IF EXISTS {}").format(sql.Identifier(name))
        for name in sorted(names)
    ]
    add = sql.SQL("ADD CONSTRAINT {} CHECK ({}) {}")
    changes.append(add.format(sql.Identifier(CONSTRAINT), sql.SQL(rule), sql.SQL(checked)))
    target = sql.Identifier(table)
    connection.execute(sql.SQL("ALTER TABLE {} {}").format(target, sql.SQL(", ").join(changes)))
    comment = sql.SQL("COMMENT ON CONSTRAINT {} ON {} IS {}")
    connection.execute(comment.format(sql.Identifier(CONSTRAINT), target, sql.Literal(mark)))


def _validate(connection: psycopg.Connection, table: str) -> bool:
    """Check the rows that are older than the constraint. The engine can run meanwhile."""
    not_validated = connection.execute(
        "SELECT FROM pg_constraint"
        " WHERE conrelid = %s::regclass AND conname = %s AND NOT convalidated",
        (table, CONSTRAINT),
    ).fetchone()
    if not_validated is None:
        return False
    validate = sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}")
    try:
        with connection.transaction():
            connection.execute(validate.format(sql.Identifier(table), sql.Identifier(CONSTRAINT)))
    except psycopg.errors.CheckViolation as fault:
        raise MigrationRefused(
            f"flow {_violated_flow(connection, table)}: {table} has rows that this flow does not"
            " allow. They were written while a constraint was missing; new rows are checked. Find"
            " out what wrote them, correct them, and run `tidegate migrate` again"
        ) from fault
    return True


def _violated_flow(connection: psycopg.Connection, table: str) -> str:
    """The flow of a row that violates the rules. Reads the table up to the first such row."""
    rule = CHECKED[table](_stored_rules(connection))
    statement = sql.SQL("SELECT flow FROM {} WHERE NOT ({}) LIMIT 1")
    row = connection.execute(statement.format(sql.Identifier(table), sql.SQL(rule))).fetchone()
    # The row may have been moved to the archive in the meantime.
    return str(row[0]) if row else "unknown"


@contextmanager
def _lockable(table: str) -> Iterator[None]:
    try:
        yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as fault:
        raise MigrationRefused(
            f"{table} is locked by another session. The flows that were installed stay in force."
            " Run `tidegate migrate` again"
        ) from fault
