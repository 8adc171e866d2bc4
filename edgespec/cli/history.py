"""The prompts typed before, for the arrow keys: one JSON string a line, so that a prompt may have several lines."""

from __future__ import annotations

import json
import os
from pathlib import Path

from edgespec.conversation import write_atomically

FILE = "chat_history.jsonl"
"""Its name in the state folder."""
KEPT = 1000
_SLACK = 200


class History:
    """A file of prompts, readable by its owner only. `problem` says why it is not kept, if it is not."""

    def __init__(self, path: Path | None) -> None:
        """Without a path nothing is read or written."""
        self.problem: str | None = None
        self._path = path

    def load(self) -> list[str]:
        """The newest prompts, oldest first; lines that are damaged are passed over."""
        if self._path is None:
            return []
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
            if len(lines) > KEPT + _SLACK:
                write_atomically(self._path, "\n".join(lines[-KEPT:]) + "\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            return self._give_up(error)
        return [text for line in lines[-KEPT:] if (text := _read(line))]

    def append(self, text: str) -> None:
        """Add a prompt at the end; another chat may do the same at the same time."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(text) + "\n")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> list[str]:
        self.problem = f"the history is not kept: {self._path}: {error.strerror}"
        self._path = None
        return []


def _read(line: str) -> str | None:
    try:
        text = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) else None
