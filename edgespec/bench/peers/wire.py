"""The worker's end of the wire: JSON lines on stdin and stdout. Standard library only: peers bring their own Python.

The first line says what to open, every further one asks for an answer. Each gets one line back, an object; a request
that failed gets `{"error": "..."}` and the worker goes on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

Message = dict[str, Any]


class Peer(Protocol):
    """A program with a model loaded."""

    def about(self) -> Message:
        """What it is: `version`, and whatever else a report should say."""
        ...

    def answer(self, request: Message) -> Message:
        """Write one answer from a cold cache.

        `request` has `prompt` (token ids) and `max_tokens`. The reply has `tokens`, `decoded` (tokens that `decode_s`
        was spent on), `decode_s` and `ttft_s` in seconds, `drafted`, `accepted`, `finish`, and `ids` or `text`.
        """
        ...


def serve(open_peer: Callable[[Message], Peer]) -> None:
    """Answer until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not get between the replies
    peer: Peer | None = None
    for line in sys.stdin:
        try:
            if peer is None:
                peer = open_peer(json.loads(line))
                reply = peer.about()
            else:
                reply = peer.answer(json.loads(line))
        except Exception as error:  # whatever it is, it belongs into the record of whoever asked
            reply = {"error": (f"{type(error).__name__}: {error}".splitlines() or [""])[0]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
