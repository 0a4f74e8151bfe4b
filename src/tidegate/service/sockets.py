"""Ports to listen on: of one program at a time, and shared only by that program's processes."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


class PortUnusable(OSError):
    """Nobody can listen there; one line says why, and what to do."""


def bound(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket at this address. If it is shared, so must be every other socket there."""
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
def taken(host: str, port: int) -> Iterator[socket.socket]:
    """The port for this program alone: bound, and not listening yet; 0 is any free one.

    It is never shared while it is bound, so that a program that listens there is noticed. Two
    programs may still bind a port on which nobody listens yet. So there is a name besides, which
    only one can have; the kernel frees it when its owner ends.
    """
    with bound(host, port) as opened, socket.socket(socket.AF_UNIX) as claim:
        number = opened.getsockname()[1]
        try:
            claim.bind(f"\0tidegate-port-{host}-{number}")
        except OSError as fault:
            raise _unusable(host, number, fault) from fault
        yield opened


def _unusable(host: str, port: int, fault: OSError) -> PortUnusable:
    said = fault.strerror or str(fault)
    return PortUnusable(f"port {port} of {host} cannot be used ({said}): choose another")
