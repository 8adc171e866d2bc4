"""What another busy process costs, and what giving up threads wins back: `bench_contention.py MODEL`.

Each trial decodes for 30 s with every fixed team and with the governor, in rotated order, on one loaded model each.
From second 10 to 20 one other process runs `while True`. Prints tokens a second of the idle, the loaded and the
recovered part, and one JSON line at the end. A run in which yet another program took time is told and taken again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from edgespec.config import EngineConfig
from edgespec.device.load import LoadReader
from edgespec.device.sysfs import Sysfs
from edgespec.engine import Engine
from edgespec.interfaces import Limits, Sampling

PROMPT = "Write a long story about a lighthouse keeper who finds a map.\n\n"
N_TOKENS = 192
"""Tokens of an answer; the same one is written again and again."""
GOVERNED = "governed"
_MAX_RUNS = 3


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a trial."""

    busy: float
    idle_again: float
    end: float
    settle: float = 2.0
    """Left out after the load begins, and at the very beginning."""
    recover: float = 5.0
    """Left out after the load ends."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Tokens a second of the three parts of one run, and what the governor did."""

    arm: str
    number: int
    idle: float
    busy: float
    recovered: float
    n_changes: int
    shrunk_idle_share: float
    """Share of the first idle part that ran with fewer threads than the full team."""
    others: tuple[float | None, ...]
    """Cores' worth of time that other processes took in the three parts, the load included."""

    @property
    def disturbed(self) -> bool:
        """Whether something else than the load took more than a tenth of a core."""
        allowed = (0.1, 1.1, 0.1)
        return any(taken is not None and taken > most for taken, most in zip(self.others, allowed, strict=True))


def run(engine: Engine, arm: str, number: int, times: Times) -> Trial:
    """Decode until the end, with the load in the middle."""
    prompt, began_s = engine.prompt(PROMPT), time.perf_counter()
    at: list[tuple[float, int, int]] = []
    load: subprocess.Popen[bytes] | None = None
    n_changes, now_s = len(engine.machine.governor.changes), 0.0
    reader = LoadReader(Sysfs())
    marks = [times.settle, times.busy, times.busy + times.settle, times.idle_again, times.idle_again + times.recover]
    taken: list[float | None] = []
    try:
        while now_s < times.end:
            for chunk in engine.stream(prompt, Sampling(), Limits(N_TOKENS, ignore_eog=True)):
                now_s = time.perf_counter() - began_s
                at.append((now_s, len(chunk.tokens), engine.target.n_threads))
                if len(taken) < len(marks) and now_s >= marks[len(taken)]:
                    taken.append(reader.read(time.perf_counter()).busy_others)
                if load is None and times.busy <= now_s < times.idle_again:
                    load = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                if load is not None and now_s >= times.idle_again:
                    load.kill()
    finally:
        if load is not None:
            load.kill()
            load.wait()

    taken.append(reader.read(time.perf_counter()).busy_others)

    def rate(begin_s: float, end_s: float) -> float:
        return sum(n for now, n, _ in at if begin_s <= now < end_s) / (end_s - begin_s)

    first = [n for now, _, n in at if times.settle <= now < times.busy]
    return Trial(
        arm,
        number,
        rate(times.settle, times.busy),
        rate(times.busy + times.settle, times.idle_again),
        rate(times.idle_again + times.recover, times.end),
        len(engine.machine.governor.changes) - n_changes,
        sum(n < max(first) for n in first) / len(first),
        (taken[1], taken[3], taken[5]),
    )


def summary(trials: Sequence[Trial], arms: Sequence[str]) -> dict[str, float]:
    """The figures that matter, all of one run."""

    def of(arm: str, part: str) -> list[float]:
        return [getattr(trial, part) for trial in trials if trial.arm == arm]

    fixed = [arm for arm in arms if arm != GOVERNED]
    best_busy = max(statistics.median(of(arm, "busy")) for arm in fixed)
    best_idle = max(statistics.median(of(arm, "idle")) for arm in fixed)
    back = [after / before for after, before in zip(of(GOVERNED, "recovered"), of(GOVERNED, "idle"), strict=True)]
    return {
        "busy_median_to_best_fixed": statistics.median(of(GOVERNED, "busy")) / best_busy,
        "busy_worst_to_best_fixed": min(of(GOVERNED, "busy")) / best_busy,
        "recovered_to_idle_median": statistics.median(back),
        "recovered_to_idle_worst": min(back),
        "idle_to_best_fixed": statistics.median(of(GOVERNED, "idle")) / best_idle,
        "disturbed": float(sum(trial.disturbed for trial in trials)),
        "idle_share_shrunk": statistics.median(of(GOVERNED, "shrunk_idle_share")),
    }


def main() -> None:
    """Run the trials and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file, or a name of `edgespec models list`")
    parser.add_argument("--trials", type=int, default=7, help="runs of each team; default: 7")
    parser.add_argument("--drafter", default="auto", help="as of `edgespec run`; default: auto")
    parser.add_argument("--max-threads", type=int, help="largest fixed team; default: as many as the governor has")
    parser.add_argument(
        "--times",
        type=float,
        nargs=3,
        default=(10.0, 20.0, 30.0),
        metavar=("BUSY", "IDLE", "END"),
        help="seconds at which the load begins, ends, and the run ends; default: 10 20 30",
    )
    args = parser.parse_args()
    times = Times(*args.times)
    if (
        times.busy <= times.settle
        or times.idle_again <= times.busy + times.settle
        or (times.end <= times.idle_again + times.recover)
    ):
        parser.error("--times: at least 2 s to settle before and after the load begins, and 5 s after it ends")
    governed = Engine.open(args.model, EngineConfig(drafter=args.drafter))
    largest = args.max_threads or governed.machine.governor.full.one
    engines = {GOVERNED: governed}
    for n in range(1, largest + 1):
        engines[f"{n} fixed"] = Engine.open(args.model, EngineConfig(drafter=args.drafter, threads=n))
    arms, trials = list(engines), []
    print(f"{'trial':>5}  {'team':<10}{'idle':>8}{'busy':>8}{'after':>8}  tok/s; changes of the team")
    for number in range(args.trials):
        shift = number % len(arms)
        for arm in arms[shift:] + arms[:shift]:
            for _ in range(_MAX_RUNS):
                trial = run(engines[arm], arm, number, times)
                if not trial.disturbed:
                    break
                print(f"       {arm} again: other programs took {trial.others} cores", flush=True)
            trials.append(trial)
            print(
                f"{number:>5}  {arm:<10}{trial.idle:>8.1f}{trial.busy:>8.1f}{trial.recovered:>8.1f}  {trial.n_changes}",
                flush=True,
            )
    figures = summary(trials, arms)
    print()
    for name, value in figures.items():
        print(f"{name:<28}{value:6.3f}")
    print(json.dumps({"summary": figures, "trials": [asdict(trial) for trial in trials]}))
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
