"""edgespec beside llama-server, llama-cpp-python and a bare loop, on the same prompts: `bench_peers.py MODEL`.

Plain and drafting, each peer against edgespec's plain decoding and against its own. Same threads, same prompt tokens,
greedy, same budget, cold caches, turns that rotate, each program in a process of its own that is stopped while another
one works. llama-server comes from the package xllamacpp, which is no part of edgespec: --install puts it into an
environment in edgespec's cache folder. Decode seconds are each program's own; the report says which.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from edgespec.bench import stamp, workloads
from edgespec.bench.peers import arms as all_arms
from edgespec.bench.peers import install
from edgespec.bench.peers.match import Contest, Match, play, seats
from edgespec.bench.peers.summary import summarise, table, to_json
from edgespec.bench.runner import Run
from edgespec.device import host
from edgespec.device.sysfs import Sysfs
from edgespec.device.topology import read_topology
from edgespec.errors import EdgespecError


def main() -> int:
    args = arguments()
    try:
        return compare(args)
    except EdgespecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--workload", type=Path, help="JSONL as for `edgespec bench`; default: the built-in questions")
    parser.add_argument("--per-group", type=int, default=5, help="questions of each group; 0: all (default: 5)")
    parser.add_argument("--groups", help="only these, comma-separated")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest answer (default: 128)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(read_topology(Sysfs()).usable), help="default: usable cores")
    parser.add_argument("--ctx", type=int, default=4096)
    parser.add_argument("--peers", help="only those whose names begin so, comma-separated; none; default: all")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds until a peer counts as hanging")
    parser.add_argument("--json", type=Path, help="write everything to this file as well")
    parser.add_argument("--install", action="store_true", help="install xllamacpp for the comparison first, if missing")
    return parser.parse_args()


def compare(args: argparse.Namespace) -> int:
    questions = workloads.load(args.workload)
    if args.groups:
        questions = tuple(question for question in questions if question.group in args.groups.split(","))
    questions = workloads.select(questions, args.per_group)
    if not questions:
        print("error: no such group in the workload", file=sys.stderr)
        return 2
    arms = all_arms.choose(args.peers)
    home = install.folder()
    python = install.python(home)
    if python is None and args.install:
        say(f"installing {install.PACKAGE} into {home} ...")
        python = install.install(home)
    if python is None and any(arm.module == "llama_server" for arm in arms):
        say(f"llama-server is left out: {install.PACKAGE} is not in {home} (--install puts it there)")
        arms = tuple(arm for arm in arms if arm.module != "llama_server")
    settings: dict[str, object] = {"model": args.model, "n_ctx": args.ctx, "threads": args.threads}
    seated = seats(arms, python, settings, args.timeout)
    match = Match()
    try:
        prompts = {q.question_id: seated["plain"].ask({"question": q.text})["prompt"] for q in questions}
        first = seated["plain"].worker
        assert first is not None
        settings["model"] = first.about["model_path"]  # read when the others start
        before = stamp.machine()
        play(Contest(questions, arms, args.rounds, args.max_tokens), seated, prompts, match, progress)
        versions = {name: seat.worker.about["version"] for name, seat in seated.items() if seat.worker is not None}
        about: dict[str, object] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "model": first.about["model"], "fingerprint": first.about["fingerprint"], "versions": versions,
            "cpu": host.cpu_name(Sysfs()), "threads": args.threads, "n_ctx": args.ctx, "max_tokens": args.max_tokens,
            "rounds": args.rounds, "questions": len(questions), "before": before, "after": stamp.machine(),
            "arms": {arm.name: {"plain": arm.plain, **arm.settings, **arm.request} for arm in arms},
        }  # fmt: skip
    finally:
        for seat in seated.values():
            seat.close()
    summary = summarise(match, arms)
    print(f"{about['model']}, {args.threads} threads, {about['cpu']}; {len(questions)} prompts, {args.rounds} rounds")
    print(*dict.fromkeys(versions.values()), sep="; ", end="\n\n")
    print(table(summary, match), end="")
    if args.json:
        args.json.write_text(json.dumps(to_json(summary, match, about), indent=1) + "\n", encoding="utf-8")
    return int(all(run.error is not None for run in match.runs))


def progress(done: int, n_all: int, run: Run) -> None:
    ended = f"\r{done}/{n_all} {run.question_id} {run.mode:<20.20}"
    if run.error is not None:
        ended += f" FAILED: {run.error}\n"
    if sys.stderr.isatty() or run.error is not None:
        print(ended, end="", file=sys.stderr, flush=True)


def say(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
