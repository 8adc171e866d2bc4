"""Keeps an evaluation's texts out of training: a prompt that shares a run of words with one of them is dropped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from edgespec.errors import ConfigError

N_WORDS = 13
"""Words in a row that no training prompt shares with the texts to keep out.

Source: Brown et al. 2020 (2005.14165), appendix C, which looks for overlaps of 13 words.
"""
_FEWEST = 6
"""A text of fewer words is in half of all prompts: it keeps out only those that are the same as a whole."""
_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text, small, without marks."""
    return _WORD.findall(text.casefold())


class KeepOut:
    """The texts to keep out, by their runs of `n` words; a shorter text counts as one run, a very short one whole."""

    def __init__(self, texts: Iterable[str] = (), n: int = N_WORDS) -> None:
        self._n = n
        self._runs: set[tuple[str, ...]] = set()
        self._whole: set[tuple[str, ...]] = set()
        self._lengths: set[int] = set()
        self.n_texts = self.n_dropped = self.n_seen = 0
        for text in texts:
            found = words(text)
            if found:
                self.n_texts += 1
                self._whole.add(tuple(found))
                size = min(n, len(found))
                if size < min(_FEWEST, n):
                    continue
                self._lengths.add(size)
                self._runs.update(_runs(found, size))

    def touches(self, texts: Iterable[str]) -> bool:
        """Whether one of a prompt's texts shares a run with what is kept out; counted."""
        self.n_seen += 1
        hit = any(
            tuple(found) in self._whole or any(not self._runs.isdisjoint(_runs(found, n)) for n in self._lengths)
            for found in map(words, texts)
        )
        self.n_dropped += hit
        return hit


def _runs(found: list[str], size: int) -> Iterator[tuple[str, ...]]:
    return (tuple(found[first : first + size]) for first in range(len(found) - size + 1))


def texts_of(path: Path) -> list[str]:
    """All texts of a file of questions (JSON lines): of every turn, reference and the like.

    Raises:
        ConfigError: it cannot be read, or a line is not JSON.
    """
    found: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: not JSON ({error})") from error
        turns = row.get("turns", []) if isinstance(row, dict) else []
        found += [text for text in turns if isinstance(text, str)]
    if not found:
        raise ConfigError(f'{path} has no "turns" to keep out')
    return found
