"""A port belongs to one program, and is shared only with that program's own processes."""

import re
import socket

import pytest

from tidegate.service.sockets import PortUnusable, bound, share, taken

HOST = "127.0.0.1"


def test_a_port_on_which_nobody_listens_yet_is_taken_all_the_same() -> None:
    with taken(HOST, 0) as ours:
        port = ours.getsockname()[1]
        for shared in (False, True):
            if shared:
                share(ours)
            said = re.escape(f"port {port} of {HOST} cannot be used (Address already in use)")
            with pytest.raises(PortUnusable, match=said), taken(HOST, port):
                pass
    with taken(HOST, port):
        pass


def test_a_port_that_is_shared_among_others_cannot_be_taken() -> None:
    others = socket.create_server((HOST, 0), reuse_port=True)
    with others, pytest.raises(PortUnusable), taken(HOST, others.getsockname()[1]):
        pass


def test_only_those_who_share_listen_on_a_port_that_is_held() -> None:
    with taken(HOST, 0) as held:
        share(held)
        port = held.getsockname()[1]
        with bound(HOST, port, shared=True) as one, bound(HOST, port, shared=True) as two:
            one.listen()
            two.listen()
            with pytest.raises(PortUnusable):
                bound(HOST, port)
            one.close()
            for _ in range(20):
                with socket.create_connection((HOST, port)):
                    two.accept()[0].close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port))


def test_an_ended_program_leaves_its_port_to_the_next() -> None:
    """Its connections are remembered by the kernel for a minute, and must not be in the way."""
    with taken(HOST, 0) as held:
        port = held.getsockname()[1]
        share(held)
        with bound(HOST, port, shared=True) as listening:
            listening.listen()
            with socket.create_connection((HOST, port)) as client:
                listening.accept()[0].close()
                assert client.recv(1) == b""
    with taken(HOST, port) as held:
        share(held)
        bound(HOST, port, shared=True).close()
