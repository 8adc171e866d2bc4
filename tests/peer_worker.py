"""A peer for tests, run as a program: answers as the last word of the question tells it."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from edgespec.bench.peers.wire import Message, serve


class FakePeer:
    """Says what it was opened with."""

    def __init__(self, settings: Message) -> None:
        self._settings, self._n = settings, 0
        if settings.get("refuse"):
            raise ValueError("no such model\nat all")
        if settings.get("spin"):
            threading.Thread(target=self._spin, daemon=True).start()

    def about(self) -> Message:
        return {"version": "fake 1", "model": "fake", "model_path": "fake.gguf", "fingerprint": "f00"}

    def answer(self, request: Message) -> Message:
        self._n += 1
        sys.stdout.write("a library talks on stdout\n")
        sys.stdout.flush()
        os.write(1, b"and past Python\n")
        word = str(request["question"]).split()[-1]
        if word == "raise":
            raise RuntimeError("out of cells")
        if word == "abort":
            os.write(2, b"GGML_ASSERT(n > 0) failed\n")
            os.abort()
        if word == "leave":
            sys.exit(3)
        if word == "hang":
            time.sleep(60)
        if "prompt" not in request:
            return {"prompt": [1, 2, 3]}
        n = request["max_tokens"]
        reply: dict[str, Any] = {
            "tokens": n, "decoded": n - 1, "decode_s": 0.01 * (n - 1), "ttft_s": 0.1, "drafted": n, "accepted": n // 2,
            "finish": "length", "text": "x" * n, "n": self._n, "model": self._settings.get("model"),
        }  # fmt: skip
        return reply

    def _spin(self) -> None:
        while True:
            pass


if __name__ == "__main__":
    serve(FakePeer)
