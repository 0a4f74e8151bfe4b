"""A program that runs a server until its stdin is closed or it is killed."""

import os
import sys
from pathlib import Path

import psycopg

from tidegate.postgres import Server, find_binaries


def main(directory: str, programs: str, uid: str) -> None:
    binaries = find_binaries(Path(programs))
    if os.geteuid() != int(uid):
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    with Server(Path(directory), binaries) as server:
        with psycopg.connect(server.url()) as connection:
            connection.execute("CREATE TABLE numbers (n int)")
        print(server.pid, flush=True)
        sys.stdin.read()


main(*sys.argv[1:])
