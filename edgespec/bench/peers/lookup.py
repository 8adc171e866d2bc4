"""llama-cpp-python's own worker: its plain decoding and its prompt lookup, through `Llama.generate`."""

from __future__ import annotations

import time
from typing import Any

import llama_cpp  # noqa: TID251 - here the binding is not ours to adapt but a peer, in a process without our own
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding  # noqa: TID251 - the same

from edgespec.bench.peers.wire import Message, serve


class CountedLookup(LlamaPromptLookupDecoding):
    """Their drafter; counts its proposals."""

    n_calls = 0
    n_drafted = 0

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        """As theirs."""
        draft = super().__call__(input_ids, **kwargs)
        self.n_calls += 1
        self.n_drafted += len(draft)
        return draft


class Lookup:
    """`Llama` with a drafter or without, greedy."""

    def __init__(self, settings: Message) -> None:
        """`settings`: `model`, `n_ctx`, `threads`, and `lookup`: tokens to guess, 0 for plain decoding."""
        self._drafter = CountedLookup(num_pred_tokens=settings["lookup"]) if settings["lookup"] else None
        n = settings["threads"]
        self._llama: Any = llama_cpp.Llama(
            settings["model"], n_ctx=settings["n_ctx"], n_threads=n, n_threads_batch=n, draft_model=self._drafter,
            logits_all=self._drafter is not None,  # without it drafting raises once the text is longer than a batch
            verbose=False,
        )  # fmt: skip
        self._vocab = llama_cpp.llama_model_get_vocab(self._llama.model)

    def about(self) -> Message:
        """See `wire.Peer`."""
        return {"version": f"llama-cpp-python {llama_cpp.__version__}"}

    def answer(self, request: Message) -> Message:
        """See `wire.Peer`; timed at the iterator, as it does not count itself."""
        self._llama.reset()
        drafter = self._drafter
        calls, drafted = (drafter.n_calls, drafter.n_drafted) if drafter else (0, 0)
        ids: list[int] = []
        began_s = first_s = last_s = time.perf_counter()
        for token in self._llama.generate(request["prompt"], temp=0.0, repeat_penalty=1.0):
            last_s = time.perf_counter()
            first_s = first_s if ids else last_s
            ids.append(token)
            if len(ids) == request["max_tokens"] or llama_cpp.llama_vocab_is_eog(self._vocab, token):
                break
        decoded = max(0, len(ids) - 1)
        # Every pass after the prompt's brings one token of the model's own, and what was right of the draft before it.
        rounds = drafter.n_calls - calls if drafter else decoded
        return {
            "tokens": len(ids), "decoded": decoded, "decode_s": last_s - first_s, "ttft_s": first_s - began_s,
            "drafted": drafter.n_drafted - drafted if drafter else 0, "accepted": decoded - rounds,
            "text": self._llama.detokenize(ids).decode("utf-8", "replace"),
        }  # fmt: skip


if __name__ == "__main__":
    serve(Lookup)
