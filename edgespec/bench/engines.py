"""Which engine answers the next run: always the same, or one as new as on the first day."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from edgespec.engine import Engine

_CACHE = "XDG_CACHE_HOME"


class FirstRuns:
    """Opens the engine anew for every run, with nothing learned: what a user's very first answer costs."""

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        """`open_engine` must read its folders from the environment."""
        self._open = open_engine
        self._stack = ExitStack()

    def __call__(self) -> Engine:
        """A new engine; the one before is closed."""
        self.close()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="edgespec-bench-"))
        self._stack.enter_context(_cache_at(folder))
        return self._stack.enter_context(self._open())

    def close(self) -> None:
        """Close the last engine and forget what it learned."""
        self._stack.close()


@contextmanager
def _cache_at(folder: str) -> Iterator[None]:
    before = os.environ.get(_CACHE)
    os.environ[_CACHE] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CACHE]
        else:
            os.environ[_CACHE] = before
