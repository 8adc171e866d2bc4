"""A file server on this machine that misbehaves in the ways servers and lines do."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DATA = b"GGUF" + bytes(range(256)) * 4096  # 1 MiB and 4 bytes
SHA256 = hashlib.sha256(DATA).hexdigest()


@dataclass
class Hub:
    """What the server does, and what it was asked."""

    data: bytes = DATA
    url: str = ""
    drops: int = 0
    """How many answers break off after 40 % of what they announced."""
    ignore_range: bool = False
    announce_more: int = 0
    """Bytes that are announced and never sent."""
    no_length: bool = False
    wrong_range: bool = False
    refuse_range: bool = False
    statuses: list[int] = field(default_factory=list)
    """Answers of the next requests, before it serves."""
    etag: str = '"v1"'
    linked_sha256: str | None = None
    """If set, the file is behind a redirect that names this checksum, as on the hub."""
    ranges: list[str | None] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    gate: threading.Event | None = None
    """If set, bodies wait for it after their first half."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.0"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        hub = self.server.hub
        hub.paths.append(self.path)
        if hub.linked_sha256 and not self.path.startswith("/cdn/"):
            self.send_response(302)
            self.send_header("Location", f"{hub.url}/cdn{self.path}")
            self.send_header("X-Linked-ETag", f'"{hub.linked_sha256}"')
            self.end_headers()
            return
        hub.ranges.append(self.headers.get("Range"))
        hub.headers.append(dict(self.headers.items()))
        if hub.statuses:
            self.send_response(hub.statuses.pop(0))
            self.end_headers()
            return
        self._serve(hub)

    def _serve(self, hub: Hub) -> None:
        start = 0
        found = re.fullmatch(r"bytes=([0-9]+)-", self.headers.get("Range", ""))
        current = self.headers.get("If-Range", hub.etag) == hub.etag
        if found and current and not hub.ignore_range:
            start = int(found[1])
            if start >= len(hub.data) or hub.refuse_range:
                hub.refuse_range = False
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(hub.data)}")
                self.end_headers()
                return
            shown = start + 7 if hub.wrong_range else start
            hub.wrong_range = False
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {shown}-{len(hub.data) - 1}/{len(hub.data)}")
        else:
            self.send_response(200)
        body = hub.data[start:]
        if hub.etag:
            self.send_header("ETag", hub.etag)
        if not hub.no_length:
            self.send_header("Content-Length", str(len(body) + hub.announce_more))
        self.end_headers()
        if hub.drops:
            hub.drops -= 1
            self.wfile.write(body[: len(body) * 4 // 10])
            return
        half = len(body) // 2
        self.wfile.write(body[:half])
        if hub.gate is not None:
            self.wfile.flush()
            hub.gate.wait(20)
        self.wfile.write(body[half:])


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave early are part of the tests."""


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Run the server on a free port of this machine."""
    server = _Server(hub)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
