"""The real command line with a fake model: `python tests/fake_cli.py chat ...`. Started by tests, in a terminal.

The model answers "You said: ..." and the last message; a message with "count" in it is answered by counting for long,
one with "think" by a thought and a word. EDGESPEC_FAKE, a variable of this file only, sets the seconds of a pass;
EDGESPEC_FAKE_TOOLKIT lets prompt_toolkit be used where it is installed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

PASS_S = float(os.environ.pop("EDGESPEC_FAKE", "0"))
if not os.environ.pop("EDGESPEC_FAKE_TOOLKIT", ""):
    sys.modules["prompt_toolkit"] = None  # type: ignore[assignment]  # it moves the cursor about instead of writing

from chat_fakes import FakeEngine, TalkingTarget  # noqa: E402 - needs the path above

import edgespec.engine  # noqa: E402
from edgespec.cli.main import main  # noqa: E402
from edgespec.errors import EvalCancelled  # noqa: E402


def reply(prompt: str) -> str:
    last = prompt.rpartition("user\n")[2].rstrip("\n\x00")
    if "count" in last:
        return " ".join(map(str, range(1, 2000)))
    if "think" in last:
        return "<think>hm\x1b[31m</think>\n\nyes"
    return f"You said: {last}"


def pass_slowly(target: TalkingTarget) -> None:
    until_s = time.monotonic() + PASS_S
    while time.monotonic() < until_s:
        time.sleep(0.005)
        if target.aborted:
            raise EvalCancelled("cancelled")


class Opened(FakeEngine):
    notes = ("a note about the model",)

    @classmethod
    def open(cls, model: str, config: Any, *, progress: object = None, n_sessions: int = 1) -> Opened:
        engine = cls(reply, config.n_ctx or 4096, config)
        engine.target.before_eval = pass_slowly
        return engine

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


edgespec.engine.Engine = Opened  # type: ignore[misc, assignment]

if __name__ == "__main__":
    main()
