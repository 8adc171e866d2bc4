"""From generated text to a package: vocabulary, fit, export, and a card with what it is worth. Needs torch and onnx."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edgespec.core.offers import TargetFacts
from edgespec.draft import package
from edgespec.errors import DrafterError
from edgespec.target.gguf_check import GGUFInfo
from edgespec.train import data, export, measure
from edgespec.train.fit import fit
from edgespec.train.keep_out import N_WORDS, KeepOut
from edgespec.train.model import frame
from edgespec.train.text_file import TextFile

if TYPE_CHECKING:
    from edgespec.train.run import Job

MAX_BYTES = 7_000_000
"""Of a graph: larger ones cost more than their guesses bring."""
_SAMPLE = 50_000


def package_of(
    job: Job,
    file: TextFile,
    info: GGUFInfo,
    facts: TargetFacts,
    tokenizer: str,
    kept_out: KeepOut,
    left_out: frozenset[int],
    seconds: float,
    tell: Callable[[str], None],
) -> Path:
    """Fit a drafter to the text of a file but the answers `left_out`, within `seconds`, and write its package.

    Raises:
        DrafterError: there is too little text, or the graph would be too large.
        OSError: the package cannot be written.
    """
    torch.set_num_threads(job.threads)
    text = data.load(file, job.memory_mb << 20, left_out)
    ids = data.vocabulary(text, job.n_rows)
    n_trained = int((~text.held_out).sum())
    known = float(np.isin(text.tokens[text.held_out], ids).mean())
    tell(f"fitting to {n_trained} tokens of text; {known:.1%} of held-out text is of the {len(ids)} tokens it knows")
    fixed = frame(text.hidden[:: max(1, len(text.hidden) // _SAMPLE)], data.output_rows(info, ids))
    fitted = fit(
        text, fixed, ids, width=job.width, n_draft=job.n_draft, seconds=0.9 * seconds, seed=job.seed, tell=tell
    )
    raw = export.graph(fitted, fixed, job.n_draft)
    if len(raw) > MAX_BYTES:
        raise DrafterError(
            f"the graph has {len(raw)} bytes, {MAX_BYTES} are the most: fewer --rows or a smaller --width"
        )
    ahead = measure.ahead(text, fitted.places, job.n_draft)
    plain = measure.bigrams(text)(text.tokens[fitted.places].astype(np.int64), job.n_draft) == ahead
    mine, its = measure.table(text, fitted.places, fitted.right), measure.table(text, fitted.places, plain)
    for name, rates in mine.items():
        tell(f"{name}: {_line(rates)}  (bigram table {_line(its[name])}), {rates.n} positions")
    held = mine["greedy"] if "greedy" in mine else mine["all"]
    name = job.name or re.sub(r"[^\w.+-]+", "-", info.name, flags=re.ASCII).strip("-.+").lower()[:48] or "drafter"
    card: Mapping[str, Any] = {
        "n_draft": job.n_draft,
        "target": {"name": info.name, "hash": facts.model, "n_hidden": file.facts.n_hidden},
        "tokenizer": {"hash": tokenizer, "n_vocab": facts.n_vocab},
        "acceptance": {
            "rates": [round(rate or 0.0, 3) for rate in held.by_place],
            "measured_on": f"{held.n} positions of held-out text, greedy",
            "held_out": {key: _shares(rates) for key, rates in mine.items()},
            "bigram": {key: _shares(rates) for key, rates in its.items()},
        },
        "training": {
            "command": job.command[:1000], "seed": job.seed, "n_tokens": n_trained, "n_steps": fitted.n_steps,
            "known": round(known, 4), "kept_out_texts": kept_out.n_texts, "kept_out_words": N_WORDS,
            "answers": len(file), "answers_left_out": len(left_out),
        },
    }  # fmt: skip
    return export.write((job.folder or package.folders()[0]) / name, raw, ids, card)


def _shares(rates: measure.Rates) -> list[float]:
    return [round(rate, 3) for rate in rates.by_place if rate is not None]


def _line(rates: measure.Rates) -> str:
    return " ".join("–" if rate is None else f"{rate:.2f}" for rate in rates.by_place)
