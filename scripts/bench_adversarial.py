"""Whether bad drafters and unguessable texts can make an answer slower or other: `bench_adversarial.py MODEL`.

Every drafter runs as a user's own drafter would, on its own thread. Prints a table, and one JSON line at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from edgespec.bench import report, runner, workloads
from edgespec.bench.compare import differences, with_margins
from edgespec.bench.modes import PLAIN, PLAIN_AGAIN, Mode
from edgespec.bench.table import table
from edgespec.config import EngineConfig
from edgespec.engine import Engine
from edgespec.interfaces import Sampling
from edgespec.testing import ScriptedDrafter

_SYLLABLES = (
    "ba",
    "ko",
    "ri",
    "te",
    "lu",
    "mo",
    "sha",
    "ven",
    "dor",
    "pil",
    "gra",
    "nox",
    "em",
    "qui",
    "zan",
    "fer",
    "tho",
)


def scripted(name: str, play: Callable[[Sequence[int], int], Sequence[int]]) -> Mode:
    """A mode with a drafter of our own, a new one for every answer."""
    return Mode(name, name, make=lambda: ScriptedDrafter(play, name))


def wrong(n_vocab: int) -> Mode:
    """Four tokens that are not what comes next, with a claim of 0.9 each."""
    return scripted("wrong", lambda context, _: [(context[-1] * 31 + 977 * i + 5) % n_vocab for i in range(4)])


def far(n_vocab: int) -> Mode:
    """64 tokens whatever the limit is."""
    return scripted("long-64", lambda context, _: [(context[-1] * 17 + 131 * i + 3) % n_vocab for i in range(64)])


def raises() -> Mode:
    """An exception each time."""

    def play(_context: Sequence[int], _limit: int) -> Sequence[int]:
        raise RuntimeError("this drafter is broken")

    return scripted("raises", play)


def sleeps() -> Mode:
    """An answer two seconds late."""

    def play(context: Sequence[int], _limit: int) -> Sequence[int]:
        time.sleep(2.0)
        return [context[-1]]

    return scripted("sleeps-2s", play)


def random_words(n: int, seed: int) -> list[workloads.Question]:
    """Prompts of made-up words, which nothing can be learned from."""
    rng = random.Random(seed)
    found = []
    for index in range(n):
        words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 3))) for _ in range(60)]
        found.append(workloads.Question(f"random-{index}", "random_words", " ".join(words)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of every answer")
    parser.add_argument("--prompts", type=int, default=6, help="prompts a group")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chat = [replace(q, group="chat") for q in workloads.load() if q.group in ("chat", "rag")][: args.prompts]
    questions = [*chat, *random_words(args.prompts, args.seed)]
    config = EngineConfig(threads=args.threads, n_ctx=args.ctx, kv_type=args.kv_type)
    sampling = Sampling(temperature=args.temp, seed=args.seed)
    with Engine.open(args.model, config) as engine:
        n_vocab = engine.target.n_vocab
        modes = (
            Mode(PLAIN, "none"), Mode("auto", "auto"), wrong(n_vocab), far(n_vocab), raises(), sleeps(),
            Mode(PLAIN_AGAIN, "none"),
        )  # fmt: skip
        plan = runner.Plan(questions, modes, sampling, args.rounds, args.tokens, ignore_eog=True)
        record = runner.run_all(plan, lambda: engine, runner.Record(), progress)
        prompts = {q.question_id: runner.prompt_of(engine, q) for q in questions}
        found = with_margins(differences(record.runs), record.runs, engine, prompts, sampling)
    everything = report.build(record, seed=args.seed, differences=found)
    print(table(everything))
    whole = report.build(runner.Record([replace(run, group="all") for run in record.runs]), seed=args.seed)
    print(f"{'over both groups':<18}{'tokens':>8}{'ratio':>8}{'95 % interval':>18}{'texts that differ':>19}")
    summary = {}
    for mode, cell in whole.cells["all"].items():
        ratio, n_other = cell.ratio, sum(item.mode == mode for item in found)
        interval = f"{ratio.low:.3f}..{ratio.high:.3f}" if ratio.low is not None and ratio.high is not None else ""
        print(f"{mode:<18}{cell.tokens:>8}{ratio.value or 0:>8.3f}{interval:>18}{n_other:>19}")
        summary[mode] = {
            "tokens": cell.tokens, "ratio": ratio.value, "low": ratio.low, "high": ratio.high, "differ": n_other,
            "failed": cell.failed,
        }  # fmt: skip
    print(json.dumps(summary))


def progress(done: int, n_all: int, run: runner.Run) -> None:
    """A line on stderr that replaces itself."""
    print(f"\r{done} of {n_all}: {run.question_id} {run.mode}".ljust(60), end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
