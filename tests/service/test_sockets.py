"""One program reserves a port, and only its processes share it."""

import re
import socket

import pytest

from tidegate.service.sockets import PortUnusable, bound_socket, reserved_port, share

HOST = "127.0.0.1"


def test_a_reserved_port_is_refused_to_others_even_before_listening() -> None:
    with reserved_port(HOST, 0) as ours:
        port = ours.getsockname()[1]
        for shared in (False, True):
            if shared:
                share(ours)
            message = re.escape(f"port {port} of {HOST} cannot be used (Address already in use)")
            with pytest.raises(PortUnusable, match=message), reserved_port(HOST, port):
                pass
    with reserved_port(HOST, port):
        pass


def test_a_port_shared_by_other_programs_cannot_be_reserved() -> None:
    others = socket.create_server((HOST, 0), reuse_port=True)
    with others, pytest.raises(PortUnusable), reserved_port(HOST, others.getsockname()[1]):
        pass


def test_only_sharing_sockets_listen_on_a_reserved_port() -> None:
    with reserved_port(HOST, 0) as held:
        share(held)
        port = held.getsockname()[1]
        with (
            bound_socket(HOST, port, shared=True) as first,
            bound_socket(HOST, port, shared=True) as second,
        ):
            first.listen()
            second.listen()
            with pytest.raises(PortUnusable):
                bound_socket(HOST, port)
            first.close()
            for _ in range(20):
                with socket.create_connection((HOST, port)):
                    second.accept()[0].close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port))


def test_the_port_of_an_ended_program_can_be_reserved_again() -> None:
    """The kernel keeps closed connections in TIME_WAIT for a minute; they must not prevent it."""
    with reserved_port(HOST, 0) as held:
        port = held.getsockname()[1]
        share(held)
        with bound_socket(HOST, port, shared=True) as listening:
            listening.listen()
            with socket.create_connection((HOST, port)) as client:
                listening.accept()[0].close()
                assert client.recv(1) == b""
    with reserved_port(HOST, port) as held:
        share(held)
        bound_socket(HOST, port, shared=True).close()
