"""What exactness costs and what drafting gives under it, by length of context: `bench_exact.py MODEL`.

The questions of a workload, each behind so much other text of it that the prompt has a given length. Four ways by
turns, each against plain decoding on an f16 cache with all threads: the same with drafting, exact plain, and exact with
drafting.
One pair of engines is opened for each length, since the recipe depends on it. `edgespec certify MODEL` comes first.
Prints a table, and one JSON line at the end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgespec import Engine, EngineConfig, Sampling
from edgespec.bench import runner, workloads
from edgespec.bench.modes import PLAIN, Mode, orders
from edgespec.bench.ratios import Cell, Ratio, aggregate
from edgespec.bench.runner import Run
from edgespec.bench.workloads import Question

F16_AUTO, EXACT_PLAIN, EXACT_AUTO = "f16 auto", "exact plain", "exact auto"
WAYS = {PLAIN: "none", F16_AUTO: "auto", EXACT_PLAIN: "none", EXACT_AUTO: "auto"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--workload", type=Path)
    parser.add_argument("--contexts", default="100,600,1200,1900")
    parser.add_argument("--questions", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    questions = workloads.load(args.workload)
    found: dict[str, object] = {"model": Path(args.model).name}
    print(f"{'tokens':>6} {'f16 plain':>9}", *(f"{name:>18}" for name in (*list(WAYS)[1:], "exact auto/plain")))
    for n_ctx in (int(part) for part in args.contexts.split(",")):
        runs, why = measure(args, questions, n_ctx)
        cells = aggregate(runs)["all"]
        own = exact_alone(runs)
        print(
            f"{n_ctx:>6} {cells[PLAIN].tok_s or 0:>6.0f} /s "
            + " ".join(f"{spelled(ratio):>18}" for ratio in (*(cells[way].ratio for way in list(WAYS)[1:]), own)),
            flush=True,
        )
        print(f"       {why}", flush=True)
        found[str(n_ctx)] = {"recipe": why, "exact auto/exact plain": figures(own)} | {
            way: {"tok_s": cell.tok_s, "ratio": figures(cell.ratio), "drafted": cell.drafted, "accepted": cell.accepted}
            for way, cell in cells.items()
        }
        found[f"{n_ctx} differing"] = differing(cells, runs)
    print(json.dumps(found))


def measure(args: argparse.Namespace, questions: Sequence[Question], n_ctx: int) -> tuple[list[Run], str]:
    """All ways on all questions, and the exact recipe."""
    n_most = n_ctx + args.max_tokens + 32
    with (
        Engine.open(args.model, EngineConfig(n_ctx=n_most, exact=False)) as usual,
        Engine.open(args.model, EngineConfig(n_ctx=n_most, exact=True)) as exact,
    ):
        step = max(1, len(questions) // args.questions)
        asked = [padded(usual, questions, index, n_ctx) for index in range(0, len(questions), step)][: args.questions]
        modes = [Mode(name, drafter) for name, drafter in WAYS.items()]
        plan = runner.Plan(asked, modes, Sampling(), args.rounds, args.max_tokens)
        runs = []
        for number in range(-1, args.rounds):
            for index, question in enumerate(asked if number >= 0 else asked[:1]):
                for place, arm in enumerate(orders(len(modes))[(index + number) % len(modes)]):
                    engine = exact if modes[arm].name.startswith("exact") else usual
                    run = runner.run_one(plan, engine, question, number, place, modes[arm])
                    runs += [run] if number >= 0 else []  # the first warms up
        return runs, exact.exactness.why


def padded(engine: Engine, questions: Sequence[Question], index: int, n_ctx: int) -> Question:
    """Question `index` behind as much of the ones after it as makes a prompt of about `n_ctx` tokens."""
    question = questions[index]
    others = engine.encode("\n\n".join(q.text for q in (*questions[index + 1 :], *questions[:index])))
    own = engine.encode(question.text)[-n_ctx:]
    text = engine.decode([*others[: max(0, n_ctx - len(own) - 24)], *own]).decode("utf-8", "replace")
    return Question(question.question_id, "all", text)


def exact_alone(runs: Sequence[Run]) -> Ratio:
    """Exact drafting against exact plain decoding."""
    names = {EXACT_PLAIN: PLAIN, EXACT_AUTO: EXACT_AUTO}
    picked = [replace(run, mode=names[run.mode]) for run in runs if run.mode in names]
    return aggregate(picked)["all"][EXACT_AUTO].ratio


def differing(cells: dict[str, Cell], runs: Sequence[Run]) -> dict[str, int]:
    """Answers that are not those of the same cache undrafted."""
    ids = {(run.mode, run.question_id, run.round): run.ids for run in runs}
    pairs = {F16_AUTO: PLAIN, EXACT_AUTO: EXACT_PLAIN}
    return {
        way: sum(ids[way, q, n] != ids[base, q, n] for mode, q, n in ids if mode == way)
        for way, base in pairs.items()
        if way in cells
    }


def spelled(ratio: Ratio) -> str:
    return f"{ratio.value or 0:.2f} {ratio.low or 0:.2f}..{ratio.high or 0:.2f}"


def figures(ratio: Ratio) -> list[float | None]:
    return [None if value is None else round(value, 3) for value in (ratio.value, ratio.low, ratio.high)]


if __name__ == "__main__":
    main()
