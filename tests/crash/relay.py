"""Stands between everybody and PostgreSQL, whoever starts it again, and can swallow a reply."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.engine.proxy import Proxy

SOCKET = ".s.PGSQL.5432"
BEHIND_PORT = 5433  # Where the server's own socket is put: for those who want no relay.
LOOK_S = 0.02


class Relay:
    """Takes the name of the server's socket, and the server's own gets another.

    A socket is reached by whatever name it has. Each new server makes its socket anew, and each
    time it is put aside, so that the supervisor, the API and the workers notice nothing.
    """

    def __init__(self, cluster: Path) -> None:
        self.cluster = cluster
        self.behind = cluster / f".s.PGSQL.{BEHIND_PORT}"
        self.proxy = Proxy(str(self.behind))
        self._ours = 0
        self._server: asyncio.Server | None = None

    def _taken(self) -> bool:
        try:
            return (self.cluster / SOCKET).stat().st_ino == self._ours
        except FileNotFoundError:
            return True  # No server is there yet.

    async def take(self) -> None:
        (self.cluster / SOCKET).rename(self.behind)
        self.close()
        # Under another name first, because a link never takes the place of a server's socket.
        fresh = self.cluster / ".s.PGSQL.5434"
        fresh.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self.proxy.serve, fresh)
        self._ours = fresh.stat().st_ino
        with contextlib.suppress(FileExistsError):  # A newer server is there: at the next look.
            (self.cluster / SOCKET).hardlink_to(fresh)
        fresh.unlink()

    def close(self) -> None:
        """Nobody new; who is connected stays."""
        if self._server is not None:
            self._server.close()

    async def watch(self) -> None:
        while True:
            if not self._taken():
                with contextlib.suppress(FileNotFoundError):  # The server has just gone again.
                    await self.take()
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def relayed(cluster: Path) -> AsyncIterator[Relay]:
    relay = Relay(cluster)
    await relay.take()
    watching = asyncio.ensure_future(relay.watch())
    try:
        yield relay
    finally:
        watching.cancel()
        relay.close()
        # The server finds its socket where it left it.
        with contextlib.suppress(FileNotFoundError):
            if relay._taken():
                relay.behind.rename(cluster / SOCKET)
