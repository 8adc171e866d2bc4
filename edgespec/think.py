"""Tells a model's reasoning, `<think>...</think>`, from its answer, in a stream or in a whole text.

Does not know how either is shown.
"""

from __future__ import annotations

from dataclasses import dataclass

OPEN = "<think>"
CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of streamed text, the tags taken out."""

    text: str
    thinking: bool


class ThinkSplitter:
    """Splits streamed text into reasoning and answer; a tag may come in any number of pieces.

    A `</think>` that nothing opened is taken out; the text before it has been handed out already.
    """

    def __init__(self, *, opened: bool = False) -> None:
        """`opened`: the prompt ended with `<think>`, so the text begins as reasoning."""
        self.thinking = opened
        self._held = ""
        self._bare = True

    def push(self, text: str) -> list[Piece]:
        """Take in more text; return what is now certain."""
        text = self._held + text
        pieces: list[Piece] = []
        while True:
            found = [(i, tag) for tag in (OPEN, CLOSE) if (i := text.find(tag)) >= 0]
            if not found:
                break
            at, tag = min(found)
            self._add(pieces, text[:at])
            text = text[at + len(tag) :]
            self.thinking = tag == OPEN
        n_hold = max(_overlap(text, OPEN), _overlap(text, CLOSE))
        self._held = text[len(text) - n_hold :]
        self._add(pieces, text[: len(text) - n_hold])
        return pieces

    def finish(self) -> list[Piece]:
        """Flush: half a tag is text after all."""
        pieces: list[Piece] = []
        self._add(pieces, self._held)
        self._held = ""
        return pieces

    def _add(self, pieces: list[Piece], text: str) -> None:
        if not self.thinking and self._bare:
            # The blank lines between the reasoning and the answer belong to neither.
            text = text.lstrip("\n")
            self._bare = not text
        if text:
            pieces.append(Piece(text, self.thinking))


def strip_thinking(text: str, *, opened: bool = False) -> str:
    """The answer without its reasoning; a block that never ends takes the rest, one that never began the start."""
    if OPEN not in text and CLOSE not in text:
        return "" if opened else text
    lone = text.find(CLOSE)
    if not opened and lone >= 0 and not 0 <= text.find(OPEN) < lone:
        opened = True
    splitter = ThinkSplitter(opened=opened)
    pieces = splitter.push(text) + splitter.finish()
    return "".join(piece.text for piece in pieces if not piece.thinking)


def opens_thinking(prompt: str) -> bool:
    """Whether a prompt leaves the model inside a block: some templates write the opening tag themselves."""
    return prompt.rstrip().endswith(OPEN)


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag` without completing it."""
    for n in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[len(text) - n :]):
            return n
    return 0
