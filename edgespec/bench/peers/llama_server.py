"""llama-server's worker, in the process of `xllamacpp`: runs with the Python that has it, which has little else."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from edgespec.bench.peers.wire import Message, serve

_WARM_UP_TOKENS = 8


class LlamaServer:
    """A server with one slot, made anew for every answer: its n-gram tables outlive a request, and would know the text.

    The same question three times to one server, cache_prompt off, ngram-mod 8/3/15, 100 tokens: 45 tokens drafted, then
    95, then 95. Source: llama.cpp, common/speculative.cpp, where that table is shared by all slots.
    """

    def __init__(self, settings: Message) -> None:
        """`settings`: `model`, `n_ctx`, `threads`, `type` (its name of a speculation) and `options` of that type."""
        self._settings = settings
        self._server: Any = self._open()

    def about(self) -> Message:
        """See `wire.Peer`."""
        return {"version": f"llama-server of xllamacpp {metadata.version('xllamacpp')}"}

    def answer(self, request: Message) -> Message:
        """See `wire.Peer`; `decode_s` and `ttft_s` as the server counts them."""
        self._server = None  # ends before the next begins: two would share the cores
        self._server = self._open()
        self._ask([*request["prompt"][:4], *request["prompt"][-4:]], _WARM_UP_TOKENS)
        reply = self._ask(request["prompt"], request["max_tokens"])
        times = reply["timings"]
        if times["cache_n"]:
            raise RuntimeError(f"{times['cache_n']} tokens of the prompt were cached")
        return {
            "tokens": times["predicted_n"],
            "decoded": max(0, times["predicted_n"] - 1),  # its clock starts when the first token is there
            "decode_s": times["predicted_ms"] / 1000,
            "ttft_s": times["prompt_ms"] / 1000,
            "drafted": times.get("draft_n", 0),
            "accepted": times.get("draft_n_accepted", 0),
            "finish": reply["choices"][0]["finish_reason"],
            "text": reply["choices"][0]["text"],
        }

    def _ask(self, prompt: list[int], max_tokens: int) -> Message:
        # Tokens, so that no start token is added to the one that is there. The one sampler that is enough for a greedy
        # choice: the usual chain would only cost time.
        reply: Message = self._server.handle_completions(
            {"prompt": prompt, "n_predict": max_tokens, "temperature": 0.0, "top_k": 1, "samplers": ["top_k"],
             "cache_prompt": False}
        )  # fmt: skip
        if "timings" not in reply:
            raise RuntimeError(str(reply.get("error") or reply))
        return reply

    def _open(self) -> Any:
        import xllamacpp  # type: ignore[import-not-found,unused-ignore]  # no dependency: only its own Python has it

        settings, params = self._settings, xllamacpp.CommonParams()
        params.model.path = settings["model"]
        params.n_ctx, params.n_parallel = settings["n_ctx"], 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
        params.cache_prompt, params.cache_ram_mib = False, 0
        params.fit_params = False  # it would choose the context's size itself
        params.verbosity = -1
        kind = settings["type"].upper().replace("-", "_")
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind}")]
        for name, value in settings["options"].items():
            setattr(getattr(params.speculative, kind.lower()), name, value)
        return xllamacpp.Server(params)


if __name__ == "__main__":
    serve(LlamaServer)
