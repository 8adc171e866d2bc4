"""What edgespec costs without drafting: `bench_plain.py MODEL`.

1. Plain decoding against a bare `llama_decode` + argmax loop, on the same context parameters, interleaved.
2. Python's share of a round, with a target that answers at once, so that only edgespec's own work is left.

Prints tables, and one JSON line at the end.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from edgespec.bench import runner, workloads
from edgespec.bench.modes import PLAIN, PLAIN_AGAIN, Mode, orders
from edgespec.bench.peers.bare import BareLoop
from edgespec.bench.ratios import aggregate
from edgespec.conditions import Team
from edgespec.config import EngineConfig
from edgespec.core.acceptance import Acceptance, Prior
from edgespec.core.controller import Controller
from edgespec.core.cost import CostModel, CostTable
from edgespec.core.drafting import Drafting
from edgespec.core.generation import Generation
from edgespec.core.governor import Governor
from edgespec.core.heat import HeatPolicy
from edgespec.core.round import play_round
from edgespec.core.session import Session
from edgespec.draft.suffix import SuffixDrafter
from edgespec.engine import Engine
from edgespec.interfaces import Capabilities, Limits, Plan, Rows, Sampling

BARE = Mode(PLAIN, "none")
OURS = Mode("edgespec", "none")
BARE_AGAIN = Mode(PLAIN_AGAIN, "none")


def against_bare(args: argparse.Namespace) -> dict[str, object]:
    """Part 1."""
    config = EngineConfig(threads=args.threads, n_ctx=args.ctx, drafter="none", kv_type=args.kv_type)
    questions = workloads.select([q for q in workloads.load() if q.group in ("chat", "summary", "rag")], args.per_group)
    questions = tuple(workloads.Question(q.question_id, "all", q.text) for q in questions)
    arms, runs = (BARE, OURS, BARE_AGAIN), []
    with Engine.open(args.model, config) as engine:
        bare = BareLoop(engine)
        plan = runner.Plan(questions, arms, Sampling(), max_tokens=args.tokens, ignore_eog=True)
        runner.run_one(plan, engine, questions[0], 0, 0, OURS)
        bare.run(runner.prompt_of(engine, questions[0]), 16, "", 0, PLAIN)
        sequence = orders(len(arms))
        for number in range(args.rounds):
            for index, question in enumerate(questions):
                for arm in sequence[(index * args.rounds + number) % len(sequence)]:
                    mode = arms[arm]
                    if mode is OURS:
                        runs.append(runner.run_one(plan, engine, question, number, 0, mode))
                    else:
                        prompt = runner.prompt_of(engine, question)
                        runs.append(bare.run(prompt, args.tokens, question.question_id, number, mode.name))
        bare.close()
        threads = engine.target.n_threads
    cells = aggregate(runs)["all"]
    texts = {(run.question_id, run.round): run.ids for run in runs if run.mode == PLAIN}
    same = all(run.ids == texts[run.question_id, run.round] for run in runs)
    print(f"{threads} threads, {len(questions)} prompts of {args.tokens} tokens, {args.rounds} rounds\n")
    print(f"{'':<16}{'tok/s':>8}{'ratio':>8}{'95 % interval':>18}{'by pair':>9}{'failed':>8}")
    found: dict[str, object] = {"threads": threads, "same_text": same}
    for arm_name, name in ((PLAIN, "bare loop"), ("edgespec", "edgespec plain"), (PLAIN_AGAIN, "bare loop again")):
        cell = cells[arm_name]
        low, high = cell.ratio.low or 0.0, cell.ratio.high or 0.0
        print(
            f"{name:<16}{cell.tok_s or 0:>8.1f}{cell.ratio.value or 0:>8.3f}{f'{low:.3f}..{high:.3f}':>18}"
            f"{cell.ratio_pair or 0:>9.3f}{cell.failed:>8}"
        )
        found[arm_name] = {
            "tok_s": cell.tok_s,
            "ratio": cell.ratio.value,
            "low": low,
            "high": high,
            "failed": cell.failed,
        }
    print("texts are the same" if same else "TEXTS DIFFER")
    return found


class InstantTarget:
    """Returns prepared rows at once. `spiked`: the best token is a new one each time, so that nothing repeats."""

    def __init__(self, n_vocab: int, *, spiked: bool) -> None:
        self.n_vocab, self.n_ctx, self.n_batch, self.n_rows_max = n_vocab, 1 << 20, 512, 16
        self.eog: frozenset[int] = frozenset()
        self.capabilities = Capabilities(sessions_per_batch=1)
        self._pool = np.random.default_rng(0).normal(0.0, 3.0, (8, self.n_rows_max, n_vocab)).astype(np.float32)
        self._spiked = spiked
        self._n = 0

    def eval(self, plans: Sequence[Plan]) -> list[Rows]:
        """See `Target.eval`."""
        rows = self._pool[self._n % len(self._pool)][: plans[0].n_rows]
        self._n += 1
        if self._spiked:
            rows[0, (self._n * 7919) % self.n_vocab] = 50.0 + self._n * 1e-3
        return [rows]

    def retain(self, seq_id: int, n_keep: int, path: Sequence[int] = ()) -> bool:  # noqa: ARG002 - the contract's names
        """See `Target.retain`."""
        return True

    def fall_back(self, seq_id: int, n_keep: int) -> int:  # noqa: ARG002 - the contract's names
        """See `Target.fall_back`; never needed, as `retain` succeeds."""
        return n_keep

    def clear(self, seq_id: int) -> None:
        """See `Target.clear`."""

    def abort(self) -> None:
        """See `Target.abort`."""

    def resume(self) -> None:
        """See `Target.resume`."""


def round_us(n_vocab: int, sampling: Sampling, *, drafting: bool, n_rounds: int) -> list[float]:
    """Microseconds of each round, from the loop's own code."""
    target = InstantTarget(n_vocab, spiked=sampling.temperature == 0)
    cost = CostModel(CostTable({1: 0.01, 2: 0.015, 4: 0.024, 8: 0.037, 16: 0.058}))
    tools = Drafting(SuffixDrafter(), n_vocab) if drafting else None
    controller = Controller(cost, Acceptance(Prior(), sampling.temperature)) if drafting else None
    prompt = [int(t) for t in np.random.default_rng(1).integers(0, n_vocab, 400)]
    generation = Generation(
        Session(target), prompt, sampling, Limits(), lambda _: b"word ", time.perf_counter, tools, controller
    )
    governor = Governor(Team(2, 2), HeatPolicy("balanced", 15, 2), n_usable=2, n_draft_max=15)
    governor.use_cost(cost, time.perf_counter())
    return timed(lambda: play_round([generation], target, time.perf_counter, governor), n_rounds)


