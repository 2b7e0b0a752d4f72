"""An HTTP server that passes everything on to another one, and keeps what both sides said."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Exchange:
    """One request and its response; header names in lower case."""

    path: str
    request_headers: dict[str, str]
    request: bytes
    response_headers: dict[str, str]
    response: bytes


@dataclass
class Recording:
    """The exchanges so far, in the order in which they ended, and the base URL to use."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)


@contextmanager
def recording_proxy(upstream: str) -> Iterator[Recording]:
    """Listen on a free loopback port and pass on to `upstream` ("http://host:port/path")."""
    target = urlsplit(upstream)
    recording = Recording("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            connection = http.client.HTTPConnection(str(target.hostname), target.port, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            connection.request("POST", self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            kept = {name.lower(): value for name, value in answer.getheaders()}
            recording.exchanges.append(Exchange(self.path, _lower(headers), body, kept, content))
            self.send_response(answer.status)
            for name, value in kept.items():
                if name not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            recording.url = f"http://127.0.0.1:{server.server_address[1]}{target.path}"
            yield recording
        finally:
            server.shutdown()
            thread.join()


def _lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
