"""The page at `/`: a chat in the browser. One response that asks for nothing else, and that may do nothing else.

Its parts lie beside this file. The policy sent with it names the one style and the one script by their hashes, lets it
ask this server only, and forbids whatever would make markup of text: an answer stays text, whatever the model writes.
Source: Content Security Policy Level 3, Trusted Types (W3C).
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

_SCRIPTS = ("page_text.js", "page_store.js", "page_server.js", "page_strip.js", "page.js")
"""In this order they are one module."""


async def page(_: Request) -> Response:
    """The route."""
    html, policy = _built()
    headers = {
        "content-security-policy": policy,
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "same-origin",
        "x-frame-options": "DENY",
        "cache-control": "no-store",
    }
    return Response(html, media_type="text/html", headers=headers)


@functools.cache
def _built() -> tuple[str, str]:
    """The document and its policy."""
    style, script = _read("page.css"), "".join(map(_read, _SCRIPTS))
    html = _read("page.html").replace("/* style */", style).replace("/* script */", script)
    rules = (
        "default-src 'none'", f"style-src {_hash(style)}", f"script-src {_hash(script)}", "connect-src 'self'",
        "img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
        "require-trusted-types-for 'script'", "trusted-types 'none'",
    )  # fmt: skip
    return html, "; ".join(rules)


def _read(name: str) -> str:
    return (resources.files("edgespec.server") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
