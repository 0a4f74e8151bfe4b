"""CON: many concurrent requests to two API processes on one database, which behave as one."""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.acceptance.rig import Answer, Stack, User, transfer_body, until
from tests.acceptance.scenes import killed_at
from tests.conftest import SCHEMA


def crowd(user: User, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """Send all bodies at once, each on its own connection, distributed over all APIs."""
    ports = [api.port for api in user.stack.apis]

    async def main() -> list[Answer]:
        posts = (post(ports[n % len(ports)], body, user.token) for n, body in enumerate(bodies))
        return await asyncio.gather(*posts)

    return asyncio.run(main())


async def post(port: int, body: dict[str, Any], auth: str) -> Answer:
    """A minimal HTTP client: a full one takes ten times as long for a thousand requests."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = json.dumps(body)
    head = [
        "POST /api/v1/internal_transfer HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {auth}",
        "Content-Type: application/json",
        f"Content-Length: {len(raw)}",
        "Prefer: wait=10",
        "Connection: close",
    ]
    writer.write("\r\n".join([*head, "", raw]).encode())
    reply = await reader.read()
    writer.close()
    await writer.wait_closed()
    top, _, text = reply.partition(b"\r\n\r\n")
    return Answer(int(top.split()[1]), json.loads(text), {})


@pytest.mark.slow
def test_CON_001_of_several_workers_on_one_transfer_one_wins_and_the_others_skip(
    stack: Stack,
) -> None:
    """Leases expire while the core is paused, so that four processes ask about the same rows."""
    for _ in range(2):
        stack.start_worker(lease_s=0.3)
        stack.start_api(lease_s=0.3)
    user = stack.user(funding=100, spot=100)
    stack.core.signal(signal.SIGSTOP)
    batch = {
        "transfers": [
            transfer_body(direction, "5") for direction in ("in", "out") for _ in range(3)
        ]
    }
    path, headers = "/api/v1/internal_transfers", {"Prefer": "wait=0"}
    replies = stack.api.call("POST", path, batch, user.token, headers=headers)
    made = [item["transfer"]["req_id"] for item in replies.body["results"]]
    # The first attempt is made by the process that created the transfer.
    until(lambda: min(user.shown(req_id)["attempts"] for req_id in made) >= 3)
    stack.core.signal(signal.SIGCONT)
    for req_id in made:
        user.ends(req_id, "COMMITTED")
    time.sleep(0.5)  # Wait for late answers, which must change nothing.
    assert [(state, version) for _, state, version in user.transfers()] == [("COMMITTED", 2)] * 6
    answers = stack.rows(
        "SELECT transfer_id, array_agg(version ORDER BY version) FROM history"
        " WHERE flow = 'internal_transfer' GROUP BY transfer_id"
    )
    assert [versions for _, versions in answers] == [[0, 1]] * 6
    user.has(100, 100)
    for child in stack.children:
        assert "record_refused" not in child.output(), "a late answer is not an error"


def test_CON_002_two_transfers_of_the_same_amount_at_once_are_two(shared: Stack) -> None:
    user = shared.user(funding=100)
    replies = crowd(user, [transfer_body("in", "10")] * 2)
    assert [answer.status for answer in replies] == [201, 201]
    assert len({answer.body["req_id"] for answer in replies}) == 2
    assert [state for _, state, _ in user.transfers()] == ["COMMITTED"] * 2
    user.has(80, 20)


@pytest.mark.parametrize(("account", "direction"), [("FUNDING", "in"), ("SPOT", "out")])
def test_CON_003_a_transfer_and_a_withdrawal_cannot_exceed_the_balance(
    shared: Stack, account: str, direction: str
) -> None:
    for _ in range(5):
        user = shared.user(100, 1) if direction == "in" else shared.user(1, 100)
        out = {"user_id": user.owner, "account": account, "asset": "USDT", "amount": "60"}
        out |= {"cid": "leave"}
        with ThreadPoolExecutor(2) as pool:
            asking = pool.submit(user.move, direction, "60", api=shared.apis[0])
            path = "/external_withdrawal"
            leaving = pool.submit(shared.apis[1].desk, "POST", path, out)
            moved, left = asking.result(), leaving.result()
        until(lambda: not lanes(user))  # noqa: B023  It is called here and now.
        moved_well = "COMMITTED" in [state for _, state, _ in user.transfers()]
        left_well = len(withdrawals(user)) == 1
        assert moved_well != left_well, (moved, left)
        lost = moved if left_well else left
        assert (lost.status, lost.code) == (422, "INSUFFICIENT_BALANCE")
        rest = {"in": (40, 61), "out": (61, 40)} if moved_well else {"in": (40, 1), "out": (1, 40)}
        user.has(*rest[direction])


def lanes(user: User) -> list[tuple[Any, ...]]:
    statement = "SELECT lane FROM transfers WHERE owner = %s AND lane IS NOT NULL"
    return user.stack.rows(statement, user.owner)


def withdrawals(user: User) -> list[tuple[Any, ...]]:
    statement = "SELECT id FROM transfers WHERE owner = %s AND flow = %s AND state = 'COMPLETED'"
    return user.stack.rows(statement, user.owner, "external_withdrawal")


@contextmanager
def locked(user: User) -> Iterator[None]:
    """Another session holds the row of the user's FUNDING account."""
    options = f"-c search_path={SCHEMA}"
    with psycopg.connect(user.stack.database, options=options) as connection:
        connection.execute(
            "SELECT available FROM ledger_accounts WHERE owner = %s AND book = 'FUNDING'"
            " FOR UPDATE",
            (user.owner,),
        )
        yield


def test_CON_004_a_balance_is_read_only_under_its_lock(shared: Stack) -> None:
    """Both wait for the row, and the second one sees the balance after the first."""
    user = shared.user(funding=100)
    with ThreadPoolExecutor(2) as pool:
        with locked(user):
            asked = [pool.submit(user.move, "in", "100", api=api) for api in shared.apis]
            time.sleep(0.5)
            assert not any(task.done() for task in asked), "no request waited for the lock"
            assert user.transfers() == []
        replies = [task.result() for task in asked]
    assert sorted(answer.status for answer in replies) == [201, 422]
    user.has(0, 100)


@pytest.mark.slow
def test_a_thousand_posts_with_one_cid_make_one_transfer(shared: Stack) -> None:
    user = shared.user(funding=100)
    replies = crowd(user, [transfer_body("in", "1") | {"cid": "one"}] * 1_000)
    assert Counter(answer.status for answer in replies) == {201: 1, 200: 999}
    assert len({answer.body["req_id"] for answer in replies}) == 1
    assert {answer.body["state"] for answer in replies} == {"COMMITTED"}
    assert len(user.transfers()) == 1
    user.has(99, 1)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["in", "out"])
def test_as_many_of_two_hundred_succeed_as_the_balance_allows(
    shared: Stack, direction: str
) -> None:
    user = shared.user(70, 1) if direction == "in" else shared.user(1, 70)
    replies = crowd(user, [transfer_body(direction, "1")] * 200)
    assert Counter(answer.status for answer in replies) == {201: 70, 422: 130}
    assert {answer.code for answer in replies if answer.status == 422} == {"INSUFFICIENT_BALANCE"}
    user.has(*((0, 71) if direction == "in" else (71, 0)))


def test_what_one_api_made_the_other_knows(shared: Stack) -> None:
    user, [first, second] = shared.user(funding=100), shared.apis
    made = user.move("in", "10", cid="mine", api=first)
    again = user.move("in", "10", cid="mine", api=second)
    assert (made.status, again.status) == (201, 200)
    path = f"/api/v1/internal_transfer/{made.body['req_id']}"
    assert (
        first.call("GET", path, auth=user.token).body
        == second.call("GET", path, auth=user.token).body
    )
    listed = [
        api.call("GET", "/api/v1/internal_transfer", auth=user.token) for api in (first, second)
    ]
    assert listed[0].body == listed[1].body
    assert len(listed[0].body["transfers"]) == 1
    user.has(90, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("direction", "after"), [("in", (90, 110)), ("out", (110, 90))])
def test_two_workers_alone_finish_what_a_dead_api_left(
    stack: Stack, direction: str, after: tuple[int, int]
) -> None:
    user = killed_at(stack, "after creation", direction)
    for _ in range(2):
        stack.start_worker()
    until(lambda: [state for _, state, _ in user.transfers()] == ["COMMITTED"])
    user.has(*after)
