"""A client that does not read its replies cannot block a connection or a shutdown for ever."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest
import uvloop

import tidegate.service.connections
from tests.service.raw_client import HUGE, Api, Run, get
from tidegate.service.connections import server_of

WRITE_S, SHUTDOWN_S, SOON_S = 1.0, 1.0, 8.0


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(tidegate.service.connections, "WRITE_S", WRITE_S)
    monkeypatch.setattr(tidegate.service.connections, "SHUTDOWN_S", SHUTDOWN_S)

    def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(scenario())

    return run


class Running:
    """A server, and raw sockets that send requests and read nothing."""

    def __init__(self) -> None:
        self.api = Api()
        self.server = server_of(self.api)
        self.done = asyncio.ensure_future(self.server.serve())

    async def start(self) -> None:
        while not self.server.started:  # noqa: ASYNC110  Uvicorn has no event for this.
            await asyncio.sleep(0.01)

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def connect(self, *requests: bytes) -> socket.socket:
        client = socket.socket()
        client.connect(self.server.servers[0].sockets[0].getsockname())
        client.setblocking(False)  # noqa: FBT003
        client.send(b"".join(requests))
        return client

    async def until(self, connections: int) -> None:
        async with asyncio.timeout(SOON_S):
            while self.connections != connections:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        self.server.should_exit = True
        await asyncio.wait_for(self.done, SOON_S)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Running]:
    scenario = Running()
    await scenario.start()
    try:
        yield scenario
    finally:
        scenario.server.force_exit = True
        await scenario.end()


async def read(client: socket.socket) -> int:
    receiving = asyncio.get_running_loop().sock_recv(client, 1_000_000)
    received = len(await asyncio.wait_for(receiving, SOON_S))
    assert received, "the connection was cut off"
    return received


def test_a_client_that_never_reads_is_cut_off(run: Run) -> None:
    async def scenario() -> None:
        async with running() as server:
            client = server.connect(get("/huge"), get("/next"))
            await server.until(1)
            await server.until(0)
            assert server.api.paths in (["/huge"], ["/huge", "/next"])
            client.close()

    run(scenario)


def test_a_client_that_never_reads_its_last_reply_is_cut_off(run: Run) -> None:
    async def scenario() -> None:
        async with running() as server:
            client = server.connect(get("/huge", "Connection: close"))
            await server.until(1)
            await server.until(0)
            client.close()

    run(scenario)


def test_a_client_that_reads_in_time_gets_the_whole_reply(run: Run) -> None:
    async def scenario() -> None:
        async with running() as server:
            client, received = server.connect(get("/huge")), 0
            while received < HUGE:
                received += await read(client)
            client.close()

    run(scenario)


@pytest.mark.parametrize("requests", [[get("/huge")], [get("/huge"), get("/next")], [get("/slow")]])
def test_a_shutdown_does_not_wait_for_ever_for_a_client(
    run: Run, monkeypatch: pytest.MonkeyPatch, requests: list[bytes]
) -> None:
    monkeypatch.setattr(tidegate.service.connections, "WRITE_S", 600.0)

    async def scenario() -> None:
        async with running() as server:
            client = server.connect(*requests)
            await server.until(1)
            while not server.api.paths:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            began_s = asyncio.get_running_loop().time()
            await server.end()
            assert asyncio.get_running_loop().time() - began_s < SHUTDOWN_S + 3.0
            client.close()

    run(scenario)
