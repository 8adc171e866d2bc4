"""What a spawned process of the engine's tests does: it must be importable there."""

from __future__ import annotations

from edgespec.config import EngineConfig
from edgespec.engine import Engine


def answer(path: str) -> str:
    """A few tokens of an engine of its own."""
    with Engine.open(path, EngineConfig(n_ctx=256, threads=1)) as engine:
        return engine.generate("abc", max_tokens=5, temperature=0.0).text
