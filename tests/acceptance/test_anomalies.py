"""FND: money is never spent twice, lost or created, tested with real kills."""

import httpx2
import pytest
from ulid import ULID

from tests.acceptance.rig import Stack, User, until
from tests.acceptance.scenes import CID, killed_at
from tidegate.core.answers import Done

FAULT = """
CREATE FUNCTION break_down() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the disk of this table is full' USING ERRCODE = 'P0001'; END $$;
CREATE TRIGGER break_down BEFORE INSERT ON history FOR EACH ROW
  WHEN (NEW.flow = 'internal_transfer' AND NEW.verb = 'VERB') EXECUTE FUNCTION break_down();
"""
REPAIR = "DROP TRIGGER break_down ON history; DROP FUNCTION break_down()"


def id_of(user: User) -> str:
    [(id_, _, _)] = user.transfers()
    return str(ULID.from_uuid(id_))


def operations(user: User, verb: str) -> int:
    """How often the ledger has moved money of this user by this verb."""
    [(count,)] = user.stack.rows(
        "SELECT count(*) FROM ledger_operations AS o JOIN transfers AS t ON t.id = o.transfer_id"
        " WHERE t.owner = %s AND o.verb = %s AND t.flow = 'internal_transfer' AND o.delta <> 0",
        user.owner,
        verb,
    )
    return int(count)


@pytest.mark.slow
def test_FND_001_the_source_is_debited_once_however_often_it_is_asked(stack: Stack) -> None:
    """The core debits, the process dies, the next one asks again, and the client repeats too."""
    user = killed_at(stack, "after debit", "out")
    stack.start_api()
    for _ in range(5):
        reply = user.move("out", "10", cid=CID)
        assert (reply.status, reply.body["state"]) == (200, "COMMITTED")
    user.has(110, 90)
    # Exactly the remaining amount can still be spent.
    assert user.move("out", "90.000001").code == "INSUFFICIENT_BALANCE"
    assert user.move("out", "90").status == 201
    user.has(200, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("direction", "closed"), [("in", "SPOT"), ("out", "FUNDING")])
def test_FND_002_a_refused_target_is_compensated_although_the_process_dies(
    stack: Stack, direction: str, closed: str
) -> None:
    """It dies when it is the only one that knows the refusal."""
    moment = "after credit" if direction == "in" else "before record of COMPENSATING"
    user = killed_at(stack, moment, direction, closed=closed)
    user.has_in_flight(*((90, 100, 10) if direction == "in" else (100, 90, 10)))
    stack.start_api()
    user.ends(id_of(user), "ROLLED_BACK")
    user.has(100, 100)


@pytest.mark.slow
def test_FND_002_a_target_that_is_away_is_asked_until_it_answers(stack: Stack) -> None:
    stack.start_api()
    user = stack.user(funding=100, spot=100)
    stack.core.kill()
    reply = user.move("in", "10", wait_s=1)
    assert (reply.status, reply.body["state"]) == (202, "PENDING")
    req_id = reply.body["req_id"]
    until(lambda: user.shown(req_id)["attempts"] >= 2)
    assert user.state(req_id) == "TARGET_PENDING"
    stack.start_core()
    user.ends(req_id, "COMMITTED")
    user.has(90, 110)


@pytest.mark.slow
def test_FND_003_the_target_is_credited_once_however_often_it_is_asked(stack: Stack) -> None:
    user = killed_at(stack, "after credit", "in")
    user.has_in_flight(90, 110, 0)
    stack.recover_into_death("after credit")
    stack.start_api()
    user.ends(id_of(user), "COMMITTED")
    user.has(90, 110)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before an append", "after an append", "after a sync"])
@pytest.mark.parametrize(("direction", "after"), [("in", (90, 110)), ("out", (110, 90))])
def test_FND_004_a_core_killed_in_any_moment_of_its_log_loses_nothing(
    stack: Stack, direction: str, after: tuple[int, int], moment: str
) -> None:
    """Before the log is written, after that, and when it is durable but not answered."""
    stack.start_api()
    user = stack.user(funding=100, spot=100)
    stack.core.kill()
    fused = stack.start_core(moment)
    fused.arm()
    reply = user.move(direction, "10", wait_s=0, cid=CID)
    assert reply.status == 202
    fused.dies(moment)
    stack.start_core()
    user.ends(reply.body["req_id"], "COMMITTED")
    user.has(*after)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", ["before creation", "after creation", "before record of COMMITTED"]
)
@pytest.mark.parametrize(("direction", "after"), [("in", (90, 110)), ("out", (110, 90))])
def test_FND_004_all_processes_killed_at_once_lose_nothing(
    stack: Stack, direction: str, after: tuple[int, int], moment: str
) -> None:
    user = killed_at(stack, moment, direction)
    stack.core.kill()
    stack.start_core()
    stack.start_api()
    reply = user.move(direction, "10", cid=CID)
    assert reply.status in (200, 201)
    assert reply.body["state"] == "COMMITTED"
    assert len(user.transfers()) == 1
    user.has(*after)


