"""What a pass costs by its rows, with edgespec's kernels and without: `bench_kernels.py MODEL`.

Two processes, one with the kernels (built first, if need be) and one without, measure by turns; one pair for each
number of threads. Prints the least milliseconds of many passes, which other programs disturb least, and their medians
with --median; then in decode steps of the stock build, whose single row is 1. Ends with one JSON line.

--picture FILE draws the steps (needs matplotlib); --from-json FILE takes such lines instead of measuring. A line may
also have `floor_steps`, by threads: what the matrix products of one row take alone, which memory bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROWS = (1, 2, 3, 4, 8, 12, 16)
Times = dict[int, list[float]]
"""Milliseconds by rows."""
Costs = Mapping[str, Mapping[int, float]]
"""Milliseconds of a pass by build ("stock", "kernels") and rows."""


@dataclass(frozen=True)
class Measured:
    """One model."""

    model: str
    least_ms: Mapping[int, Costs]
    """By threads."""
    floor_steps: Mapping[int, float] = field(default_factory=dict)
    """By threads: steps that the matrix products of one row take alone, which memory bounds."""

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Measured:
        """The object that one JSON line holds."""
        least = {
            int(threads): {name: {int(rows): float(ms) for rows, ms in by.items()} for name, by in costs.items()}
            for threads, costs in raw["least_ms"].items()
        }
        floor = {int(threads): float(steps) for threads, steps in raw.get("floor_steps", {}).items()}
        return cls(str(raw["model"]), least, floor)


def work(args: argparse.Namespace) -> None:
    """The measuring process: a line with numbers of rows comes in, one with their times goes out."""
    from bench_openmp import N_PAST, Worker

    from edgespec import kernels
    from edgespec.device.features import cpu_features
    from edgespec.device.sysfs import Sysfs
    from edgespec.target import lib

    if args.worker == "kernels":
        with kernels.loading(cpu_features(Sysfs())):
            lib.native()
        if not kernels.status().active:
            raise SystemExit(f"error: {kernels.status().reason}")
    worker = Worker(args.model, args.threads, None)
    print(kernels.status().reason, flush=True)
    for line in sys.stdin:
        found: Times = {}
        for rows in json.loads(line):
            worker.decode(rows, N_PAST)  # threads wake up, caches fill
            found[rows] = [worker.decode(rows, N_PAST) for _ in range(args.passes)]
        print(json.dumps(found), flush=True)
    os._exit(0)  # freeing models is not what is measured


def measure(args: argparse.Namespace, threads: int) -> dict[str, Times]:
    """Times of both builds by their turns."""
    found: dict[str, Times] = {name: {rows: [] for rows in args.rows} for name in ("stock", "kernels")}
    with ExitStack() as stack:
        workers = {}
        for name in found:
            command = [sys.executable, __file__, args.model, "--worker", name, "--threads", str(threads)]
            command += ["--passes", str(args.passes)]
            started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            workers[name] = stack.enter_context(started)
            stack.callback(started.kill)
        for process in workers.values():
            if not process.stdout.readline():  # type: ignore[union-attr]  # both are pipes
                raise SystemExit(1)
        for _ in range(args.turns):
            for rows in args.rows:
                for name, process in workers.items():
                    print(json.dumps([rows]), file=process.stdin, flush=True)
                    answer = json.loads(process.stdout.readline())  # type: ignore[union-attr]  # both are pipes
                    found[name][rows] += answer[str(rows)]
    return found


def table(costs: Costs, threads: int, what: str) -> None:
    """One row a width."""
    print(f"\nthreads: {threads}; {what} ms of a pass, and in steps of the stock build")
    print("rows   stock        kernels        gain")
    step = costs["stock"].get(1)
    for rows, stock in costs["stock"].items():
        ours = costs["kernels"][rows]
        steps = ("", "") if step is None else (f"{stock / step:5.2f}", f"{ours / step:5.2f}")
        print(f"{rows:4}  {stock:6.1f} {steps[0]}   {ours:6.1f} {steps[1]}   {stock / ours:5.2f}x")


def read_lines(file: Path) -> Iterator[Measured]:
    """What is in a file, between whatever else was printed."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("{"):
            yield Measured.read(json.loads(line))


def draw(found: Sequence[Measured], file: Path) -> None:
    """The staircases: a column a model, a row a number of threads; steps of the stock build upwards."""
    from matplotlib.figure import Figure

    teams = sorted({threads for one in found for threads in one.least_ms}, reverse=True)
    figure = Figure(figsize=(0.5 + 3.1 * len(found), 0.6 + 2.7 * len(teams)), layout="constrained")
    grid = figure.subplots(len(teams), len(found), sharex=True, sharey=True, squeeze=False)
    for column, one in enumerate(found):
        for place, threads in enumerate(teams):
            axes = grid[place][column]
            axes.set_title(f"{one.model}; threads: {threads}", fontsize=9)
            axes.grid(color="#dddddd", linewidth=0.6)
            costs = one.least_ms.get(threads)
            if costs is None or 1 not in costs["stock"]:
                axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
                continue
            for name, color, marker in (("stock", "#8a5a00", "s"), ("kernels", "#0b5cad", "o")):
                steps = {rows: ms / costs["stock"][1] for rows, ms in sorted(costs[name].items())}
                axes.plot(list(steps), list(steps.values()), color=color, marker=marker, markersize=4)
                for rows in {4, 8, max(steps)} & set(steps):
                    axes.annotate(
                        f"{steps[rows]:.1f}", (rows, steps[rows]), (0, 5 if name == "stock" else -12), color=color,
                        textcoords="offset points", ha="center", fontsize=8,
                    )  # fmt: skip
            if threads in one.floor_steps:
                axes.axhline(one.floor_steps[threads], color="#555555", linestyle=":", linewidth=1.2)
            axes.set_xticks([rows for rows in ROWS if rows != 3])
    grid[0][0].set_ylim(0, 1.05 * grid[0][0].get_ylim()[1])  # of all, and only now that all is drawn
    for row in grid:
        row[0].set_ylabel("plain steps a pass")
    for axes in grid[-1]:
        axes.set_xlabel("rows of a pass")
    from matplotlib.lines import Line2D

    figure.legend(
        handles=[
            Line2D([], [], color="#8a5a00", marker="s", markersize=4, label="ggml's kernels"),
            Line2D([], [], color="#0b5cad", marker="o", markersize=4, label="edgespec's kernels"),
            Line2D([], [], color="#555555", linestyle=":", label="matrix products of one row alone, where known"),
        ],
        loc="outside lower center", ncols=3, frameon=False, fontsize=9,
    )  # fmt: skip
    figure.savefig(file, dpi=130)


def measure_all(args: argparse.Namespace) -> Measured:
    """Measure with each number of threads, and print it."""
    from edgespec import kernels
    from edgespec.device.features import cpu_features
    from edgespec.device.sysfs import Sysfs
    from edgespec.errors import DeviceError

    try:
        kernels.find_built(cpu_features(Sysfs()))
    except DeviceError:
        kernels.build(cpu_features(Sysfs()))
    found = {threads: measure(args, threads) for threads in ([args.threads] if args.threads else [2, 1])}
    pick, what = (statistics.median, "median") if args.median else (min, "least")
    for threads, times in found.items():
        table({name: {rows: pick(t) for rows, t in by.items()} for name, by in times.items()}, threads, what)
    least = {n: {k: {r: min(t) for r, t in by.items()} for k, by in times.items()} for n, times in found.items()}
    print(json.dumps({"model": Path(args.model).name, "least_ms": least}))
    return Measured(Path(args.model).name, least)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", type=lambda name: str(Path(name).resolve()))
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="take these lines; nothing is measured")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the steps, for example as a .png")
    parser.add_argument("--threads", type=int, help="one number of threads; left out: one and two")
    parser.add_argument("--rows", type=lambda text: tuple(map(int, text.split(","))), default=ROWS)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--passes", type=int, default=5, help="passes a turn")
    parser.add_argument("--median", action="store_true")
    parser.add_argument("--worker", choices=("stock", "kernels"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    if (args.model is None) == (args.from_json is None):
        parser.error("give a model, or --from-json")
    if args.from_json is not None:
        measured = list(read_lines(args.from_json))
        for one in measured:
            print(f"\n{one.model}")
            for threads, costs in one.least_ms.items():
                table(costs, threads, "least")
    else:
        measured = [measure_all(args)]
    if args.picture is not None:
        draw(measured, args.picture)


if __name__ == "__main__":
    main()
