"""A relay between all clients and PostgreSQL, across its restarts. It can drop a reply."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.engine.proxy import Proxy

SOCKET = ".s.PGSQL.5432"
SERVER_PORT = 5433  # The port of the server's own socket, for clients without the relay.
POLL_S = 0.02


class Relay:
    """Listens under the name of the server's socket, which it renames.

    A socket can be reached under any name of its file. Each new server creates its socket again,
    and each time it is renamed, so that the supervisor, the API and the workers notice nothing.
    """

    def __init__(self, cluster: Path) -> None:
        self.cluster = cluster
        self.server_socket = cluster / f".s.PGSQL.{SERVER_PORT}"
        self.proxy = Proxy(str(self.server_socket))
        self._inode = 0
        self._server: asyncio.Server | None = None

    def _has_name(self) -> bool:
        try:
            return (self.cluster / SOCKET).stat().st_ino == self._inode
        except FileNotFoundError:
            return True  # No server runs yet.

    async def take_name(self) -> None:
        (self.cluster / SOCKET).rename(self.server_socket)
        self.close()
        # Under another name first, because a link never replaces the socket of a newer server.
        temporary = self.cluster / ".s.PGSQL.5434"
        temporary.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self.proxy.serve, temporary)
        self._inode = temporary.stat().st_ino
        with contextlib.suppress(FileExistsError):  # A newer server: `watch` will rename it.
            (self.cluster / SOCKET).hardlink_to(temporary)
        temporary.unlink()

    def close(self) -> None:
        """Accept no new connections. Open ones remain."""
        if self._server is not None:
            self._server.close()

    async def watch(self) -> None:
        while True:
            if not self._has_name():
                with contextlib.suppress(FileNotFoundError):  # The server has just ended again.
                    await self.take_name()
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def relayed(cluster: Path) -> AsyncIterator[Relay]:
    relay = Relay(cluster)
    await relay.take_name()
    watching = asyncio.ensure_future(relay.watch())
    try:
        yield relay
    finally:
        watching.cancel()
        relay.close()
        # Give the server's socket its own name again.
        with contextlib.suppress(FileNotFoundError):
            if relay._has_name():
                relay.server_socket.rename(cluster / SOCKET)
