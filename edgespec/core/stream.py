"""Token ids to text as it may be shown: whole UTF-8 characters, nothing of a stop string.

Does not know about end-of-generation tokens; whoever feeds it leaves those out.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class TextStream:
    """Turns the tokens of one answer into text, holding back what may still become a stop string."""

    def __init__(self, piece: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        """`piece` gives a token's bytes; `stop` are the strings that end the text, empty ones are ignored."""
        self._piece = piece
        self._stop = tuple(s for s in stop if s)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False
        """Whether a stop string was completed; the text before it has been handed out, nothing follows."""

    def push(self, token: int) -> str:
        """Add one token; return the text that is now certain."""
        return self._release(self._decoder.decode(self._piece(token)))

    def finish(self) -> str:
        """Flush: a dangling half character becomes U+FFFD, a half stop string is text after all."""
        text = self._release(self._decoder.decode(b"", True)) + self._held
        self._held = ""
        return text

    def _release(self, new: str) -> str:
        if self.stopped:
            return ""
        if not self._stop:
            return new
        text = self._held + new
        found = [i for i in (text.find(s) for s in self._stop) if i >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        n_hold = max(_overlap(text, s) for s in self._stop)
        self._held = text[len(text) - n_hold :]
        return text[: len(text) - n_hold]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - n :]):
            return n
    return 0
