"""The background tasks of the API and of a worker: each is supervised and reports failures."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, NamedTuple

import httpx2
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.conftest import SCHEMA
from tidegate import serving
from tidegate.leadership import Leadership
from tidegate.service.connections import server_of
from tidegate.serving import serve_api, serve_worker
from tidegate.settings import Settings

pytestmark = pytest.mark.slow

_numbers = count()
AGE = re.compile(r'^tidegate_background_age_seconds\{task="([^"]+)"\} (\S+)$', re.MULTILINE)
ALERTS = re.compile(
    r'^tidegate_alerts_total\{alarm="(\w+)",code="leader_unknown"\} (\S+)$', re.MULTILINE
)
LEADER = (
    "SELECT l.pid FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database"
    " WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()"
)


class Login(NamedTuple):
    """A database role for our processes, and a superuser who can limit it."""

    name: str
    database: str
    superuser: "psycopg.Connection[Any]"

    def limit(self, sessions: int) -> None:
        statement = sql.SQL("ALTER ROLE {} CONNECTION LIMIT {}")
        self.superuser.execute(statement.format(sql.Identifier(self.name), sql.Literal(sessions)))

    def end_leader(self) -> None:
        ended = self.superuser.execute(
            f"SELECT pg_terminate_backend(pid) FROM ({LEADER}) AS leader"
        )
        assert ended.rowcount == 1

    def end_followers(self) -> None:
        ended = self.superuser.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE usename = %s AND query LIKE %s AND pid NOT IN ({LEADER})",
            (self.name, "%pg_try_advisory_lock%"),
        )
        assert ended.rowcount == 1


@pytest.fixture
def login(database: str) -> Iterator[Login]:
    name = f"services_{next(_numbers)}"
    created = sql.SQL("CREATE ROLE {} LOGIN IN ROLE tidegate_engine").format(sql.Identifier(name))
    with psycopg.connect(database, autocommit=True) as superuser:
        superuser.execute(created)
        yield Login(name, make_conninfo(database, user=name), superuser)
        superuser.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


class Metrics:
    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def ages(self) -> dict[str, float]:
        page = (await self._client.get("/metrics")).text
        return {task: float(age) for task, age in AGE.findall(page)}

    async def done(self) -> bool:
        """Whether the tasks of the leader have just succeeded, as far as this process knows."""
        ages = await self.ages()
        return max(ages["audit"], ages["watch"], ages["leadership"]) < 0.5

    async def late(self) -> bool:
        """Whether none of these tasks has succeeded for a while."""
        ages = await self.ages()
        return min(ages["audit"], ages["watch"], ages["leadership"]) > 2.0

    async def alerts(self) -> dict[str, float]:
        """The number of leader_unknown alerts, by alarm."""
        page = (await self._client.get("/metrics")).text
        return {alarm: float(number) for alarm, number in ALERTS.findall(page)}


@asynccontextmanager
async def running(settings: Settings, *, worker: bool = False) -> AsyncIterator[Metrics]:
    """Run the program in this process, on a free port."""
    servers: list[Any] = []

    def recording(*arguments: Any) -> Any:
        servers.append(server_of(*arguments))
        return servers[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(serving, "server_of", recording)
        patched.setattr(serving, "collect_garbage_less_often", lambda: None)
        task = asyncio.ensure_future((serve_worker if worker else serve_api)(settings))
        while not (servers and servers[0].started):
            assert not task.done(), task.exception()
            await asyncio.sleep(0.01)
        host, port = servers[0].servers[0].sockets[0].getsockname()[:2]
        try:
            async with httpx2.AsyncClient(base_url=f"http://{host}:{port}", timeout=10) as client:
                yield Metrics(client)
        finally:
            servers[0].should_exit = True
            await task


def settings_for(database: str, **more: Any) -> Settings:
    return Settings(database=database, schema=SCHEMA, port=0, connections=2, **more)


def test_every_task_of_the_api_and_of_a_worker_is_supervised(database: str) -> None:
    unreachable = "http://127.0.0.1:9/keys"
    settings = settings_for(database, core="unix:/nowhere/socket", jwks_url=unreachable)
    everywhere = {"pager", "rates", "database check", "asset refresh", "retirement"}

    async def run() -> None:
        async with running(settings, worker=True) as metrics:
            assert (await metrics.ages()).keys() == everywhere
        async with running(settings) as metrics:
            assert (await metrics.ages()).keys() == everywhere | {
                *("leadership", "audit", "watch", "key refresh"),
            }

    asyncio.run(run())


async def until(check: Any) -> Any:
    """Wait until the check returns a true value. Return it."""
    async with asyncio.timeout(20):
        while not (result := await check()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return result


def test_a_process_that_knows_no_leader_raises_an_alert(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its open sessions work, but it gets no new one: it does not audit and knows no leader."""
    monkeypatch.setattr(serving, "LEAD_EVERY_S", 0.05)
    monkeypatch.setattr(serving, "LEAD_RETRY_S", 0.05)
    monkeypatch.setattr(serving, "WATCH_EVERY_S", 0.05)
    monkeypatch.setattr(serving, "LEADERLESS_S", 3.0)

    async def run() -> None:
        async with running(settings_for(login.database, audit_s=0.05)) as metrics:
            await asyncio.sleep(1.0)
            await until(metrics.done)
            login.limit(0)
            login.end_leader()
            await until(metrics.alerts)
            await until(metrics.late)
            assert await metrics.alerts() == {"CRITICAL": 1.0}
            login.limit(-1)
            await until(metrics.done)
            assert await metrics.alerts() == {"CRITICAL": 1.0, "NONE": 1.0}

    asyncio.run(run())


def test_the_tasks_of_a_follower_succeed_only_while_it_knows_a_leader(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LEAD_EVERY_S", 0.05)
    monkeypatch.setattr(serving, "LEAD_RETRY_S", 0.05)
    monkeypatch.setattr(serving, "WATCH_EVERY_S", 0.05)

    async def run() -> None:
        leader = Leadership(login.database, SCHEMA)
        await leader.check()
        assert leader.held
        try:
            async with running(settings_for(login.database, audit_s=0.05)) as metrics:
                await asyncio.sleep(1.0)
                await until(metrics.done)
                login.limit(0)
                login.end_followers()
                await until(metrics.late)
                assert leader.held, "there is a leader, but this process cannot know it"
        finally:
            await leader.close()

    asyncio.run(run())
