"""The bare loop: what llama.cpp gives without any program around it, and the worker that runs it."""

from __future__ import annotations

import gc
import importlib.metadata
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgespec.bench import runner
from edgespec.bench.modes import PLAIN
from edgespec.bench.peers.ours import as_reply
from edgespec.bench.peers.wire import Message, serve
from edgespec.config import EngineConfig
from edgespec.decode_thread import decode_thread
from edgespec.engine import Engine
from edgespec.target import lib
from edgespec.target.opening import Handles


class BareLoop:
    """`llama_decode` and numpy's argmax, nothing else; a context of its own with the engine's parameters."""

    def __init__(self, engine: Engine) -> None:
        self.n_vocab, self.n_batch = engine.target.n_vocab, engine.target.n_batch
        self._target = engine.target
        self._handles = Handles(engine.model_path, engine.target.options)
        self._native: Any = lib.native()
        self._ctx = self._handles.ctx
        self._batch = self._native.llama_batch_init(self.n_batch, 0, 1)

    def decode(self, tokens: Sequence[int], n_past: int) -> int:
        """One pass; the likeliest next token."""
        batch, last = self._batch, len(tokens) - 1
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index] = token, n_past + index
            batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, 0, index == last
        code = self._native.llama_decode(self._ctx, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        row = np.ctypeslib.as_array(self._native.llama_get_logits_ith(self._ctx, last), shape=(self.n_vocab,))
        return int(row.argmax())

    def run(
        self,
        prompt: Sequence[int],
        n: int,
        question: str,
        number: int,
        mode: str,
        eog: frozenset[int] = frozenset(),
    ) -> runner.Run:
        """`n` tokens from an empty cache, or up to one of `eog`.

        On the thread that decodes for engines: a second one would have an OpenMP team of its own, which slows both.
        """
        return decode_thread().run(lambda: self._run(prompt, n, question, number, mode, eog), self._target)

    def _run(
        self, prompt: Sequence[int], n: int, question: str, number: int, mode: str, eog: frozenset[int]
    ) -> runner.Run:
        self._native.llama_memory_clear(self._native.llama_get_memory(self._ctx), True)
        gc.collect()
        gc.disable()
        began_s = time.perf_counter()
        for start in range(0, len(prompt), self.n_batch):
            token = self.decode(prompt[start : start + self.n_batch], start)
        first_s, n_past, ids = time.perf_counter(), len(prompt), [token]
        while len(ids) < n and token not in eog:
            token = self.decode((token,), n_past)
            n_past += 1
            ids.append(token)
        last_s = time.perf_counter()
        gc.enable()
        return runner.Run(
            question, "all", number, mode, 0, tokens=len(ids), decoded=len(ids) - 1, decode_s=last_s - first_s,
            ttft_s=first_s - began_s, total_s=last_s - began_s, ids=tuple(ids),
        )  # fmt: skip

    def close(self) -> None:
        """Free the context."""
        self._native.llama_batch_free(self._batch)
        self._handles.free()


class BareWorker:
    """The loop in a process of its own."""

    def __init__(self, settings: Message) -> None:
        """`settings`: `model`, `n_ctx`, `threads`."""
        config = EngineConfig(threads=settings["threads"], n_ctx=settings["n_ctx"], drafter="none")
        self._engine = Engine.open(settings["model"], config)
        self._loop = BareLoop(self._engine)

    def about(self) -> Message:
        """See `wire.Peer`."""
        return {"version": f"llama.cpp of llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"}

    def answer(self, request: Message) -> Message:
        """See `wire.Peer`."""
        eog = self._engine.target.eog
        return as_reply(self._loop.run(request["prompt"], request["max_tokens"], "", 0, PLAIN, eog), self._engine)


if __name__ == "__main__":
    serve(BareWorker)
