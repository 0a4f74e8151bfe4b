"""Ports to listen on: one program reserves a port, and only its processes share it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


class PortUnusable(OSError):
    """The port cannot be used; the message says why and what to do in one line."""


def bound_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Bind a socket. If it is shared, every other socket on this address must be shared too."""
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            share(opened)
        opened.bind((host, port))
    except OSError as fault:
        opened.close()
        raise _unusable(host, port, fault) from fault
    return opened


def share(opened: socket.socket) -> None:
    """Let other processes of this user listen at the same address."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


@contextmanager
def reserved_port(host: str, port: int) -> Iterator[socket.socket]:
    """Reserve a port for this program: bind it, without listening. Port 0 is any free port.

    The port is bound without SO_REUSEPORT, so that binding fails if another program listens
    there. But with SO_REUSEADDR two programs can bind a port on which neither listens yet. So this
    also binds an abstract Unix socket, whose name only one process can have. The kernel frees
    the name when the process ends.
    """
    with bound_socket(host, port) as opened, socket.socket(socket.AF_UNIX) as claim:
        number = opened.getsockname()[1]
        try:
            claim.bind(f"\0tidegate-port-{host}-{number}")
        except OSError as fault:
            raise _unusable(host, number, fault) from fault
        yield opened


def _unusable(host: str, port: int, fault: OSError) -> PortUnusable:
    reason = fault.strerror or str(fault)
    return PortUnusable(f"port {port} of {host} cannot be used ({reason}): choose another")
