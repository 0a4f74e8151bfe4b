"""The API as a process: it exits when its engine fails by a bug, and on SIGTERM."""

import asyncio
import signal
import socket
import threading
import time

import httpx2
import pytest

from tests.acceptance.rig import Answer, Stack, User, answer_of, token, transfer_body

pytestmark = pytest.mark.slow
EXIT_S = 40.0


def test_a_process_whose_request_loop_fails_answers_waiting_requests_and_exits(
    stack: Stack,
) -> None:
    api = stack.start_api(moment="bug after creation")
    user = stack.user(funding=100)
    api.arm()
    answers = asyncio.run(at_once(stack, user, 20))
    assert api.popen.wait(EXIT_S) == 1
    assert {answer.status for answer in answers} <= {500, 503}, answers
    made = [row for row in user.transfers() if row[1] != "FAILED"]
    assert made, "the bug must raise after a commit"
    unknown = [answer for answer in answers if answer.code != "OUTCOME_UNKNOWN"]
    assert len(made) <= len(answers) - len(unknown), (
        "a created transfer was reported as not created"
    )
    for answer in answers:
        assert answer.body["retryable"] is True, "all have a cid"
    assert "engine_died" in api.output()
    stack.start_api()
    repeated = asyncio.run(at_once(stack, user, 20))
    assert {answer.status for answer in repeated} <= {200, 201, 202}
    for answer in repeated:
        user.ends(answer.body["req_id"], "COMMITTED")
    user.has(80, 20)


def test_without_a_cid_a_possibly_created_transfer_is_not_retryable(stack: Stack) -> None:
    api = stack.start_api(moment="bug after creation")
    user = stack.user(funding=100)
    api.arm()
    answer = user.move("in", "1")
    assert (answer.status, answer.code) == (503, "OUTCOME_UNKNOWN")
    assert answer.body["retryable"] is False
    assert api.popen.wait(EXIT_S) == 1


async def at_once(stack: Stack, user: User, count: int) -> list[Answer]:
    headers = {"Authorization": f"Bearer {token(str(user.owner), 'user')}"}
    async with httpx2.AsyncClient(base_url=stack.api.url, headers=headers, timeout=30) as client:
        bodies = [transfer_body("in", "1") | {"cid": f"c{number}"} for number in range(count)]
        path = "/api/v1/internal_transfer"
        asking = [client.post(path, json=body, headers={"Prefer": "wait=10"}) for body in bodies]
        return [answer_of(response) for response in await asyncio.gather(*asking)]


def test_sigterm_ends_it_in_bounded_time_although_a_client_does_not_read(stack: Stack) -> None:
    api = stack.start_api()
    client = socket.create_connection(("127.0.0.1", api.port))
    asking = threading.Thread(target=ask_for_ever, args=(client,))
    asking.start()
    time.sleep(2.0)  # By then the kernel keeps no more, and the API cannot write.
    began_s = time.monotonic()
    api.signal(signal.SIGTERM)
    api.popen.wait(EXIT_S)
    assert time.monotonic() - began_s < 25.0
    asking.join()
    client.close()


def ask_for_ever(client: socket.socket) -> None:
    """Request a large page until the socket is full, without reading the replies."""
    client.settimeout(1.0)
    try:
        while True:
            client.send(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
    except OSError:
        return
