"""Record what the simulator replays: greedy answers of the default model to the built-in questions.

    .venv/bin/python scripts/record_texts.py [MODEL] [OUT]

Writes OUT (edgespec/bench/texts.jsonl) and the bytes of its tokens beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from edgespec import Engine
from edgespec.bench import workloads
from edgespec.bench.runner import prompt_of
from edgespec.bench.sim_texts import Texts, pieces_of, save
from edgespec.bench.trace import trace_run
from edgespec.config import EngineConfig
from edgespec.interfaces import Limits, Sampling

N_TOKENS = 128
OUT = Path(__file__).parents[1] / "edgespec" / "bench" / "texts.jsonl"


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else None
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else OUT
    traces = []
    with Engine.open(model, EngineConfig(drafter="none")) as engine:
        for question in workloads.load():
            prompt = prompt_of(engine, question)
            limits = Limits(min(N_TOKENS, question.max_tokens or N_TOKENS), max_draft=0)
            ids, group = question.question_id, question.group
            traces.append(trace_run(engine, prompt, Sampling(), limits, drafter="none", question_id=ids, group=group))
            print(f"{ids}: {len(prompt)} tokens, {len(traces[-1].answer)} in the answer")
        save(Texts(tuple(traces), pieces_of(traces, engine.target.piece)), out)


if __name__ == "__main__":
    main()
