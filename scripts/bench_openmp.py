"""Two builds of llama-cpp-python side by side: `bench_openmp.py MODEL --other-python PATH`.

Compares this interpreter's build with another's (for example one made with GGML_OPENMP=OFF): idle and with one busy
process, on one and two threads, by width of the pass, with team changes between passes, and with ggml thread pools
that poll for a long time or not at all. Every measurement is a process of its own that loads only llama_cpp; builds
take turns. Prints tables of medians and spreads, and one JSON line at the end.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WIDTHS = (1, 2, 4, 8)
N_PAST = 64
"""Tokens in the cache before the passes that are timed."""


class Worker:
    """One model on a number of threads, in this process."""

    def __init__(self, model: str, threads: int, poll: int | None) -> None:
        import llama_cpp.llama_cpp as native  # noqa: TID251 - compares builds of it; nothing of edgespec is loaded

        self._native: Any = native
        self._silent = native.llama_log_callback(lambda *_: None)
        native.llama_log_set(self._silent, None)
        native.llama_backend_init()
        params = native.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = native.llama_model_load_from_file(os.fsencode(model), params)
        if not self._model:
            raise SystemExit(f"error: {model} does not load")
        context = native.llama_context_default_params()
        context.n_ctx, context.n_batch = 512, 128
        context.n_threads = context.n_threads_batch = threads
        self._ctx = native.llama_init_from_model(self._model, context)
        self._batch = native.llama_batch_init(128, 0, 1)
        self._memory = native.llama_get_memory(self._ctx)
        if poll is not None:
            self._attach(threads, poll)
        for _ in range(4):
            self.decode(N_PAST, 0)

    def _attach(self, threads: int, poll: int) -> None:
        """A ggml thread pool; the binding has no names for it."""
        library = self._native._lib

        class Params(ctypes.Structure):
            _fields_ = [
                ("cpumask", ctypes.c_bool * 512), ("n_threads", ctypes.c_int), ("prio", ctypes.c_int),
                ("poll", ctypes.c_uint32), ("strict_cpu", ctypes.c_bool), ("paused", ctypes.c_bool),
            ]  # fmt: skip

        params = Params()
        library.ggml_threadpool_params_init.argtypes = [ctypes.POINTER(Params), ctypes.c_int]
        library.ggml_threadpool_params_init(ctypes.byref(params), threads)
        params.poll = poll
        library.ggml_threadpool_new.restype = ctypes.c_void_p
        library.ggml_threadpool_new.argtypes = [ctypes.POINTER(Params)]
        pool = ctypes.c_void_p(library.ggml_threadpool_new(ctypes.byref(params)))
        library.llama_attach_threadpool.restype = None
        library.llama_attach_threadpool.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        library.llama_attach_threadpool(self._ctx, pool, None)

    def decode(self, width: int, n_past: int) -> float:
        """Milliseconds of one pass of `width` rows after `n_past` tokens; the cache is cut back to those first."""
        native, batch = self._native, self._batch
        native.llama_memory_seq_rm(self._memory, 0, n_past, -1)
        batch.n_tokens = width
        for index in range(width):
            batch.token[index], batch.pos[index] = 100 + 7 * index, n_past + index
            batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, 0, n_past > 0
        began_s = time.perf_counter()
        if native.llama_decode(self._ctx, batch) != 0:
            raise RuntimeError("llama_decode failed")
        native.llama_get_logits_ith(self._ctx, -1)
        return 1000 * (time.perf_counter() - began_s)

    def widths(self, n: int) -> dict[str, float]:
        """Median milliseconds by width; widths take turns."""
        found: dict[int, list[float]] = {width: [] for width in WIDTHS}
        for _ in range(n):
            for width in WIDTHS:
                found[width].append(self.decode(width, N_PAST))
        return {str(width): statistics.median(times) for width, times in found.items()}

    def changes(self, n: int, threads: int) -> dict[str, float]:
        """Medians of single-row passes on one and all threads, switching after every pass and every eighth."""
        found: dict[str, float] = {}
        for every in (1, 8):
            times: dict[int, list[float]] = {1: [], threads: []}
            for index in range(4 * max(n, 8)):
                team = (1, threads)[index // every % 2]
                if index % every == 0:
                    self._native.llama_set_n_threads(self._ctx, team, team)
                times[team].append(self.decode(1, N_PAST))
            found |= {f"every {every}, on {team}": statistics.median(t) for team, t in times.items()}
        return found


def work(args: argparse.Namespace) -> None:
    """The measuring process: prints one JSON line."""
    worker = Worker(args.model, args.threads, args.poll)
    found = {"widths": worker.widths(args.passes)}
    if args.threads > 1 and args.poll is None:
        found["changes"] = worker.changes(args.passes, args.threads)
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # freeing models and pools is not what is measured


@contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """One process that computes without end."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()


def measure(python: str, args: argparse.Namespace, threads: int, poll: int | None) -> dict[str, dict[str, float]]:
    """Run one worker."""
    command = [python, __file__, args.model, "--worker", "--threads", str(threads), "--passes", str(args.passes)]
    command += ["--poll", str(poll)] if poll is not None else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
    if done.returncode != 0 or not done.stdout.strip():
        raise RuntimeError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(args: argparse.Namespace) -> None:
    """All measurements, builds taking turns."""
    builds = {"this": sys.executable, "other": args.other_python}
    settings = [(threads, poll) for threads in args.teams for poll in (None, *(args.polls if threads > 1 else ()))]
    times: dict[str, list[float]] = {}
    failed: list[str] = []
    for number in range(args.rounds):
        for load in (False, True):
            for threads, poll in settings:
                for build in sorted(builds, reverse=bool(number % 2)):
                    name = f"{build:<6}{'busy' if load else 'idle'}  {threads} threads"
                    name += "" if poll is None else f", poll {poll}"
                    print(f"\rround {number + 1} of {args.rounds}: {name}".ljust(70), end="", file=sys.stderr)
                    try:
                        with busy(load):
                            found = measure(builds[build], args, threads, poll)
                    except (RuntimeError, subprocess.TimeoutExpired) as error:
                        failed.append(f"{name}: {error}")
                        continue
                    for kind, values in found.items():
                        for what, ms in values.items():
                            label = f"width {what}" if kind == "widths" else f"team change {what}"
                            times.setdefault(f"{name} | {label}", []).append(ms)
    print(file=sys.stderr)
    print(f"{'build  load  team | what':<58}{'ms':>7}{'least':>7}{'most':>8}")
    for name in sorted(times, key=lambda n: (n.split("|")[0][6:], n.split("|")[1], n)):
        found_ms = times[name]
        print(f"{name:<58}{statistics.median(found_ms):>7.2f}{min(found_ms):>7.2f}{max(found_ms):>8.2f}")
    for line in failed:
        print("FAILED", line)
    print(json.dumps({"times_ms": times, "failed": failed}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--other-python", help="interpreter of the environment with the other build")
    parser.add_argument("--rounds", type=int, default=5, help="workers for every setting")
    parser.add_argument("--passes", type=int, default=20, help="timed passes for every width in a worker")
    parser.add_argument("--teams", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--polls", type=int, nargs="*", default=[0, 50], help="thread pools to try besides none")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a worker may take")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--poll", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
    elif args.other_python is None:
        parser.error("--other-python is needed")
    else:
        compare(args)


if __name__ == "__main__":
    main()
