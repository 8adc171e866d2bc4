"""What a pass costs by its rows, with edgespec's kernels and without: `bench_kernels.py MODEL`.

Two processes, one with the kernels (built first, if need be) and one without, measure by turns; one pair for each
number of threads. Prints the least milliseconds of many passes, which other programs disturb least, and their medians
with --median; then in decode steps of the stock build, whose single row is 1. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

ROWS = (1, 2, 3, 4, 8, 12, 16)
Times = dict[int, list[float]]
"""Milliseconds by rows."""


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


def table(found: dict[str, Times], threads: int, *, median: bool) -> None:
    """One row a width."""
    pick = statistics.median if median else min
    what = "median" if median else "least"
    print(f"\nthreads: {threads}; {what} ms of a pass, and in steps of the stock build")
    print("rows   stock        kernels        gain")
    step = pick(found["stock"][1]) if 1 in found["stock"] else None
    for rows in found["stock"]:
        stock, ours = (pick(found[name][rows]) for name in ("stock", "kernels"))
        steps = ("", "") if step is None else (f"{stock / step:5.2f}", f"{ours / step:5.2f}")
        print(f"{rows:4}  {stock:6.1f} {steps[0]}   {ours:6.1f} {steps[1]}   {stock / ours:5.2f}x")


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=lambda name: str(Path(name).resolve()))
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
    from edgespec import kernels
    from edgespec.device.features import cpu_features
    from edgespec.device.sysfs import Sysfs
    from edgespec.errors import DeviceError

    try:
        kernels.find_built(cpu_features(Sysfs()))
    except DeviceError:
        kernels.build(cpu_features(Sysfs()))
    found = {threads: measure(args, threads) for threads in ([args.threads] if args.threads else [2, 1])}
    for threads, times in found.items():
        table(times, threads, median=args.median)
    least = {n: {k: {r: min(t) for r, t in by.items()} for k, by in times.items()} for n, times in found.items()}
    print(json.dumps({"model": Path(args.model).name, "least_ms": least}))


if __name__ == "__main__":
    main()
