"""Drafters: one file and one line here each. They guess; they do not know the target."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.draft.onnx import OnnxDrafter
from edgespec.draft.store import StoreDrafter
from edgespec.draft.suffix import SuffixDrafter
from edgespec.interfaces import Drafter

Piece = Callable[[int], bytes]
"""The bytes of a token: all a drafter is told of the tokenizer."""

REGISTRY: dict[str, Callable[[Piece], Drafter]] = {
    "ngram": SuffixDrafter,
    "onnx": OnnxDrafter,
    "store": StoreDrafter,
}
"""Name to factory; every session gets an instance of its own."""

AUTO = "ngram"
"""What "auto" uses."""

STORED = "store"
"""With "auto" it drafts where `AUTO` has nothing, once something was learned."""

PACKAGED = "onnx"
"""Needs a package; with "auto" it drafts where `AUTO` has nothing, once one was chosen."""

NAMES = ("auto", "none", *REGISTRY)
"""What a user may ask for."""
