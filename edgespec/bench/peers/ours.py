"""edgespec's own worker: plain and drafted answers of one engine."""

from __future__ import annotations

from edgespec import __version__
from edgespec.bench import runner
from edgespec.bench.modes import Mode
from edgespec.bench.peers.wire import Message, serve
from edgespec.bench.workloads import Question
from edgespec.config import EngineConfig
from edgespec.engine import Engine
from edgespec.interfaces import Sampling


class Ours:
    """An engine, asked as `edgespec bench` asks it."""

    def __init__(self, settings: Message) -> None:
        """`settings`: `model`, `n_ctx`, `threads`; `kernels` where they are to be off."""
        kernels = settings.get("kernels", "auto")
        config = EngineConfig(threads=settings["threads"], n_ctx=settings["n_ctx"], kernels=kernels)
        self._engine = Engine.open(settings["model"], config)

    def about(self) -> Message:
        """See `wire.Peer`; also what the others are to load."""
        engine = self._engine
        return {
            "version": f"edgespec {__version__}", "model_path": str(engine.model_path), "model": engine.model_name,
            "fingerprint": engine.fingerprint, "threads": engine.target.n_threads,
        }  # fmt: skip

    def answer(self, request: Message) -> Message:
        """See `wire.Peer`; by `question` instead of `prompt`. Without `drafter`: the prompt that all are to take."""
        question = Question("", "", request["question"])
        if "drafter" not in request:
            return {"prompt": runner.prompt_of(self._engine, question)}
        mode = Mode(request["drafter"], request["drafter"])
        plan = runner.Plan((question,), (mode,), Sampling(), max_tokens=request["max_tokens"])
        return as_reply(runner.run_one(plan, self._engine, question, 0, 0, mode), self._engine)


def as_reply(run: runner.Run, engine: Engine) -> Message:
    """A run as the wire carries it."""
    if run.error is not None:
        return {"error": run.error}
    return {
        "tokens": run.tokens, "decoded": run.decoded, "decode_s": run.decode_s, "ttft_s": run.ttft_s,
        "drafted": run.drafted, "accepted": run.accepted, "finish": run.finish_reason,
        "text": engine.decode(run.ids).decode("utf-8", "replace"),
    }  # fmt: skip


if __name__ == "__main__":
    serve(Ours)