def timed(once: Callable[[], object], n: int) -> list[float]:
    """Microseconds of each of `n` calls, after a tenth as many that do not count."""
    for _ in range(n // 10):
        once()
    gc.collect()
    gc.disable()
    found = []
    for _ in range(n):
        began_ns = time.perf_counter_ns()
        once()
        found.append((time.perf_counter_ns() - began_ns) / 1000)
    gc.enable()
    return found


def python_work(n_rounds: int) -> dict[str, object]:
    """Part 2."""
    sampled = Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=1)
    print(f"\n{'Python work of a round':<40}{'median us':>11}{'p10':>8}{'p90':>8}")
    found: dict[str, object] = {}
    for name, n_vocab, sampling in (
        ("greedy, vocabulary 49,152", 49_152, Sampling()),
        ("sampled (k 40, p 0.95), 151,936", 151_936, sampled),
        ("sampled (k 40, p 0.95), 49,152", 49_152, sampled),
    ):
        for drafting in (False, True):
            times = round_us(n_vocab, sampling, drafting=drafting, n_rounds=n_rounds)
            low, median, high = (float(x) for x in np.percentile(times, [10, 50, 90]))
            label = f"{name}{', drafting' if drafting else ''}"
            print(f"{label:<44}{median:>7.1f}{low:>8.1f}{high:>8.1f}")
            found[label] = {"median_us": median, "p10_us": low, "p90_us": high}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-group", type=int, default=3)
    parser.add_argument("--n-rounds", type=int, default=2000, help="decode rounds of the Python measurement")
    parser.add_argument("--only", choices=("bare", "python"))
    args = parser.parse_args()
    found: dict[str, object] = {"model": Path(args.model).name}
    if args.only != "python":
        found["bare"] = against_bare(args)
    if args.only != "bare":
        found["python"] = python_work(args.n_rounds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