@pytest.mark.slow
def test_FND_005_what_the_cores_log_has_and_the_database_has_not_is_made_equal(
    stack: Stack,
) -> None:
    """The core's Done is durable, the database has SOURCE_PENDING, and then all processes die."""
    user = killed_at(stack, "after debit", "out")
    stack.core.kill()
    [(id_, state, version)] = user.transfers()
    assert (state, version) == ("SOURCE_PENDING", 0)
    assert stack.rows("SELECT version FROM history WHERE transfer_id = %s", id_) == []
    stack.start_core()
    [answer] = stack.ask_core(lambda core: core.query([(id_, 0)]))
    assert isinstance(answer, Done), "the log has forgotten the debit"
    user.has_in_flight(100, 90, 10)
    stack.start_api()
    user.ends(id_of(user), "COMMITTED")
    [answer] = stack.ask_core(lambda core: core.query([(id_, 0)]))
    assert isinstance(answer, Done)
    answers = stack.rows(
        "SELECT verb, answer FROM history WHERE transfer_id = %s ORDER BY version", id_
    )
    assert answers == [("debit", "done"), ("credit", "done")]
    user.has(110, 90)


@pytest.mark.slow
def test_FND_006_killed_inside_a_transaction_nothing_of_it_has_happened(stack: Stack) -> None:
    """The debit, its operation, the transfer, cid and history were written but not committed."""
    user = killed_at(stack, "before creation", "in")
    user.has(100, 100)
    assert user.transfers() == []
    assert stack.rows("SELECT cid FROM cids WHERE owner = %s AND cid = %s", user.owner, CID) == []
    assert stack.rows("SELECT flow FROM history WHERE flow = 'internal_transfer'") == []
    statement = "SELECT verb FROM ledger_operations WHERE owner = %s AND book = 'FUNDING'"
    assert stack.rows(statement, user.owner) == [("credit",)], "only the first deposit"


@pytest.mark.slow
def test_FND_006_a_creation_whose_last_statement_fails_has_moved_nothing(stack: Stack) -> None:
    stack.start_api()
    user = stack.user(funding=100, spot=100)
    stack.rows(FAULT.replace("VERB", "debit"))
    reply = user.move("in", "10", cid=CID)
    assert (reply.status, reply.code, reply.body["retryable"]) == (500, "SYSTEM_ERROR", True)
    assert "disk" not in str(reply.body), "the cause belongs in the log only"
    assert (user.transfers(), operations(user, "debit")) == ([], 0)
    user.has(100, 100)
    stack.rows(REPAIR)
    assert user.move("in", "10", cid=CID).status == 201
    assert operations(user, "debit") == 1
    user.has(90, 110)


@pytest.mark.slow
def test_FND_006_a_credit_whose_history_fails_is_not_credited(stack: Stack) -> None:
    """FUNDING is credited, then the history cannot be written: so both are rolled back."""
    stack.start_api()
    user = stack.user(funding=100, spot=100)
    stack.rows(FAULT.replace("VERB", "credit"))
    reply = user.move("out", "10", wait_s=1)
    assert (reply.status, reply.body["state"]) == (202, "PENDING")
    until(lambda: "record_refused" in stack.api.output())
    assert operations(user, "credit") == 0
    user.has_in_flight(100, 90, 10)
    stack.rows(REPAIR)
    user.ends(reply.body["req_id"], "COMMITTED")
    assert operations(user, "credit") == 1
    user.has(110, 90)


@pytest.mark.slow
def test_FND_006_a_session_cut_by_the_server_leaves_nothing_half_done(stack: Stack) -> None:
    """All database sessions are terminated again and again while transfers are made."""
    stack.start_api()
    user = stack.user(funding=100, spot=100)
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    cut += " WHERE application_name = 'tidegate' AND datname = current_database()"
    for number in range(20):
        if number % 4 == 0:
            stack.rows(cut)
        direction = "in" if number % 2 else "out"
        answers = []
        for _ in range(5):
            try:
                answers.append(user.move(direction, "1", cid=f"cut-{number}").status)
            except httpx2.TransportError:
                continue
            if answers[-1] in (200, 201):
                break
        assert answers[-1] in (200, 201), answers
    assert len(user.transfers()) == 20
    user.has(100, 100)
