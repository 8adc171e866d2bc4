"""Write every prompt of a workload under the recipe that --exact takes (--all: under each), and count differing tokens.

    python scripts/exact_check.py MODEL... [--workload F] [--per-group N] [--max-tokens N] [--all]

One line a configuration: plain decoding (one sequence, single rows on one thread) against the same prompts drafted,
with other sequences in the batch, on a team that changes before every pass. The exit code is 1 where any token differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from edgespec import certificate, cheap_rows
from edgespec.bench import same_text, workloads
from edgespec.bench.same_text import Same
from edgespec.config import EngineConfig
from edgespec.device import host
from edgespec.device.sysfs import Sysfs
from edgespec.exact import recipes
from edgespec.interfaces import Sampling
from edgespec.opening import build_name, with_kv
from edgespec.target import gguf_check
from edgespec.target.llama import load
from edgespec.target.options import TargetOptions

SAMPLINGS = {"greedy": Sampling(), "0.8": Sampling(temperature=0.8, seed=1)}
N_SESSIONS = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--workload", type=Path, default=None)
    parser.add_argument("--per-group", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--all", action="store_true", help="every recipe of the certificate")
    args = parser.parse_args()
    questions = workloads.select(workloads.load(args.workload), args.per_group)
    texts = [question.text for question in questions]
    print(f"kernels: {cheap_rows.load(EngineConfig()).reason}", flush=True)
    return max(check(model, texts, args.max_tokens, every=args.all) for model in args.models)


def check(model: Path, texts: list[str], max_tokens: int, *, every: bool) -> int:
    info = gguf_check.check(model)
    found, note = certificate.load(info.fingerprint, build_name(), host.cpu_name(Sysfs()))
    if found is None:
        print(f"{model.stem}: {note or 'not certified: run edgespec certify'}")
        return 2
    code = 0
    for recipe in recipes(found, found.n_ctx)[: None if every else 1]:
        # Where chunks of a prompt do not matter, its cache is kept from one way to the next.
        keeps = found.exact("chunk", recipe.kv)
        plain: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        for n_sessions in (1, N_SESSIONS):
            options = TargetOptions(
                n_ctx=n_sessions * -(-found.n_ctx // 256) * 256, n_threads=found.n_threads, n_seq_max=n_sessions,
                n_rows_max=64, n_rs_seq=15, kv_unified=n_sessions == 1,
            )  # fmt: skip
            with load(model, with_kv(options, recipe.kv), info) as target:
                free = target.capabilities
                encoded = [target.encode(text, bos=True) for text in texts]
                prompts = [prompt for prompt in encoded if len(prompt) + max_tokens < found.n_ctx]
                sessions = same_text.sessions_of(target, n_sessions) if keeps else None
                total: dict[str, Same] = {}
                for first in range(0, len(prompts), n_sessions):
                    group = prompts[first : first + n_sessions]
                    for name, sampling in SAMPLINGS.items():
                        if n_sessions == 1:
                            target.capabilities = free
                            own = sessions[0] if sessions else None
                            plain[name, first] = same_text.plain_texts(
                                target, group, sampling, max_tokens, found.n_threads, own
                            )
                        target.capabilities = recipe.limit(free)
                        answers = [plain[name, first + k][0] for k in range(len(group))]
                        for drafter in ("ngram", "odd"):
                            same = same_text.compare(
                                name, target, recipe, group, answers, sampling, max_tokens, found.n_threads,
                                n_sessions=n_sessions, sessions=sessions, odd=drafter == "odd", seed=first,
                            )  # fmt: skip
                            key = f"{name} x{n_sessions} {drafter}"
                            total[key] = same_text.added(total[key], same) if key in total else same
            how = f"{recipe.kv}{' 1 thread' if recipe.one_thread else ''}"
            for key, same in total.items():
                print(
                    f"{model.stem} {how} {key}: {len(prompts)} prompts, {same.n_differing} of {same.n_tokens} tokens "
                    f"differ; {same.n_accepted} of {same.n_drafted} drafted accepted, up to {max(same.widths)} rows",
                    flush=True,
                )
                code |= same.n_differing > 0
    return code


if __name__ == "__main__":
    sys.exit(main())
