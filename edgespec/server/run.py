"""Listening and ending: the socket, uvicorn, signals."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgespec.errors import ConfigError
from edgespec.jobs import Service
from edgespec.server.errors import invalid
from edgespec.server.wire import encode

_BACKLOG = 128
_N_CONNECTIONS = 512
_KEEP_ALIVE_S = 30


def is_exposed(host: str) -> bool:
    """Whether other machines may reach a server on this address.

    Raises:
        ConfigError: there is no such address.
    """
    return any(not ipaddress.ip_address(address).is_loopback for _, address in _addresses(host))


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; connections wait in it until the server runs. Port 0: any that is free.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    reason: object = None
    for family, address in _addresses(host):
        try:
            return _listening(family, address, port)
        except OSError as error:  # as where a name stands for an IPv6 address that this machine has not
            reason = error.strerror or error
    raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another with --host or --port")


def _listening(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    # The protocol is named because asyncio looks at it: else it would leave Nagle's algorithm on, and each piece of a
    # stream would wait up to 40 ms for the client's acknowledgement of the one before.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host}: no such address ({error})") from None
    return [(family, str(where[0]).partition("%")[0]) for family, _, _, _, where in found]


class _Protocol(H11Protocol):
    """uvicorn's HTTP, but a request's head must come in time, and what is no HTTP is told so in OpenAI's form."""

    head_s = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for a head."""
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = None
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a head, or no longer."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        elif self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        if self._head_timer is not None:
            self._head_timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Say what came was no HTTP."""
        body = encode(invalid(msg).body())
        headers = [
            (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]  # fmt: skip
        head = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _wait_for_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self.transport.close)


class Server(uvicorn.Server):
    """uvicorn, told to end by a signal: nothing new is taken, what is being answered is finished."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """`service` makes the answers that `app` asks for."""
        super().__init__(
            uvicorn.Config(
                app, http=_Protocol, ws="none", lifespan="off", loop="asyncio", log_config=None, log_level="critical",
                access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=_KEEP_ALIVE_S,
                limit_concurrency=_N_CONNECTIONS,
            )
        )  # fmt: skip
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends gracefully, a second Ctrl-C at once."""
        self._service.drain()
        super().handle_exit(sig, frame)

    def run_until_told(self, sock: socket.socket) -> None:
        """Serve until SIGINT or SIGTERM, then finish what is being answered. In the main thread only."""
        # uvicorn raises a signal again when it is done; by then it has been obeyed.
        before: dict[int, Any] = {sig: signal.signal(sig, _obeyed) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            self.run(sockets=[sock])
        finally:
            self._service.close()
            for sig, handler in before.items():
                signal.signal(sig, handler)


def _obeyed(_: int, __: FrameType | None) -> None:
    pass
