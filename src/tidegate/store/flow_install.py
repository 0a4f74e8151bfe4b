"""Installing flows: what each allows goes into a table, and from there into one constraint for all.

The constraint of each table is compared with the rules that are kept, and made again if it differs.
So an installation that was killed, at any line, is completed by the next one. A changed flow is
checked against all rows in the transaction that installs it. Where a flow is the same and only its
constraint is replaced, rows are checked afterwards, beside the engine.
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
# Transfers first, as the engine locks. An archived transfer is judged by its flow for ever, and so
# holds a change of it up as well.
CHECKED: Mapping[str, Callable[[Iterable[FlowRules]], str]] = {
    "transfers": state_rule,
    "history": history_rule,
    "archived_transfers": state_rule,
    "archived_history": history_rule,
}


def install(
    connection: psycopg.Connection, path: Sequence[str], flows: Sequence[Flow]
) -> Iterator[str]:
    """Install the flows, and yield what was changed."""
    with connection.transaction():
        set_path(connection, path)
        changed, joining = _keep(connection, flows)
        if changed:
            _replace_all(connection)
    for table in CHECKED:
        # A transaction for each: whoever locks two tables of a working engine can deadlock with it.
        with connection.transaction(), _lockable(table):
            set_path(connection, path)
            _replace(connection, table)
    yield from (f"flow {flow.name}" for flow in flows if flow in changed or flow in joining)
    for table in CHECKED:
        with connection.transaction(), _lockable(table):
            set_path(connection, path)
            checked = _validate(connection, table)
        if checked:
            yield f"{CONSTRAINT} of {table}"


def _keep(connection: psycopg.Connection, flows: Sequence[Flow]) -> tuple[list[Flow], list[Flow]]:
    """Write down what the flows allow; return those that changed, and those that an older version
    installed as they are."""
    for flow in flows:
        identifier(f"flow_{flow.name}")
        if any(TAB in state for state in flow.rows):
            raise MigrationRefused(f"flow {flow.name}: the name of a state has a tab in it")
    rows = connection.execute("SELECT flow, checksum FROM flow_tables").fetchall()
    installed: Mapping[str, str] = dict(rows)
    kept = {rules.flow for rules in _kept(connection)}
    named = {flow.name for flow in flows}
    if CONSTRAINT.removeprefix("flow_") in installed.keys() - kept - named:
        raise MigrationRefused(
            f"an older version gave the name {CONSTRAINT} to the constraint of a flow: first run"
            " `tidegate migrate`, or `migrate()`, of the program that has this flow"
        )
    changed = [flow for flow in flows if installed.get(flow.name) != checksum(flow)]
    joining = [flow for flow in flows if flow not in changed and flow.name not in kept]
    for flow in (*changed, *joining):
        connection.execute("DELETE FROM flow_rules WHERE flow = %s", (flow.name,))
        connection.execute("INSERT INTO flow_rules VALUES (%s, %s, %s)", rules_of(flow))
    for flow in changed:
        show(connection, flow)
    return changed, joining


def show(connection: psycopg.Connection, flow: Flow) -> None:
    """Keep the checksum of a flow, and its states for the views."""
    for table in ("flow_tables", "flow_states"):
        forget = sql.SQL("DELETE FROM {} WHERE flow = %s").format(sql.Identifier(table))
        connection.execute(forget, (flow.name,))
    connection.execute("INSERT INTO flow_tables VALUES (%s, %s)", (flow.name, checksum(flow)))
    for state, place in flow.rows.items():
        connection.execute(
            "INSERT INTO flow_states (flow, state, place, is_end, code)"
            " VALUES (%s, %s, %s, %s, %s)",
            (flow.name, state, place.place, isinstance(place, End), flow.codes.get(state)),
        )


def _kept(connection: psycopg.Connection) -> list[FlowRules]:
    found = connection.execute("SELECT flow, answers, rests FROM flow_rules ORDER BY flow")
    return [FlowRules(*row) for row in found.fetchall()]


def _replace_all(connection: psycopg.Connection) -> None:
    """Check all rows by the new rules while nobody writes. If one contradicts, nothing changes."""
    for table in CHECKED:
        try:
            # A savepoint: if a row contradicts the rules, we ask for its flow afterwards.
            with connection.transaction(), _lockable(table):
                _replace(connection, table, "")
        except psycopg.errors.CheckViolation as fault:
            raise MigrationRefused(
                f"flow {_contradicted(connection, table)}: {table} holds rows that its new table"
                " does not allow; the old one stays in force"
            ) from fault


def _replace(connection: psycopg.Connection, table: str, checked: str = "NOT VALID") -> None:
    """Let a table hold only what the installed flows allow, unless its constraint says so already.

    The constraint's comment says which rules it was made of. The flows' older constraints go in the
    same statement.
    """
    rules = _kept(connection)
    rule = CHECKED[table](rules)
    mark = f"made of the table flow_rules: {hashlib.sha256(rule.encode()).hexdigest()}"
    made = connection.execute(
        "SELECT FROM pg_constraint"
        " WHERE conrelid = %s::regclass AND conname = %s AND contype = 'c'"
        " AND obj_description(oid, 'pg_constraint') = %s",
        (table, CONSTRAINT, mark),
    ).fetchone()
    if made is not None or not rules:
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
    """Check the rows that were there before the constraint. The engine goes on meanwhile."""
    open_ = connection.execute(
        "SELECT FROM pg_constraint"
        " WHERE conrelid = %s::regclass AND conname = %s AND NOT convalidated",
        (table, CONSTRAINT),
    ).fetchone()
    if open_ is None:
        return False
    validate = sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}")
    try:
        with connection.transaction():
            connection.execute(validate.format(sql.Identifier(table), sql.Identifier(CONSTRAINT)))
    except psycopg.errors.CheckViolation as fault:
        raise MigrationRefused(
            f"flow {_contradicted(connection, table)}: {table} holds rows that its table does not"
            " allow. They were written while a constraint was missing; new rows are checked. Find"
            " out who wrote them, correct them, and run `tidegate migrate` again"
        ) from fault
    return True


def _contradicted(connection: psycopg.Connection, table: str) -> str:
    """The flow of a row that the rules do not allow. Reads the table to the first such row."""
    rule = CHECKED[table](_kept(connection))
    statement = sql.SQL("SELECT flow FROM {} WHERE NOT ({}) LIMIT 1")
    found = connection.execute(statement.format(sql.Identifier(table), sql.SQL(rule))).fetchone()
    # Of a row that was moved to the archive just now, nothing is left here.
    return str(found[0]) if found else "unknown"


@contextmanager
def _lockable(table: str) -> Iterator[None]:
    try:
        yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as fault:
        raise MigrationRefused(
            f"{table} is locked by another session. What was installed stays in force: run"
            " `tidegate migrate` again"
        ) from fault
