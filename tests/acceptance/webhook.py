"""A webhook server for tests, which records the alerts that are posted to it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any


class Webhook:
    """The URL of the webhook, and the alerts that it got."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.url = ""

    def named(self, text: str) -> list[dict[str, Any]]:
        """The alerts whose cause contains this text."""
        return [alert for alert in self.posted if text in alert["cause"]]

    def coded(self, code: str) -> list[dict[str, Any]]:
        """The alerts with this code."""
        return [alert for alert in self.posted if alert["code"] == code]


@contextmanager
def listening() -> Iterator[Webhook]:
    webhook = Webhook()

    class Post(StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while line := self.rfile.readline().strip().lower():
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            webhook.posted.append(json.loads(self.rfile.read(length)))
            self.wfile.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Post) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        webhook.url = f"http://127.0.0.1:{server.server_address[1]}/alerts"
        try:
            yield webhook
        finally:
            server.shutdown()
            thread.join()
