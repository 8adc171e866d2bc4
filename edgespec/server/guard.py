"""Who may ask: the checks in front of every request, and the last line of defence behind it.

A page that somebody has open in a browser must not reach a model here: not by asking across origins, and not by a name
of its own that its DNS server points at this machine (DNS rebinding). So names in `Host` must be known, an `Origin`
must be the server's own, and no CORS header is ever sent.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import traceback
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.server.errors import RequestError
from edgespec.server.stream import respond_error

OPEN_PATHS = frozenset({"/", "/health"})
"""What is answered without a key; the page at "/" asks for it."""
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:]+))(?::[0-9]*)?")
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class Guard:
    """Wraps an ASGI application."""

    def __init__(
        self, app: ASGIApp, *, hosts: Iterable[str] = (), api_key: str | None = None, log: Callable[[str], None]
    ) -> None:
        """`hosts` are names besides localhost under which the server is asked for; `log` takes one line."""
        self._app = app
        self._hosts = _LOCAL | {host.lower() for host in hosts}
        self._key = None if api_key is None else _digest(api_key.encode())
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-content-type-options", b"nosniff")]
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, receive, watched)
        except RequestError as error:
            await respond_error(watched, error)
        except ClientDisconnect:
            pass  # there is nobody left to answer
        except Exception as error:  # a bug; its text may hold what somebody said, so it is not shown
            frame = traceback.extract_tb(error.__traceback__)[-1]
            kind, where = type(error).__name__, f"{frame.name}, line {frame.lineno} of {frame.filename}"
            self._log(f"internal error: {kind} in {where}")
            if not started:
                await respond_error(watched, RequestError(500, f"internal error ({kind})"))

    def _check(self, scope: Scope) -> None:
        """Refuse who may not ask.

        Raises:
            RequestError: 401 or 403.
        """
        host = self._header(scope, b"host")
        if host is None or not self._known(_name_of(host)):
            raise RequestError(403, "the Host header names no address of this server; --allow-host adds a name")
        origin = self._header(scope, b"origin")
        if origin is not None and not _same(origin, host):
            raise RequestError(403, "pages of other origins may not ask this server")
        if self._key is not None and scope["path"] not in OPEN_PATHS:
            scheme, _, key = (self._header(scope, b"authorization") or "").partition(" ")
            given = _digest(key.strip().encode("latin-1"))
            if not hmac.compare_digest(given, self._key) or scheme.lower() != "bearer":
                message = "no API key, or not the right one: send Authorization: Bearer KEY"
                raise RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    @staticmethod
    def _header(scope: Scope, name: bytes) -> str | None:
        """The header's only value; None where there is none, "" where there are several."""
        found = [value for key, value in scope["headers"] if key == name]
        return None if not found else found[0].decode("latin-1") if len(found) == 1 else ""

    def _known(self, name: str) -> bool:
        # An address is no name, so no DNS server had a say in it.
        return name in self._hosts or is_address(name)


def is_address(name: str) -> bool:
    """Whether this is an IP address and not a name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name_of(host: str) -> str:
    """A `Host` header without its port; "" where it is no such header."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2]).lower()


def _same(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:  # as "http://["
        return False
    return parts.scheme in {"http", "https"} and parts.netloc.lower() == host.lower()


def _digest(key: bytes) -> bytes:
    """Of equal length, so that comparing takes equal time."""
    return hashlib.sha256(key).digest()
