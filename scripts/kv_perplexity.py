"""Perplexity of a model by type of its KV cache: `kv_perplexity.py MODEL TEXT [--tokens N]`.

The text is read once from the beginning, in passes of `n_batch` tokens, each token predicted from all before it. Prints
a table with the mean difference to the first type's log-probabilities and its standard error, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgespec.certify import KV_TYPES
from edgespec.core.controller import chain_parents
from edgespec.interfaces import Draft, Plan
from edgespec.opening import with_kv
from edgespec.target import gguf_check
from edgespec.target.llama import LlamaTarget, load
from edgespec.target.options import TargetOptions

N_PASS = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=5000)
    args = parser.parse_args()
    info = gguf_check.check(args.model)
    text = args.text.read_text(encoding="utf-8")
    found: dict[str, dict[str, float]] = {}
    base: npt.NDArray[np.float64] | None = None
    print(f"{'KV cache':<12}{'perplexity':>11}{'difference in nats a token':>34}")
    for kv in (*KV_TYPES, "bf16/bf16"):
        with load(args.model, with_kv(TargetOptions(n_ctx=args.tokens + 256, n_rows_max=N_PASS), kv), info) as target:
            nats = surprise(target, target.encode(text, bos=True)[: args.tokens])
        base = nats if base is None else base
        off = nats - base
        error = float(off.std() / math.sqrt(len(off)))
        found[kv] = {"perplexity": math.exp(nats.mean()), "nats": float(off.mean()), "error": error}
        print(f"{kv:<12}{math.exp(nats.mean()):>11.4f}{off.mean():>+22.5f} ± {error:.5f}", flush=True)
    print(json.dumps({"model": args.model.name, "n_tokens": len(nats) + 1, **found}))


def surprise(target: LlamaTarget, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    """Minus the log-probability of each token but the first."""
    found = []
    for first in range(0, len(tokens) - 1, N_PASS):
        chunk = tokens[first : min(first + N_PASS, len(tokens) - 1)]
        n = len(chunk) - 1
        draft = Draft(tuple(chunk[1:]), chain_parents(n), (0,) * n, (1.0,) * n)
        rows = target.eval([Plan(0, first, chunk[:1], draft)])[0].astype(np.float64)
        target.retain(0, first + 1, tuple(range(n)))
        most = rows.max(axis=1)
        total = most + np.log(np.exp(rows - most[:, None]).sum(axis=1))
        found.append(total - rows[np.arange(len(chunk)), tokens[first + 1 : first + 1 + len(chunk)]])
    return np.concatenate(found)


if __name__ == "__main__":
    main()
