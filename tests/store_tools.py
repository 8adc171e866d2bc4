"""Small stores for tests, and what is proposed from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgespec.core.offers import TargetFacts
from edgespec.draft.store import StoreDrafter
from edgespec.draft.store_writer import MAX_BYTES, Writer

DIGEST, N_VOCAB = "ab" * 32, 1000
SMALL = 20_600
"""Bytes of a store of 1024 tokens."""
MODEL = "f" * 64
FACTS = TargetFacts("tiny", N_VOCAB, 0, MODEL, lambda n: DIGEST)


def write(folder: Path, *texts: Sequence[int], max_bytes: int = MAX_BYTES) -> Path:
    with Writer(folder, DIGEST, N_VOCAB, max_bytes=max_bytes) as writer:
        for text in texts:
            writer.add(text, MODEL)
        assert writer.notes == []
        return writer.path


def draft(path: Path, context: Sequence[int], limit: int = 8) -> tuple[int, ...]:
    drafter = StoreDrafter(path=path)
    try:
        return drafter.propose(context, limit).tokens
    finally:
        drafter.close()
