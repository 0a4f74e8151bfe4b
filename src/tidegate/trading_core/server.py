"""The core as a process: sockets, signals, and messages on stderr."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from tidegate.trading_core.core import Core, CoreLimits
from tidegate.trading_core.disk import DirectoryLocked, RealDisk
from tidegate.trading_core.session import converse, refuse_connection
from tidegate.trading_core.wal import LogDamaged

MAX_SOCKET_PATH = 107  # Bytes, a limit of the kernel.
LOOPBACK = "127.0.0.1"
BACKLOG = 128


class CannotListen(Exception):
    """The address to listen on cannot be used."""


def run(directory: Path, listen: str, limits: CoreLimits | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code of the process."""
    try:
        asyncio.run(serve(directory, listen, os.urandom(16), limits))
    except (LogDamaged, DirectoryLocked, CannotListen) as fault:
        print(f"trading core: {fault}", file=sys.stderr, flush=True)
        return 1
    except OSError as fault:
        message = (
            f"the disk failed: {fault}. Every operation that was answered is on disk; stopping"
        )
        print(f"trading core: {message}", file=sys.stderr, flush=True)
        return 1
    return 0


async def serve(
    directory: Path, listen: str, fresh_uuid: bytes, limits: CoreLimits | None = None
) -> None:
    """Recover, then serve until a signal or a failure ends it."""
    address = parse_listen(listen)
    core = await Core.open(RealDisk(directory), fresh_uuid, time.time, limits)
    for note in core.notes:
        print(f"trading core: {note}", file=sys.stderr, flush=True)
    # Only after locking the directory: then an existing socket file is a stale one.
    listener = _bind(address)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, core.stop)
    sessions = OpenSessions(core)
    server = await asyncio.start_server(sessions.begin, sock=listener, backlog=BACKLOG)
    mark = core.mark
    print(
        f"trading core ready: {listen} uuid {mark.uuid} epoch {mark.epoch} "
        f"position {mark.position}",
        flush=True,
    )
    try:
        await core.run()
    finally:
        server.close()
        await sessions.end()
        if isinstance(address, Path):
            with contextlib.suppress(OSError):
                address.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="tidegate core", description="Run the trading core.")
    parser.add_argument("--data", required=True, type=Path, help="the data directory")
    parser.add_argument("--listen", required=True, help="unix:PATH or tcp:HOST:PORT")
    defaults = CoreLimits()
    parser.add_argument("--snapshot-records", type=int, default=defaults.snapshot_records)
    parser.add_argument("--snapshot-bytes", type=int, default=defaults.snapshot_bytes)
    options = parser.parse_args(argv)
    limits = defaults._replace(
        snapshot_records=options.snapshot_records, snapshot_bytes=options.snapshot_bytes
    )
    return run(options.data, options.listen, limits)


def parse_listen(listen: str) -> Path | tuple[str, int]:
    scheme, _, rest = listen.partition(":")
    if scheme == "unix" and rest:
        if len(os.fsencode(rest)) > MAX_SOCKET_PATH:
            raise CannotListen(
                f"the socket path {rest} has {len(os.fsencode(rest))} bytes; the system allows "
                f"{MAX_SOCKET_PATH}: choose a shorter one"
            )
        return Path(rest)
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and port.isascii() and port.isdigit() and int(port) < 2**16:
        return host.strip("[]") or LOOPBACK, int(port)
    raise CannotListen(f"listen on unix:PATH or tcp:HOST:PORT, not on {listen!r}")


class OpenSessions:
    """The open sessions, whose number is limited."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._open: set[asyncio.Task[None]] = set()

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        core, full = self._core, len(self._open) >= self._core.limits.connections
        session = refuse_connection(core, writer) if full else converse(core, reader, writer)
        task = asyncio.ensure_future(session)
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def end(self) -> None:
        """Wait until every session has sent its replies, then cancel the rest."""
        if self._open:
            limits = self._core.limits
            await asyncio.wait(self._open, timeout=limits.drain_s + limits.drain_s)
        for task in list(self._open):
            task.cancel()


def _bind(address: Path | tuple[str, int]) -> socket.socket:
    try:
        if isinstance(address, Path):
            return _bind_unix(address)
        return socket.create_server(address, backlog=BACKLOG)
    except OSError as fault:
        raise CannotListen(f"cannot listen on {address}: {fault}") from fault


def _bind_unix(path: Path) -> socket.socket:
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise CannotListen(f"another program is listening on {path}")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)  # Accessible to this user only, from the moment it is created.
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener
